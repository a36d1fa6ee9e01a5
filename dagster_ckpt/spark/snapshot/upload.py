"""Uploads a stage's part of a checkpoint: new files only, checksums recorded, the manifest last.

Small files are kept in the manifest itself, within a budget: a checkpoint of many small change files is one
write instead of many. What was carried over from the previous checkpoint is never read again when its name
identifies its content. A failure or a cancellation removes what this upload wrote, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from dagster_ckpt.core import paths
from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.messages import StateHandle, StateScope
from dagster_ckpt.core.model import FileEntry, FileKind, ObjectRef, SnapshotMetrics, StageSnapshot
from dagster_ckpt.core.paths import AlreadyExists, Digest, local_path
from dagster_ckpt.digests import digest_bytes, digest_file
from dagster_ckpt.errors import CheckpointError, Declined, Unavailable
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.spark.files import run_in_parallel
from dagster_ckpt.spark.snapshot.manifest import encode_manifest
from dagster_ckpt.spark.snapshot.state_files import PlannedFile
from dagster_ckpt.spark.snapshot.stored import read_manifest

INLINE_THRESHOLD = 20 * 1024
"""Bytes of a file that is kept in the manifest, as long as that has room (Flink: data-inline-threshold)."""

INLINE_BUDGET = 32 * 1024
"""Bytes of file content a checkpoint's manifest holds at most: keeps its cost proportional to what changed."""

SAVEPOINT_INLINE_BUDGET = 32 * 1024 * 1024
"""The same for a savepoint, which writes everything anyway: one large write instead of many small ones."""

BYTES_WORTH_A_THREAD = 8 * 1024 * 1024
"""Less is copied on a local file system sooner than threads are woken, where rows keep all cores busy."""

_MAX_TRIES = 100

SHARED_KINDS = frozenset(
    {
        FileKind.SOURCE_LOG,
        FileKind.STATE_SNAPSHOT,
        FileKind.STATE_DELTA,
        FileKind.STATE_SST,
        FileKind.STATE_SCHEMA,
    }
)


class UploadMode(StrEnum):
    """Mode of an upload: what it may build on, and where its files go."""

    INCREMENTAL = "incremental"
    """Files of the previous checkpoint are named again; new ones go to the shared folder."""
    FULL = "full"
    """Every file is written, to the shared folder: later checkpoints may build on it."""
    SELF_CONTAINED = "self_contained"
    """Every file is written into the checkpoint's own folder, with keys relative to it (savepoints)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUpload:
    """Stored part of a stage, ready to be acknowledged."""

    manifest: ObjectRef
    """Key relative to the storage's base; for a savepoint to its folder."""
    entries: tuple[FileEntry, ...]
    metrics: SnapshotMetrics
    """``async_ms`` and the byte and file counts; manifest bytes are not among them."""
    handles: tuple[StateHandle, ...]
    """Every stored object the snapshot refers to, reused ones included; full storage keys."""
    written: tuple[str, ...]
    """Storage keys this upload created: what to delete when the acknowledgement is refused."""


@dataclass(frozen=True, slots=True)
class _Target:
    """Target of one checkpoint's files."""

    storage: CheckpointStorage
    pipeline: PipelineId
    uid: StageUid
    checkpoint_id: CheckpointId
    folder: str
    mode: UploadMode

    @property
    def is_local(self) -> bool:
        return local_path(self.storage.base_uri) is not None

    @property
    def inline_budget(self) -> int:
        return SAVEPOINT_INLINE_BUDGET if self.mode is UploadMode.SELF_CONTAINED else INLINE_BUDGET

    def key_of(self, file: PlannedFile) -> str:
        if self.mode is UploadMode.SELF_CONTAINED or file.kind not in SHARED_KINDS:
            return paths.exclusive_file(self.folder, self.uid, file.path)
        return paths.CheckpointPaths(self.pipeline).shared_file(self.uid, self.checkpoint_id, file.path)

    def recorded(self, key: str) -> str:
        """Return ``key`` as manifests spell it: a savepoint's keys are relative to its folder."""
        match self.mode:
            case UploadMode.SELF_CONTAINED:
                return key.removeprefix(f"{self.folder}/")
            case UploadMode.INCREMENTAL | UploadMode.FULL:
                return key
            case _:
                assert_never(self.mode)


def upload_stage(
    *,
    files: Sequence[PlannedFile],
    stage_dir: Path,
    storage: CheckpointStorage,
    pipeline: PipelineId,
    uid: StageUid,
    checkpoint_id: CheckpointId,
    folder: str,
    mode: UploadMode,
    previous: Sequence[FileEntry] = (),
    inline_threshold: int = INLINE_THRESHOLD,
    parallelism: int = 8,
    canceled: Callable[[], bool] = lambda: False,
    manifest_aside: Path | None = None,
) -> StageUpload:
    """Store ``files`` and their manifest below ``folder`` (or ``shared/``); blocks until done.

    ``previous`` are the entries of a checkpoint whose files are sure to be kept while this one is; they are
    used in mode INCREMENTAL only. ``manifest_aside``: a new file of the caller's to store the manifest from, as one of
    the others, so that it is on disk with the next object that is created from bytes; without it, at once. Raises
    Declined when a file vanished or changed since it was planned (plan again) or when ``canceled`` became true, and
    what the storage raises; in each case what was written is removed first.
    """
    upload = _Upload(
        target=_Target(storage, pipeline, uid, checkpoint_id, folder, mode),
        stage_dir=stage_dir,
        known={e.path: e for e in previous} if mode is UploadMode.INCREMENTAL else {},
        inline_threshold=inline_threshold,
        parallelism=parallelism,
        canceled=canceled,
        manifest_aside=manifest_aside,
    )
    try:
        return upload.run(files)
    except BaseException:
        with suppress(CheckpointError):
            storage.delete(upload.written)
        raise


@dataclass(slots=True, kw_only=True)
class _Upload:
    """One upload in progress; ``entries``, ``written`` and ``new`` grow on several threads."""

    target: _Target
    stage_dir: Path
    known: dict[str, FileEntry]
    inline_threshold: int
    parallelism: int
    canceled: Callable[[], bool]
    manifest_aside: Path | None = None
    entries: dict[str, FileEntry] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    new: list[int] = field(default_factory=list)
    """Sizes of the files that were not carried over."""

    def run(self, files: Sequence[PlannedFile]) -> StageUpload:
        """Settle every file, then store the manifest."""
        began = time.perf_counter()
        rest = self._carry_over(files)
        self._store_all(self._inline(rest))
        entries = tuple(self.entries[file.path] for file in files)
        key, digest = self._create_manifest(encode_manifest(entries))
        manifest = ObjectRef(key=self.target.recorded(key), size=digest.size, checksum=digest.checksum)
        return StageUpload(
            manifest=manifest,
            entries=entries,
            metrics=SnapshotMetrics(
                async_ms=(time.perf_counter() - began) * 1e3,
                bytes_full=sum(e.size for e in entries),
                bytes_new=sum(self.new),
                files_full=len(entries),
                files_new=len(self.new),
            ),
            handles=tuple(_handles(entries, manifest, self.target)),
            written=tuple(self.written),
        )

    def _create_manifest(self, content: bytes) -> tuple[str, Digest]:
        source: bytes | Path = content
        if self.manifest_aside is not None:
            try:
                self.manifest_aside.write_bytes(content)
            except FileNotFoundError:
                # Where hard links are impossible there are no pins, and no folder of them.
                self.manifest_aside.parent.mkdir(parents=True, exist_ok=True)
                self.manifest_aside.write_bytes(content)
            source = self.manifest_aside
        return self._create(paths.manifest(self.target.folder, self.target.uid), source)

    # --- carried over, kept in the manifest, or stored ---

    def _carry_over(self, files: Sequence[PlannedFile]) -> list[PlannedFile]:
        """Name again what the previous checkpoint has under a name that identifies it; returns the rest."""
        rest = []
        for file in files:
            earlier = self.known.get(file.path)
            if file.content_named and earlier and _may_carry(earlier) and earlier.size == file.size:
                self.entries[file.path] = earlier
            else:
                rest.append(file)
        return rest

    def _inline(self, files: list[PlannedFile]) -> list[PlannedFile]:
        """Put small files into the manifest while its budget lasts; returns the others."""
        budget = self.target.inline_budget - sum(len(e.inline or b"") for e in self.entries.values())
        others = []
        # Files of this checkpoint alone first, for nothing else saves their upload; then the smallest.
        for file in sorted(files, key=lambda f: (f.kind in SHARED_KINDS, f.size)):
            if file.size > min(self.inline_threshold, budget):
                others.append(file)
                continue
            self._check_cancelled()
            content = self._read(file)
            digest = digest_bytes(content)
            if self._carry_if_same(file, digest) is None:
                self._record(file, digest, inline=content)
            budget -= len(self.entries[file.path].inline or b"")
        return others

    def _carry_if_same(self, file: PlannedFile, digest: Digest) -> FileEntry | None:
        earlier = self.known.get(file.path)
        if earlier is None or not _may_carry(earlier):
            return None
        if (earlier.size, earlier.checksum) != (digest.size, digest.checksum):
            return None
        self.entries[file.path] = earlier
        return earlier

    def _record(
        self, file: PlannedFile, digest: Digest, *, key: str | None = None, inline: bytes | None = None
    ) -> None:
        self.entries[file.path] = FileEntry(
            path=file.path,
            size=digest.size,
            checksum=digest.checksum,
            kind=file.kind,
            operator=file.operator,
            partition=file.partition,
            first_checkpoint=self.target.checkpoint_id,
            key=key,
            inline=inline,
        )
        self.new.append(file.size)

    # --- reading and storing ---

    def _store_all(self, files: list[PlannedFile]) -> None:
        """Store files, largest first; on several threads where that takes longer than waking them."""
        ordered = sorted(files, key=lambda f: -f.size)
        is_little = sum(file.size for file in files) < BYTES_WORTH_A_THREAD and self.target.is_local
        run_in_parallel(self._store, ordered, parallelism=1 if is_little else self.parallelism)

    def _store(self, file: PlannedFile) -> None:
        self._check_cancelled()
        source = Path(self._source(file))
        try:
            earlier = self.known.get(file.path)
            may_be_same = earlier is not None and earlier.size == file.size
            if may_be_same and self._carry_if_same(file, digest_file(source)):
                return
            key, digest = self._create(self.target.key_of(file), source)
        except FileNotFoundError as error:
            raise _vanished(file) from error
        except CheckpointError as error:
            if not source.exists():
                raise _vanished(file) from error
            raise
        if digest.size != file.size:
            raise _changed(file)
        self._record(file, digest, key=self.target.recorded(key))

    def _create(self, key: str, source: bytes | Path) -> tuple[str, Digest]:
        """Create ``key``; a name that an earlier try of this checkpoint left behind is stepped past."""
        for number in range(_MAX_TRIES):
            candidate = key if number == 0 else f"{key}.try-{number + 1}"
            match self.target.storage.create(candidate, source):
                case Digest() as digest:
                    self.written.append(candidate)
                    return candidate, digest
                case AlreadyExists():
                    continue
        raise Unavailable(
            f"{key} and {_MAX_TRIES - 1} names after it exist in {self.target.storage.base_uri}"
        )

    def _source(self, file: PlannedFile) -> str:
        return file.source if file.source is not None else f"{self.stage_dir}/{file.path}"

    def _read(self, file: PlannedFile) -> bytes:
        try:
            with open(self._source(file), "rb", buffering=0) as source:
                content = source.read()
        except FileNotFoundError as error:
            raise _vanished(file) from error
        if len(content) != file.size:
            raise _changed(file)
        return content

    def _check_cancelled(self) -> None:
        if self.canceled():
            raise Declined("the upload was canceled: its checkpoint is over")


def _may_carry(earlier: FileEntry) -> bool:
    """Tell whether a later checkpoint may name it: what one checkpoint owns is deleted with it."""
    return earlier.key is None or earlier.kind in SHARED_KINDS


def _vanished(file: PlannedFile) -> Declined:
    return Declined(f"{file.path} was removed by Spark before it was uploaded: capture again")


def _changed(file: PlannedFile) -> Declined:
    return Declined(f"{file.path} was replaced by Spark while it was uploaded: capture again")


def _handles(entries: Iterable[FileEntry], manifest: ObjectRef, target: _Target) -> Iterator[StateHandle]:
    own = target.mode is UploadMode.SELF_CONTAINED
    prefix = f"{target.folder}/" if own else ""
    yield StateHandle(prefix + manifest.key, manifest.size, StateScope.EXCLUSIVE)
    for entry in entries:
        if entry.key is not None:
            shared = not own and entry.kind in SHARED_KINDS
            scope = StateScope.SHARED if shared else StateScope.EXCLUSIVE
            yield StateHandle(prefix + entry.key, entry.size, scope)


def handles_in_manifest(storage: CheckpointStorage, snapshot: StageSnapshot) -> Iterator[StateHandle]:
    """Yield the manifest itself and every stored file it names. Raises MissingFile, Corrupt, Unavailable."""
    if snapshot.manifest is None:
        return
    yield StateHandle(snapshot.manifest.key, snapshot.manifest.size)
    for entry in read_manifest(storage, snapshot):
        if entry.key is not None:
            scope = StateScope.SHARED if entry.kind in SHARED_KINDS else StateScope.EXCLUSIVE
            yield StateHandle(entry.key, entry.size, scope)
