"""The text of a pipeline hook's state: JSON, or bytes in base64; never a pickle."""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

from pydantic import JsonValue, ValidationError

from dagster_ckpt.core.model import Record
from dagster_ckpt.errors import Corrupt, InvalidRequest

MAX_STATE_BYTES = 1 << 20
"""Longest text of a state: it is part of the coordinator's record, which is written several times per checkpoint."""


class HookState(Record):
    """Stored state of one hook."""

    format_version: Literal[1] = 1
    encoding: Literal["json", "base64"]
    value: JsonValue


def encode_state(hook: str, state: Any) -> str:
    """Return the text of a state. Raises InvalidRequest for one that would not come back as it is, or is too long."""
    if isinstance(state, bytes):
        saved = HookState(encoding="base64", value=base64.b64encode(state).decode())
    else:
        saved = HookState(encoding="json", value=_checked(hook, state))
    text = saved.model_dump_json()
    if len(text) > MAX_STATE_BYTES:
        raise InvalidRequest(
            f"the state of hook {hook!r} takes {len(text):,} bytes, more than {MAX_STATE_BYTES:,}: write it to a "
            "file of your own and return its path"
        )
    return text


def _checked(hook: str, state: Any) -> Any:
    try:
        same = json.loads(json.dumps(state, allow_nan=False)) == state
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the state of hook {hook!r} is no JSON ({error}): {_USE}") from error
    if not same:
        raise InvalidRequest(f"the state of hook {hook!r} would not come back from JSON as it is: {_USE}")
    return state


_USE = "return bytes, or text, numbers, booleans, None, lists and dicts with text keys"


def decode_state(hook: str, text: str) -> Any:
    """Return the state that was encoded. Raises Corrupt."""
    try:
        saved = HookState.model_validate_json(text)
        if saved.encoding == "base64":
            return base64.b64decode(str(saved.value), validate=True)
    except (ValidationError, ValueError) as error:
        raise Corrupt(
            f"the saved state of hook {hook!r} is not one that @pipeline_hook wrote, or a newer library wrote it: "
            f"restore from another checkpoint, or use that library ({error})"
        ) from error
    return saved.value
