"""JSON text from a file or a row: the only place that parses it, so that no text of any shape ends a command."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["canonical", "parse_json"]


def parse_json(text: str | bytes) -> Any:
    """Return what the text says. Raises ValueError for all that is not JSON, also where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def canonical(document: Any) -> bytes:
    """Return the one text of a document: without white space, keys in order. Raises ValueError as ``parse_json``."""
    try:
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
