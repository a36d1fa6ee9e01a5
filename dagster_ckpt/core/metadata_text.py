"""The text of ``_metadata``: how it is written, and the sentences a reader gets when it cannot be read.

Its last field is a checksum over all the others, so that a damaged number is not taken for another position. It is
no signature: who rewrites the file can compute it again, which is why the coordinator's record keeps a digest too.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue, ValidationError

from dagster_ckpt.core.json_text import canonical, parse_json, problems
from dagster_ckpt.core.model import METADATA_FORMAT_VERSION, CheckpointMetadata, Record
from dagster_ckpt.core.units import size
from dagster_ckpt.errors import Corrupt, InvalidRequest

LARGEST = 16 * 1024 * 1024
"""Bytes of ``_metadata`` at most: it is read whole."""
CHECKSUM = "checksum"
"""Field of the checksum: ``sha256:<hex>`` over the other fields as ``canonical`` spells them."""


@dataclass(frozen=True, slots=True)
class DecodedMetadata:
    """Metadata read from ``_metadata``, and whether a checksum confirmed it."""

    metadata: CheckpointMetadata
    has_checksum: bool
    """False: it was written before ``_metadata`` had one."""


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """Return the content of ``_metadata``: JSON, indented for people, UTF-8, its checksum last."""
    # Left out where it says nothing: versions before it refuse what they do not know.
    silent = {number: {"topic_ids"} for number, stage in enumerate(metadata.stages) if not stage.topic_ids}
    left_out: dict[str, Any] = {"stages": silent}
    if metadata.first_number is None:
        left_out["first_number"] = True
    if not metadata.left_tables:
        left_out["left_tables"] = True
    text = metadata.model_dump_json(indent=2, exclude=left_out)
    if len(text) > LARGEST:
        raise InvalidRequest(
            f"_metadata would have {size(len(text))}, and {size(LARGEST)} are the most that is read"
        )
    checksum = _checksum_of(canonical(parse_json(text)))
    fields = text.removesuffix("\n}")
    return f'{fields},\n  "{CHECKSUM}": "{checksum}"\n}}\n'.encode()


def decode_metadata(content: bytes, *, name: str) -> CheckpointMetadata:
    """Return the metadata in ``_metadata``; raises as ``read_metadata_text`` does."""
    return read_metadata_text(content, name=name).metadata


def read_metadata_text(content: bytes, *, name: str) -> DecodedMetadata:
    """Return the metadata in ``_metadata``; ``name`` (its key or URI) is for the message.

    Raises Corrupt for anything but complete metadata of the format this version writes: nothing is guessed.
    """
    if len(content) > LARGEST:
        raise Corrupt(
            f"{name} has {size(len(content))}: no checkpoint metadata has more than {size(LARGEST)}"
        )
    document = _document(content, name)
    has_checksum = CHECKSUM in document
    recorded = document.pop(CHECKSUM, None)
    try:
        text = canonical(document)
        metadata = CheckpointMetadata.model_validate_json(text)
    except ValidationError as error:
        raise Corrupt(
            f"{name} is not valid checkpoint metadata ({problems(error)}): it is damaged, or a newer library wrote it"
        ) from error
    except ValueError as error:
        raise _incomplete(name, error) from error
    if has_checksum and recorded != _checksum_of(text):
        raise Corrupt(
            f"{name} is not as it was written (its checksum differs): it is damaged, or was edited; "
            "restore from another checkpoint or savepoint"
        )
    return DecodedMetadata(metadata, has_checksum=has_checksum)


def _document(content: bytes, name: str) -> dict[str, Any]:
    try:
        document = parse_json(content)
    except ValueError as error:
        raise _incomplete(name, error) from error
    if not isinstance(document, dict) or "format_version" not in document:
        raise Corrupt(f"{name} is not checkpoint metadata of dagster_ckpt: it names no format_version")
    if document["format_version"] != METADATA_FORMAT_VERSION:
        raise Corrupt(
            f"{name} has format version {_shortened(document['format_version'])}; this library reads version "
            f"{METADATA_FORMAT_VERSION}: use the library version that wrote it"
        )
    return document


def _incomplete(name: str, error: ValueError) -> Corrupt:
    return Corrupt(
        f"{name} is not complete JSON ({error}): it is damaged or no checkpoint metadata; "
        "restore from another checkpoint"
    )


def _shortened(value: object) -> str:
    text = repr(value) if isinstance(value, (int, float, str)) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:40]}…"


def _checksum_of(text: bytes) -> str:
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


MAX_STATE_BYTES = 1 << 20
"""Longest text of a state: it is part of the coordinator's record, which is written several times per checkpoint."""


class HookState(Record):
    """Stored state of an object of the author's: a hook, or a stage's."""

    format_version: Literal[1] = 1
    encoding: Literal["json", "base64"]
    value: JsonValue


def encode_state(whose: str, state: Any) -> str:
    """Return the text of a state; ``whose`` is for the message: ``hook 'ledger'``.

    Raises InvalidRequest for one that would not come back as it is, or is too long.
    """
    if isinstance(state, bytes):
        saved = HookState(encoding="base64", value=base64.b64encode(state).decode())
    else:
        saved = HookState(encoding="json", value=_checked(whose, state))
    text = saved.model_dump_json()
    if len(text) > MAX_STATE_BYTES:
        raise InvalidRequest(
            f"the state of {whose} takes {len(text):,} bytes, more than {MAX_STATE_BYTES:,}: write it to a "
            "file of your own and return its path"
        )
    return text


def _checked(whose: str, state: Any) -> Any:
    try:
        same = json.loads(json.dumps(state, allow_nan=False)) == state
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the state of {whose} is no JSON ({error}): {_USE}") from error
    if not same:
        raise InvalidRequest(f"the state of {whose} would not come back from JSON as it is: {_USE}")
    return state


_USE = "return bytes, or text, numbers, booleans, None, lists and dicts with text keys"


def decode_state(whose: str, text: str) -> Any:
    """Return the state that was encoded. Raises Corrupt."""
    try:
        saved = HookState.model_validate_json(text)
        if saved.encoding == "base64":
            return base64.b64decode(str(saved.value), validate=True)
    except (ValidationError, ValueError) as error:
        raise Corrupt(
            f"the saved state of {whose} is not as it was written, or a newer library wrote it: "
            f"restore from another checkpoint, or use that library ({error})"
        ) from error
    return saved.value
