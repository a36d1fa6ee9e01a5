"""A snapshot copied to another place as a savepoint: self-contained, verified while it is copied, relocatable.

``_metadata`` is written last, so a copy that was interrupted never looks complete.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from dagster_ckpt.core import paths
from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.json_text import first_problem, parse_json
from dagster_ckpt.core.metadata_text import encode_metadata
from dagster_ckpt.core.model import (
    CheckpointKind,
    CheckpointMetadata,
    FileEntry,
    FileKind,
    LabelChanges,
    ObjectRef,
    Record,
    StageSnapshot,
)
from dagster_ckpt.core.paths import AlreadyExists, Digest, SnapshotLocation
from dagster_ckpt.core.units import size
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, Unavailable
from dagster_ckpt.operations.deployment import Deployment, Meter, ProgressCallback, silent
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot
from dagster_ckpt.operations.snapshots.contents import prepared_batches_of
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.spark.directories import PLAN
from dagster_ckpt.spark.files import run_in_parallel
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.snapshot.manifest import encode_manifest
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot

EXPORTED_FROM = "dagster_ckpt/exported_from"
"""Label of a copy: the URI it was copied from."""
_TRIES = 10


def random_suffix() -> str:
    """Return six random characters."""
    return secrets.token_hex(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyChanges:
    """Changes that a copy makes to its metadata."""

    numbered: Callable[[], CheckpointId] | None = None
    """Asked once every file was compared; None: as the original."""
    label: LabelChanges = LabelChanges()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The copy."""

    location: SnapshotLocation
    metadata: CheckpointMetadata
    files: int
    bytes: int
    keys: tuple[str, ...] = field(repr=False)
    """Every object that was written, ``_metadata`` last."""
    metadata_checksum: str = ""
    """Of its ``_metadata`` file."""

    @property
    def uri(self) -> str:
        """Its folder: what ``restore_from`` and ``import`` take."""
        return self.location.uri


def free_savepoint_folder(
    storage: CheckpointStorage, pipeline: PipelineId, *, suffix: Callable[[], str] = random_suffix
) -> str:
    """Return a savepoint folder that does not exist yet. Raises Unavailable when ten names are taken."""
    for _ in range(_TRIES):
        folder = paths.CheckpointPaths(pipeline).savepoint(suffix())
        if next(iter(storage.list(folder)), None) is None:
            return folder
    raise Unavailable(f"{_TRIES} names for a savepoint are taken in {storage.base_uri}: try again")


def export_snapshot(
    source: StoredSnapshot,
    target: CheckpointStorage,
    *,
    changes: CopyChanges = CopyChanges(),
    suffix: Callable[[], str] = random_suffix,
    progress: ProgressCallback = silent,
    parallelism: int = 8,
) -> Exported:
    """Copy a checkpoint or savepoint below ``target`` as a savepoint; the original is only read.

    Every file is compared with its checksum on the way. Raises Corrupt naming a damaged file, InvalidRequest for a
    snapshot no copy can be made of, Unavailable; what was copied is removed then. Tables are not copied: their rows
    stay where the sinks wrote them.
    """
    _refuse_foreign_lists(source)
    lists = {stage.uid: source.entries(stage) for stage in source.metadata.stages}
    folder = free_savepoint_folder(target, PipelineId(source.metadata.pipeline), suffix=suffix)
    copy = SnapshotCopy(source=source, target=target, folder=folder, parallelism=parallelism)
    copy.meter = Meter(sum(e.size for entries in lists.values() for e in entries), progress)
    try:
        stages = tuple(copy.stage(stage, lists[stage.uid]) for stage in source.metadata.stages)
        metadata = _metadata(source, stages, changes)
        written = copy.create(paths.metadata(folder), encode_metadata(metadata))
    except BaseException:
        with suppress(CheckpointError):
            target.delete(copy.written)
        raise
    return Exported(
        location=SnapshotLocation(base_uri=target.base_uri, folder=folder),
        metadata=metadata,
        files=sum(len(entries) for entries in lists.values()),
        bytes=sum(e.size for entries in lists.values() for e in entries),
        keys=tuple(copy.written),
        metadata_checksum=written.checksum,
    )


def _refuse_foreign_lists(source: StoredSnapshot) -> None:
    foreign = next((s.uid for s in source.metadata.stages if s.subtask_handles is not None), None)
    if foreign is not None:
        raise InvalidRequest(
            f"stage {foreign!r} of {source.describe()} acknowledged subtask by subtask, with files whose meaning "
            "only its own gateway knows: they cannot be copied. Take a savepoint with that gateway instead"
        )


def _metadata(
    source: StoredSnapshot, stages: tuple[StageSnapshot, ...], changes: CopyChanges
) -> CheckpointMetadata:
    given = source.metadata
    origin = {EXPORTED_FROM: source.uri}
    label = replace(given.label, labels={**given.labels, **origin})
    number = given.checkpoint_id if changes.numbered is None else changes.numbered()
    return given.model_copy(
        update={
            "checkpoint_id": number,
            "first_number": None if number == given.number_at_sinks else given.number_at_sinks,
            # A plain savepoint: 'latest' must not go back to the end of another deployment's run.
            "kind": CheckpointKind.SAVEPOINT,
            "stages": stages,
            **changes.label.applied_to(label).fields(),
        }
    )


@dataclass(slots=True, kw_only=True)
class SnapshotCopy:
    """Copy of a snapshot in progress; ``written`` grows on several threads."""

    source: StoredSnapshot
    target: CheckpointStorage
    folder: str
    parallelism: int
    written: list[str] = field(default_factory=list)
    meter: Meter = field(default_factory=lambda: Meter(0, silent))

    def stage(
        self, snapshot: StageSnapshot, entries: list[FileEntry], new: Sequence[FileEntry] = ()
    ) -> StageSnapshot:
        """Copy one stage's files, then its file list; ``new``: files that are there and belong to it as well."""
        if snapshot.manifest is None:
            return snapshot
        uid = StageUid(snapshot.uid)
        copied: list[FileEntry | None] = [None] * len(entries)
        with tempfile.TemporaryDirectory(prefix="dagster-ckpt-export-") as folder:

            def bring(item: tuple[int, FileEntry]) -> None:
                index, entry = item
                copied[index] = self._entry(snapshot, entry, Path(folder) / str(index))
                self.meter.add(entry.size, f"{uid}/{entry.path}")

            run_in_parallel(bring, list(enumerate(entries)), parallelism=self.parallelism)
        content = encode_manifest([*(entry for entry in copied if entry is not None), *new])
        key = paths.manifest(self.folder, uid)
        digest = self.create(key, content)
        manifest = ObjectRef(key=self._relative(key), size=digest.size, checksum=digest.checksum)
        return snapshot.model_copy(update={"manifest": manifest})

    def _entry(self, snapshot: StageSnapshot, entry: FileEntry, scratch: Path) -> FileEntry:
        try:
            self.source.fetch(snapshot, entry, scratch)
        except Corrupt as error:
            raise type(error)(f"{error}. Nothing was kept of the copy") from error
        if entry.inline is not None:
            scratch.unlink()
            return entry
        uid = StageUid(snapshot.uid)
        key = paths.exclusive_file(self.folder, uid, entry.path)
        stored = self.create(key, scratch)
        scratch.unlink()
        if stored != Digest(entry.size, entry.checksum):
            raise Unavailable(f"{key} changed while it was copied to {self.target.base_uri}: try again")
        return replace(entry, key=self._relative(key))

    def create(self, key: str, content: bytes | Path) -> Digest:
        """Store one object under a new key."""
        made = self.target.create(key, content)
        if isinstance(made, AlreadyExists):
            raise Unavailable(f"{key} appeared in {self.target.base_uri} meanwhile: try again")
        self.written.append(key)
        return made

    def _relative(self, key: str) -> str:
        return key.removeprefix(f"{self.folder}/")


MOST_BYTES = 16 << 20
"""Bytes of a facts file that are read; files of this library have some kilobytes a stage."""


class StageFacts(Record):
    """Facts of one stage's query."""

    plan: dict[str, Any] = Field(default_factory=dict)
    """What its state and positions depend on (``plan.json``); empty: nobody wrote it down."""
    prepared: tuple[PreparedBatch, ...] = ()
    """Batches that its sink had staged at the cut, without the names of their files."""
    rows_in_channel: bool = False
    """Rows of its inputs that it had not read are part of the snapshot."""


class ExportedFacts(Record):
    """Facts of one snapshot, as ``dagster-ckpt export`` writes them."""

    format_version: Literal[1] = 1
    snapshot: str
    """As people are told of it."""
    uri: str
    metadata: CheckpointMetadata
    """Without file lists, and without what hooks keep."""
    is_shown: bool = False
    """All tables show its rows: none of them wait."""
    stages: dict[str, StageFacts] = Field(default_factory=dict)


def facts_of_snapshot(stored: StoredSnapshot, shown: int | None = None) -> ExportedFacts:
    """Return the facts of a stored snapshot. Raises Corrupt, NotFound, Unavailable.

    ``shown``: the newest checkpoint that all tables of its pipeline show; None: it is not known.
    """
    metadata = stored.metadata
    without = {"manifest": None, "subtask_handles": None, "coordinator_state": None}
    bare = metadata.model_copy(
        update={
            "stages": tuple(stage.model_copy(update=without) for stage in metadata.stages),
            "master_states": dict.fromkeys(metadata.master_states, ""),
        }
    )
    return ExportedFacts(
        snapshot=stored.describe(),
        uri=stored.uri,
        metadata=bare,
        is_shown=metadata.kind.publishes and shown is not None and shown >= metadata.checkpoint_id,
        stages={stage.uid: _stage_facts(stored, stage) for stage in metadata.stages},
    )


def write_facts(deployment: Deployment, found: FoundSnapshot, target: str) -> int:
    """Write a snapshot's facts to a file, a path or a URI; return its bytes. Raises Corrupt, NotFound, Unavailable."""
    content = facts_of_found(deployment, found).model_dump_json(exclude_defaults=True, indent=1).encode()
    folder, _, name = (target if "://" in target else str(Path(target).absolute())).rpartition("/")
    storage = deployment.open_storage(folder)
    storage.delete([name])
    storage.create(name, content)
    return len(content)


def facts_of_found(deployment: Deployment, found: FoundSnapshot) -> ExportedFacts:
    """Return the facts of a snapshot, of which the coordinator store knows whether its rows are shown."""
    record = RecordStore(deployment.store).record(found.pipeline)
    return facts_of_snapshot(found.stored, None if record is None else record.shown_id)


def _stage_facts(stored: StoredSnapshot, stage: StageSnapshot) -> StageFacts:
    entries = stored.entries(stage)
    written = next((entry for entry in entries if entry.path == PLAN), None)
    try:
        plan = {} if written is None else parse_json(stored.read(stage, written))
    except ValueError as error:
        raise Corrupt(f"{PLAN} of stage {stage.uid} of {stored.describe()} is no JSON") from error
    return StageFacts(
        plan=plan if isinstance(plan, dict) else {},
        prepared=tuple(
            batch.model_copy(update={"files": ()}) for batch in prepared_batches_of(stored, stage)
        ),
        rows_in_channel=any(entry.kind is FileKind.CHANNEL for entry in entries),
    )


def facts_in(file: Path) -> ExportedFacts:
    """Return the facts in a file. Raises InvalidRequest for one that cannot be read, Corrupt for another content."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise Corrupt(f"{file} has over {size(MOST_BYTES)}: it holds no facts of a snapshot")
        return ExportedFacts.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error}") from error
    except ValidationError as error:
        raise Corrupt(
            f"{file} does not hold facts that this version understands ({first_problem(error)}): write it again with "
            "dagster-ckpt export SNAPSHOT FILE --facts"
        ) from error
