"""Which stored files a completed checkpoint refers to: read back when its acknowledgements were not heard here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from dagster_ckpt.core.messages import StateHandle, StateScope
from dagster_ckpt.core.model import CheckpointMetadata, ObjectRef, StageSnapshot
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ports import AlreadyExists, CheckpointStorage

ReadHandles = Callable[[CheckpointStorage, StageSnapshot], Iterable[StateHandle]]
"""Return the files a stage's manifest names. Raises Corrupt, NotFound, Unavailable."""

SUBTASK_HANDLES_FILE = "subtask_handles.json"


def no_manifest(storage: CheckpointStorage, snapshot: StageSnapshot) -> Iterable[StateHandle]:
    """Name nothing: shared files of checkpoints this process did not see are then never deleted."""
    return ()


def write_subtask_handles(
    storage: CheckpointStorage, folder: str, uid: str, handles: Mapping[int, tuple[StateHandle, ...]]
) -> ObjectRef:
    """Store the file list of a stage that acknowledged per subtask."""
    rows = {str(i): [[h.key, h.size, h.scope.value] for h in found] for i, found in sorted(handles.items())}
    key = f"{folder}/{uid}/{SUBTASK_HANDLES_FILE}"
    content = json.dumps(rows, separators=(",", ":")).encode()
    made = storage.create(key, content)
    if isinstance(made, AlreadyExists):
        if storage.read(key) != content:
            raise Corrupt(f"{key} in {storage.base_uri} is another checkpoint's: it is not overwritten")
        return ObjectRef(key=key, size=len(content), checksum="")
    return ObjectRef(key=key, size=made.size, checksum=made.checksum)


def handles_of(
    storage: CheckpointStorage, metadata: CheckpointMetadata, read_manifest: ReadHandles
) -> list[StateHandle]:
    """Return every file a checkpoint refers to, as far as its lists say."""
    found: list[StateHandle] = []
    for snapshot in metadata.stages:
        if snapshot.manifest is not None:
            found += read_manifest(storage, snapshot)
        if snapshot.subtask_handles is not None:
            found += _subtask_handles(storage, snapshot.subtask_handles.key)
    return found


def _subtask_handles(storage: CheckpointStorage, key: str) -> list[StateHandle]:
    rows = json.loads(storage.read(key))
    return [
        StateHandle(name, size, StateScope(scope)) for found in rows.values() for name, size, scope in found
    ]
