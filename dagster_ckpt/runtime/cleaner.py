"""Removes the files of checkpoints that are over, in the background; deletes only what it can name.

Order: shared files nobody uses, then the folder's data, its file lists and metadata last, so that a deletion
that was interrupted can be taken up again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.record import CleanupRecord, CoordinatorRecord
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.shared_files import SUBTASK_HANDLES_FILE, SharedFiles

log = logging.getLogger("dagster_ckpt.coordinator")


class Background(Protocol):
    """Background that runs deletions."""

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work`` soon, in another thread or later."""
        ...

    def drain(self) -> None:
        """Return when everything submitted has ended, or has been given up."""
        ...


class ThreadBackground:
    """Deletions in a few threads that exist only while there is work."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work`` in a thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="checkpoint-cleaner")
        self._pool.submit(work)

    def drain(self) -> None:
        """Wait for the threads and end them; the next submission starts new ones."""
        while self._pool is not None:
            pool, self._pool = self._pool, None
            pool.shutdown(wait=True)


class Cleaner:
    """Deletes the files of one cleanup entry; doing it again does no harm."""

    def __init__(
        self,
        *,
        graph: PipelineGraph,
        shared: SharedFiles,
        storage_at: Callable[[str], CheckpointStorage],
        storage: CheckpointStorage,
    ) -> None:
        self._graph = graph
        self._shared = shared
        self._storage_at = storage_at
        self._storage = storage

    def clean(self, cleanup: CleanupRecord, record: CoordinatorRecord, free_below: CheckpointId) -> bool:
        """Return True when everything is gone; False when something failed or is still used.

        ``free_below``: shared files that no checkpoint from this one on uses go as well.
        """
        try:
            if cleanup.complete or cleanup.folder_gone:
                keys = self._shared.unused(record, cleanup, free_below)
                self._delete_shared(keys)
                self._shared.deleted(keys)
            if cleanup.folder_gone:
                return self._sweep_shared(cleanup)
            return self._folder(cleanup)
        except (CheckpointError, OSError) as error:
            log.warning("files of checkpoint %s were not deleted: %s", cleanup.checkpoint_id, error)
            return False

    def discard(self, base_uri: str, keys: Sequence[str]) -> None:
        """Delete exactly these files, except those a checkpoint shares; a failure is logged."""
        try:
            unshared = [key for key in keys if not self._shared.uses(key)]
            self._delete(self._storage_at(base_uri), unshared)
        except (CheckpointError, OSError) as error:
            log.warning("late files %s were not deleted: %s", ", ".join(keys), error)

    def _folder(self, cleanup: CleanupRecord) -> bool:
        if cleanup.location is None:
            return True
        storage = self._storage_at(cleanup.location.base_uri)
        folder = cleanup.location.folder
        found = [o.key for o in storage.list(folder)]
        used = [key for key in found if self._shared.uses(key)]
        lists = {paths.MANIFEST_FILE, SUBTASK_HANDLES_FILE}
        last = paths.metadata(folder)
        doomed = [key for key in found if key not in used]
        self._delete(storage, [k for k in doomed if k != last and k.rpartition("/")[2] not in lists])
        self._delete(storage, [k for k in doomed if k != last and k.rpartition("/")[2] in lists])
        self._delete(storage, [k for k in doomed if k == last])
        return not used

    def _sweep_shared(self, cleanup: CleanupRecord) -> bool:
        """Remove what an aborted checkpoint uploaded for sharing and nobody took up."""
        here = paths.CheckpointPaths(self._graph.pipeline)
        location = cleanup.location
        storage = self._storage if location is None else self._storage_at(location.base_uri)
        for stage in self._graph.stages:
            folder = here.shared_of(stage.uid, CheckpointId(cleanup.checkpoint_id))
            keys = [o.key for o in storage.list(folder)]
            self._delete(storage, [k for k in keys if self._shared.is_deletable(k)])
        return True

    def _delete_shared(self, keys: Sequence[str]) -> None:
        """Delete files where they are: a checkpoint from before a change of storage left them in the former one."""
        places: dict[str | None, list[str]] = {}
        for key in keys:
            places.setdefault(self._shared.place_of(key), []).append(key)
        for place, some in places.items():
            self._delete(self._storage if place is None else self._storage_at(place), some)

    def _delete(self, storage: CheckpointStorage, keys: Sequence[str]) -> None:
        """Delete in one call, for which an object store takes several threads."""
        if keys:
            storage.delete(keys)
