"""The files a stage's stored manifest names, as the coordinator's shared-state registry wants them."""

from __future__ import annotations

from collections.abc import Iterator

from dagster_ckpt.core.messages import StateHandle, StateScope
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.spark.snapshot.stored import read_manifest
from dagster_ckpt.spark.snapshot.upload import SHARED_KINDS


def handles_in_manifest(storage: CheckpointStorage, snapshot: StageSnapshot) -> Iterator[StateHandle]:
    """Yield the manifest itself and every stored file it names. Raises MissingFile, Corrupt, Unavailable."""
    if snapshot.manifest is None:
        return
    yield StateHandle(snapshot.manifest.key, snapshot.manifest.size)
    for entry in read_manifest(storage, snapshot):
        if entry.key is not None:
            scope = StateScope.SHARED if entry.kind in SHARED_KINDS else StateScope.EXCLUSIVE
            yield StateHandle(entry.key, entry.size, scope)
