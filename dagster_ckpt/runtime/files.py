"""Files of an attempt's checkpoints: the registry of shared ones, and removal in the background.

Order: shared files nobody uses, then the folder's data, its file lists and metadata last, so that a deletion
that was interrupted can be taken up again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from dagster_ckpt.core import paths
from dagster_ckpt.core.checkpoint.record import CleanupRecord, CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.files.cleaning import SharedStateRegistry
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, PipelineId, relative_path
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.messages import StateHandle, StateScope
from dagster_ckpt.core.model import CheckpointMetadata, ObjectRef, StageSnapshot
from dagster_ckpt.core.paths import AlreadyExists, SnapshotLocation
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, NotFound
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.stored import MissingFile, read_list, read_metadata

log = logging.getLogger("dagster_ckpt.coordinator")


class SharedFiles:
    """Shared files and the checkpoints that use them; thread-safe."""

    def __init__(
        self,
        *,
        pipeline: PipelineId,
        highest_not_claimed: int | None,
        storage_at: Callable[[str], CheckpointStorage],
        read_manifest: ReadHandles,
    ) -> None:
        self._lock = threading.Lock()
        self._layout = paths.CheckpointPaths(pipeline)
        self._storage_at = storage_at
        self._read_manifest = read_manifest
        self._known: set[int] = set()
        limit = None if highest_not_claimed is None else CheckpointId(highest_not_claimed)
        self._registry = SharedStateRegistry(highest_not_claimed=limit)
        self._heard: deque[tuple[CheckpointId, Sequence[StateHandle]]] = deque()
        """Acknowledged, and taken up before the registry is next looked at: most of what a message would cost."""
        self._doomed: set[str] = set()
        """Unused, and not yet known to be deleted."""
        self._place: dict[str, str] = {}
        """Base URI of files this process learnt of from a checkpoint's lists: its storage may be a former one."""

    def register(self, checkpoint_id: CheckpointId, handles: Sequence[StateHandle]) -> None:
        """Note that a checkpoint uses these files (those in the shared folder); late messages count as well."""
        self._heard.append((checkpoint_id, handles))

    def _catch_up(self) -> None:
        """Take up what was acknowledged; under the lock."""
        while self._heard:
            checkpoint_id, handles = self._heard.popleft()
            self._register(checkpoint_id, [h for h in handles if h.scope is StateScope.SHARED])

    def _register(self, checkpoint_id: CheckpointId, handles: Iterable[StateHandle]) -> None:
        for handle in handles:
            creator = None
            if handle.key not in self._registry:
                creator = self._layout.shared_creator(handle.key)
            try:
                self._registry.register(handle.key, handle, checkpoint_id, created_by=creator)
            except InvalidRequest as error:
                # The file stays registered with what was acknowledged first; a restore checks every size.
                log.warning("checkpoint %s: %s", checkpoint_id, error)

    def completed(self, checkpoint_id: CheckpointId) -> None:
        """Note that every acknowledgement of a checkpoint was heard by this process, and it is complete."""
        with self._lock:
            self._catch_up()
            self._known.add(checkpoint_id)
            self._registry.checkpoint_completed(checkpoint_id)

    def unused(
        self, record: CoordinatorRecord, cleanup: CleanupRecord, limit: CheckpointId
    ) -> tuple[str, ...]:
        """Return the shared files that no checkpoint from ``limit`` on uses, and no retained one before it.

        Say so (``deleted``) when they are gone.

        Until then they are returned again: a deletion that failed is tried again. Raises Unavailable, NotFound or
        Corrupt when the file list of a retained checkpoint cannot be read: then nothing is known to be unused.
        """
        self.load(record)
        with self._lock:
            self._catch_up()
            self._load_doomed(cleanup)
            files = self._registry.unregister_unused(limit, kept=_before(limit, record)).files
            self._doomed |= {f.key for f in files if self._layout.shared_creator(f.key) is not None}
            self._doomed -= {key for key in self._doomed if key in self._registry}
            return tuple(sorted(self._doomed))

    def deleted(self, keys: Iterable[str]) -> None:
        """Note that files ``unused`` has returned are gone."""
        with self._lock:
            self._doomed -= set(keys)

    def place_of(self, key: str) -> str | None:
        """Return the base URI a file is below; None: the pipeline's own storage."""
        return self._place.get(key)

    def load(self, record: CoordinatorRecord) -> None:
        """Read the file lists of retained checkpoints this process did not see; raises as ``unused``."""
        with self._lock:
            self._catch_up()
            for entry in record.completed:
                self._load_retained(entry)

    def uses(self, key: str) -> bool:
        """True while some checkpoint uses the file."""
        with self._lock:
            self._catch_up()
            return key in self._registry

    def is_deletable(self, key: str) -> bool:
        """True for a file in this pipeline's shared folder that nobody uses and that is ours to delete."""
        creator = self._layout.shared_creator(key)
        limit = self._registry.highest_not_claimed or 0
        return creator is not None and creator > limit and not self.uses(key)

    def _load_retained(self, entry: CompletedRecord) -> None:
        if entry.checkpoint_id in self._known:
            return
        if not entry.properties.unclaimed:
            self._register(
                CheckpointId(entry.checkpoint_id), self._handles(entry.location, entry.metadata_checksum)
            )
        self._known.add(entry.checkpoint_id)

    def _load_doomed(self, cleanup: CleanupRecord) -> None:
        if cleanup.checkpoint_id in self._known or not cleanup.complete or cleanup.location is None:
            return
        try:
            handles = self._handles(cleanup.location)
        except (NotFound, MissingFile):
            handles = []  # an earlier try has removed its lists already
        self._register(CheckpointId(cleanup.checkpoint_id), handles)
        self._known.add(cleanup.checkpoint_id)

    def _handles(self, location: SnapshotLocation, recorded: str = "") -> list[StateHandle]:
        storage = self._storage_at(location.base_uri)
        metadata = read_metadata(storage, location.folder, recorded=recorded)
        if metadata.kind.is_savepoint:
            return []  # self-contained: all its files are in its folder
        found = handles_of(storage, metadata, self._read_manifest)
        shared = [h for h in found if h.scope is StateScope.SHARED]
        self._place.update((h.key, location.base_uri) for h in shared)
        return shared


def _before(limit: CheckpointId, record: CoordinatorRecord) -> list[CheckpointId]:
    """Return the checkpoints that are retained beside the newest; savepoints share no file."""
    entries = (c for c in record.completed if not c.kind.is_savepoint)
    return [CheckpointId(c.checkpoint_id) for c in entries if c.checkpoint_id < limit]


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
        made = digest_bytes(content)
    return ObjectRef(key=key, size=made.size, checksum=made.checksum)


def handles_of(
    storage: CheckpointStorage, metadata: CheckpointMetadata, read_manifest: ReadHandles
) -> list[StateHandle]:
    """Return every file a checkpoint refers to, as far as its lists say."""
    found: list[StateHandle] = []
    for snapshot in metadata.stages:
        if snapshot.manifest is not None:
            found += read_manifest(storage, snapshot)
        found += handles_of_subtasks(storage, snapshot)
    return found


def handles_of_subtasks(
    storage: CheckpointStorage, snapshot: StageSnapshot, *, key: str | None = None, owner: str = ""
) -> list[StateHandle]:
    """Return the files of a stage that acknowledged per subtask; none where it did not.

    ``key`` and ``owner`` as for ``read_list``. Raises MissingFile, Corrupt, Unavailable.
    """
    if snapshot.subtask_handles is None:
        return []
    content = read_list(storage, snapshot.subtask_handles, uid=snapshot.uid, key=key, owner=owner)
    try:
        return [
            StateHandle(relative_path(name), int(size), StateScope(scope))
            for found in parse_json(content).values()
            for name, size, scope in found
        ]
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Corrupt(
            f"the file list of stage {snapshot.uid} in {owner or storage.base_uri} cannot be understood "
            f"({str(error)[:200]}): restore from another checkpoint or savepoint"
        ) from error


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

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work`` in a thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(2, thread_name_prefix="checkpoint-cleaner")
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
