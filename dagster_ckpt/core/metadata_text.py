"""The text of ``_metadata``: how it is written, and the sentences a reader gets when it cannot be read."""

from __future__ import annotations

import json

from pydantic import ValidationError

from dagster_ckpt.core.model import METADATA_FORMAT_VERSION, CheckpointMetadata
from dagster_ckpt.errors import Corrupt

__all__ = ["decode_metadata", "encode_metadata"]


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """Return the content of ``_metadata``: JSON, indented for people, UTF-8."""
    return (metadata.model_dump_json(indent=2) + "\n").encode()


def decode_metadata(content: bytes, *, name: str) -> CheckpointMetadata:
    """Return what ``_metadata`` says; ``name`` (its key or URI) is for the message.

    Raises Corrupt for anything but complete metadata of the format this version writes: nothing is guessed.
    """
    try:
        document = json.loads(content)
    except ValueError as error:
        raise Corrupt(
            f"{name} is not complete JSON ({error}): it is damaged or no checkpoint metadata; "
            "restore from another checkpoint"
        ) from error
    if not isinstance(document, dict) or "format_version" not in document:
        raise Corrupt(f"{name} is not checkpoint metadata of dagster_ckpt: it names no format_version")
    if document["format_version"] != METADATA_FORMAT_VERSION:
        raise Corrupt(
            f"{name} has format version {document['format_version']!r}; this library reads version "
            f"{METADATA_FORMAT_VERSION}: use the library version that wrote it"
        )
    try:
        return CheckpointMetadata.model_validate_json(content)
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        raise Corrupt(
            f"{name} is not valid checkpoint metadata ({lines}): it is damaged, or a newer library wrote it"
        ) from error
