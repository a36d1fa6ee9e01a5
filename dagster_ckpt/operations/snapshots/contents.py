"""Files of a snapshot: single ones read, and all of them verified; nothing is restored, nothing is changed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from dagster_ckpt.core import paths
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import FileEntry, FileKind, StageSnapshot
from dagster_ckpt.core.paths import StoredObject
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.operations.deployment import Meter, ProgressCallback, silent
from dagster_ckpt.runtime.files import handles_of_subtasks
from dagster_ckpt.spark.directories import PLAN
from dagster_ckpt.spark.files import run_in_parallel
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.snapshot.checkpoint_files import OffsetRecord, Unreadable, read_offset
from dagster_ckpt.spark.snapshot.stored import MissingFile, StoredSnapshot


def require_stage(source: StoredSnapshot, uid: str) -> StageSnapshot:
    """Return a stage's part. Raises NotFound, naming the stages there are."""
    found = source.metadata.stage(uid)
    if found is None:
        there = ", ".join(s.uid for s in source.metadata.stages) or "none"
        raise NotFound(f"{source.describe()} has no stage {uid!r}. Its stages: {there}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFiles:
    """Every stored object a snapshot needs, by full storage key."""

    base_uri: str
    objects: tuple[StoredObject, ...]
    """Data and file lists; ``_metadata`` is named apart, its size is recorded nowhere."""
    metadata_key: str

    @property
    def keys(self) -> frozenset[str]:
        """All keys."""
        return frozenset((*(found.key for found in self.objects), self.metadata_key))


def files_of(source: StoredSnapshot) -> SnapshotFiles:
    """Return the files that a snapshot needs in storage. Raises Corrupt for an unreadable file list, Unavailable."""
    found: dict[str, int] = {}
    for stage in source.metadata.stages:
        if stage.manifest is not None:
            found[source.key(stage.manifest.key)] = stage.manifest.size
        for entry in source.entries(stage):
            if entry.key is not None:
                found[source.key(entry.key)] = entry.size
        found |= _of_subtasks(source, stage)
    return SnapshotFiles(
        base_uri=source.storage.base_uri,
        objects=tuple(StoredObject(key, size) for key, size in found.items()),
        metadata_key=paths.metadata(source.folder),
    )


def missing_files(source: StoredSnapshot) -> tuple[str, ...]:
    """Return one sentence per file that is not there, or not of its size; contents are not read (``verify`` does).

    Raises Corrupt when a file list cannot be read, Unavailable.
    """
    prefix = source.folder if source.metadata.kind.is_savepoint else source.metadata.pipeline
    there = {stored.key: stored.size for stored in source.storage.list(prefix)}
    return tuple(
        f"{needed.key} is missing"
        if needed.key not in there
        else f"{needed.key} has another size than was written"
        for needed in files_of(source).objects
        if there.get(needed.key) != needed.size
    )


def _of_subtasks(source: StoredSnapshot, stage: StageSnapshot) -> dict[str, int]:
    """Return the files of a stage that acknowledged per subtask."""
    if stage.subtask_handles is None:
        return {}
    key = source.key(stage.subtask_handles.key)
    handles = handles_of_subtasks(source.storage, stage, key=key, owner=source.describe())
    return {key: stage.subtask_handles.size} | {handle.key: handle.size for handle in handles}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskState:
    """State of one subtask of a stage, a state partition, in a snapshot. Sizes are bytes."""

    index: int
    files: int
    bytes_full: int
    bytes_new: int
    """Written for this snapshot."""


def subtasks_of(source: StoredSnapshot, stage: StageSnapshot) -> tuple[SubtaskState, ...]:
    """Return the state of every subtask of a stage; none where it keeps none. Raises Corrupt, Unavailable."""
    files: dict[int, list[FileEntry]] = {}
    for entry in source.entries(stage) if stage.parallelism > 1 else ():
        if entry.partition is not None:
            files.setdefault(entry.partition, []).append(entry)
    number = source.metadata.checkpoint_id
    return tuple(
        SubtaskState(
            index=index,
            files=len(own),
            bytes_full=sum(entry.size for entry in own),
            bytes_new=sum(entry.size for entry in own if entry.first_checkpoint == number),
        )
        for index, own in sorted(files.items())
    )


# --- what single files say ------------------------------------------------------------------------------------


def batch_conf(source: StoredSnapshot, snapshot: StageSnapshot) -> dict[str, str]:
    """Return the Spark settings the cut's batch ran with: a restored query keeps them. Raises Corrupt, Unavailable."""
    wanted = f"query/offsets/{snapshot.batch_id}"
    entry = next((e for e in source.entries(snapshot) if e.path == wanted), None)
    return {} if entry is None else _parsed_offset(source, snapshot, entry).conf


def _parsed_offset(source: StoredSnapshot, snapshot: StageSnapshot, entry: FileEntry) -> OffsetRecord:
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-") as folder:
        copy = Path(folder) / "offset"
        source.fetch(snapshot, entry, copy)
        try:
            return read_offset(copy)
        except Unreadable as error:
            raise Corrupt(f"{entry.path} of {source.describe()} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulOperator:
    """One stateful operator of a stage's query, as Spark describes it in the checkpoint."""

    operator: str
    """Its number: ``state/<operator>``."""
    name: str
    """What Spark calls it: ``stateStoreSave``, ``symmetricHashJoin``, …"""
    stores: tuple[str, ...]
    partitions: int
    properties: str = ""
    """What the operator says of its state variables (JSON), where it has any."""


def operators_of(source: StoredSnapshot, snapshot: StageSnapshot) -> tuple[StatefulOperator, ...]:
    """Return the stateful operators of a stage: the part of its plan that its state depends on."""
    newest: dict[str, FileEntry] = {}
    for entry in source.entries(snapshot):
        is_operator = f"query/state/{entry.operator}/_metadata/" in entry.path and entry.partition is None
        if entry.kind is FileKind.STATE_SCHEMA and is_operator:
            known = newest.get(entry.operator or "")
            if known is None or _born(known) <= _born(entry):
                newest[entry.operator or ""] = entry
    found = (
        _operator(source, snapshot, number, entry) for number, entry in sorted(newest.items(), key=_by_number)
    )
    return tuple(operator for operator in found if operator is not None)


def _by_number(item: tuple[str, FileEntry]) -> int:
    return int(item[0]) if item[0].isdecimal() else 0


def _born(entry: FileEntry) -> int:
    """Return the batch a version 2 description is named after; version 1 has one for all."""
    name = entry.path.rpartition("/")[2].partition("_")[0]
    return int(name) if name.isdecimal() else -1


def _operator(
    source: StoredSnapshot, snapshot: StageSnapshot, number: str, entry: FileEntry
) -> StatefulOperator | None:
    lines = source.read(snapshot, entry).decode("utf-8", "replace").split("\n", 1)
    try:
        document: dict[str, Any] = parse_json(lines[1])
        stores: list[dict[str, Any]] = document.get("stateStoreInfo") or []
        return StatefulOperator(
            operator=number,
            name=str(document.get("operatorInfo", {}).get("operatorName", "")),
            stores=tuple(str(store.get("storeName", "default")) for store in stores),
            partitions=max((int(store.get("numPartitions", 0)) for store in stores), default=0),
            properties=str(document.get("operatorPropertiesJson", "")),
        )
    except (IndexError, ValueError, TypeError, AttributeError, OverflowError):
        return None  # a newer Spark describes operators in another way: the state itself is still readable


def readers_of(source: StoredSnapshot, snapshot: StageSnapshot) -> dict[str, str]:
    """Return, by the number Spark has for a source, the stage of the chain that reads it; empty outside of a chain."""
    try:
        entry = next((entry for entry in source.entries(snapshot) if entry.path == PLAN), None)
        plan = {} if entry is None else parse_json(source.read(snapshot, entry))
    except (ValueError, NotFound, Corrupt):
        return {}  # it is for people only: the restore itself compares it
    stages = plan.get("stages") if isinstance(plan, dict) else None
    if not isinstance(stages, list):
        return {}
    return {str(number): str(stage) for number, stage in enumerate(stages)}


def prepared_batches_of(source: StoredSnapshot, snapshot: StageSnapshot) -> tuple[PreparedBatch, ...]:
    """Return the committables a sink's part holds: batches prepared and not published at the cut."""
    wanted = set(snapshot.table.prepared) if snapshot.table is not None else set()
    return _each(
        source,
        snapshot,
        [e for e in source.entries(snapshot) if e.kind is FileKind.COMMITTABLE],
        lambda batch: batch.batch_id in wanted,
    )


def _each(
    source: StoredSnapshot,
    snapshot: StageSnapshot,
    entries: list[FileEntry],
    chosen: Callable[[PreparedBatch], bool],
) -> tuple[PreparedBatch, ...]:
    try:
        batches = [PreparedBatch.model_validate_json(source.read(snapshot, entry)) for entry in entries]
    except ValueError as error:
        raise Corrupt(f"a committable of {source.describe()} cannot be read: {error}") from error
    return tuple(batch for batch in batches if chosen(batch))


NO_CHECKSUM = (
    "its _metadata was written before it carried a checksum: an edit of it that still reads well is not found; "
    "'dagster-ckpt export' makes a copy that has one"
)


class ProblemKind(StrEnum):
    """Problem with a file."""

    MISSING = "missing"
    DAMAGED = "damaged"
    """It is there, with other bytes than were written."""
    UNREADABLE = "unreadable"
    """A stage's file list: nothing can be said about the stage's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """One file that a restore would stumble over."""

    stage: str
    path: str
    """Relative to the stage's working directory; of a file list, its key."""
    problem: ProblemKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Result of a verification."""

    snapshot: str
    uri: str
    stages: int
    files: int
    bytes: int
    problems: tuple[FileProblem, ...]
    remarks: tuple[str, ...] = ()
    """What could not be compared, though nothing is known to be wrong."""

    @property
    def is_intact(self) -> bool:
        """True where every file was read and is as it was written."""
        return not self.problems


def not_opened(name: str, uri: str, error: NotFound | Corrupt) -> Verified:
    """Return the verdict on a listed snapshot that cannot be opened: its ``_metadata`` is gone, or damaged."""
    kind = ProblemKind.MISSING if isinstance(error, NotFound) else ProblemKind.UNREADABLE
    problem = FileProblem(stage="", path="_metadata", problem=kind, message=str(error))
    return Verified(snapshot=name, uri=uri, stages=0, files=0, bytes=0, problems=(problem,))


def verify_snapshot(
    source: StoredSnapshot, *, progress: ProgressCallback = silent, parallelism: int = 8
) -> Verified:
    """Read every file of a snapshot and compare size and checksum; all problems are reported, not only the first.

    Raises Unavailable when the storage cannot be reached: then nothing is known.
    """
    problems: list[FileProblem] = []
    work: list[tuple[StageSnapshot, FileEntry]] = []
    for stage in source.metadata.stages:
        try:
            work += [(stage, entry) for entry in source.entries(stage)]
        except Corrupt as error:
            path = stage.manifest.key if stage.manifest else stage.uid
            problems.append(_problem(stage, path, ProblemKind.UNREADABLE, str(error)))
    meter = Meter(sum(entry.size for _, entry in work), progress)
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-verify-") as folder:

        def check(item: tuple[int, tuple[StageSnapshot, FileEntry]]) -> None:
            stage, entry = item[1]
            found = _check(source, stage, entry, Path(folder) / str(item[0]))
            if found is not None:
                problems.append(found)
            meter.add(entry.size, f"{stage.uid}/{entry.path}")

        run_in_parallel(check, list(enumerate(work)), parallelism=parallelism)
    return Verified(
        snapshot=source.describe(),
        uri=source.uri,
        stages=len(source.metadata.stages),
        files=len(work),
        bytes=sum(entry.size for _, entry in work),
        problems=tuple(sorted(problems, key=lambda p: (p.stage, p.path))),
        remarks=() if source.has_own_checksum else (NO_CHECKSUM,),
    )


def _check(
    source: StoredSnapshot, stage: StageSnapshot, entry: FileEntry, scratch: Path
) -> FileProblem | None:
    try:
        source.fetch(stage, entry, scratch)
    except MissingFile as error:
        return _problem(stage, entry.path, ProblemKind.MISSING, str(error))
    except Corrupt as error:
        return _problem(stage, entry.path, ProblemKind.DAMAGED, str(error))
    scratch.unlink()
    return None


def _problem(stage: StageSnapshot, path: str, kind: ProblemKind, message: str) -> FileProblem:
    return FileProblem(stage=stage.uid, path=path, problem=kind, message=message)
