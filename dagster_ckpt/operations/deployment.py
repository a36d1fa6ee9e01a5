"""Deployment as operations need it: store, storage, progress, refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from dagster_ckpt.core.location import NO_SAVEPOINTS_IN_STORE, is_in_store
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Every operation takes one; nothing is opened by making it."""

    store: CoordinatorStore
    storage: CheckpointStorage
    """Checkpoint storage of the pipelines."""
    open_storage: Callable[[str], CheckpointStorage]
    """Storage at any other URI, with the same options."""
    savepoint_dir: str = ""
    """URI below which savepoints go when no target is given; empty: a target must be given."""

    def savepoint_storage(self, target: str = "") -> CheckpointStorage:
        """Return the storage savepoints are written to. Raises InvalidRequest when nobody says where."""
        chosen = target or self.savepoint_dir
        if not chosen:
            raise InvalidRequest(
                "there is no folder for savepoints: name a target, or set the deployment's savepoint folder"
            )
        if is_in_store(chosen):
            raise InvalidRequest(f"{chosen}: {NO_SAVEPOINTS_IN_STORE}")
        return self.open_storage(chosen)


class InUse(InvalidRequest):
    """Somebody still needs it: nothing was changed; the message says who, and when it will be free."""

    kind = "in_use"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteProgress:
    """Progress of long work, in bytes."""

    done: int
    total: int
    what: str
    """What was finished last, for people."""


ProgressCallback = Callable[[ByteProgress], None]


def silent(progress: ByteProgress) -> None:
    """Tell nobody."""


class Meter:
    """Adds up what several threads have done and tells it."""

    def __init__(self, total: int, tell: ProgressCallback) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._done = 0
        self._tell = tell

    def add(self, amount: int, what: str) -> None:
        """Count ``amount`` bytes of ``what`` as done."""
        with self._lock:
            self._done += amount
            self._tell(ByteProgress(done=self._done, total=self._total, what=what))
