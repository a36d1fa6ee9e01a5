"""JSON text from a file or a row: the only place that parses it, so that no text of any shape ends a command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

DEEPEST = 200
"""So deep may lists and objects be nested: nothing that is written here comes near, and readers call themselves."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError for any other text, also where it is nested too deeply."""
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    opened = (
        text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    )
    if opened > DEEPEST and _is_deeper(document, DEEPEST):
        raise ValueError(_TOO_DEEP)
    return document


def canonical(document: Any) -> bytes:
    """Return the one text of a document that was parsed: without white space, keys in order."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def first_problem(error: ValidationError) -> str:
    """Return the first thing that a record refuses, as ``place: reason``."""
    return problems(error, most=1)


def problems(error: ValidationError, of: str = "the document", *, most: int = 3) -> str:
    """Return the first things that a record refuses, each as ``place: reason``, however long a wrong name is."""
    places = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors()[:most]]
    return "; ".join(f"{_cut(place, 80) or of}: {_cut(reason, 360)}" for place, reason in places)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


_TOO_DEEP = "it is nested too deeply"


def _is_deeper(document: Any, limit: int) -> bool:
    """Tell whether something lies more than ``limit`` lists or objects deep; found level by level."""
    level = [document]
    for _ in range(limit + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
