"""The durable facts a restore is decided on: what store, disks and graph say, snapshots, the lineage.

Epochs, checkpoint ids and batch ids are unique within one history only. A database that was put back, lost or swapped
knows less than the storage, the working directory and the sinks; whoever went on from it would use numbers again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core import paths
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.model import CheckpointKind, Record
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.core.request import CheckpointProperties
from dagster_ckpt.core.restore_point import At, Key, Wanted
from dagster_ckpt.errors import InvalidRequest, NotFound

WAYS_OUT = (
    "Ways out: bring back what is missing; restore_from a snapshot you choose, which goes on above every number seen; "
    "restore_from 'none' to read all data again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Newest of a pipeline that was found outside the coordinator store."""

    where: str
    """For people: ``table /lake/orders``, ``the checkpoint storage s3://…``."""
    lineage: str = ""
    """Empty: written before histories had an identity."""
    epoch: int = 0
    checkpoint_id: int = 0
    holds: bool = True
    """It has snapshots or rows that a start without state would leave behind."""
    running: str = ""
    """Run that is at work under a former name of the pipeline; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHistory:
    """History as the coordinator store has it."""

    pipeline: PipelineId
    is_recorded: bool
    previous_names: tuple[str, ...] = ()
    """Names the pipeline had before."""
    lineage: str = ""
    lineages: tuple[str, ...] = ()
    """Histories it goes on from."""
    is_rebuilt: bool = False
    """Built again from the storage: attempts since its newest checkpoint are not known."""
    epoch: int = 0
    next_checkpoint_id: int = 1

    def owns(self, lineage: str) -> bool:
        """Tell whether what carries this id is the pipeline's own."""
        return lineage in ("", self.lineage, *self.lineages)

    def is_behind(self, seen: Seen) -> bool:
        """Tell whether the world has seen more than the store knows."""
        return (
            seen.epoch > self.epoch and not self.is_rebuilt
        ) or seen.checkpoint_id >= self.next_checkpoint_id


def refuse_former_name(known: KnownHistory, seen: Iterable[Seen], newest: str, *, is_chosen: bool) -> None:
    """Raise InvalidRequest where a former name runs, or nobody says with which snapshot of it to begin."""
    if not known.previous_names:
        return
    former, found = known.previous_names[0], list(seen)
    running = next((one for one in found if one.running), None)
    if running is not None:
        raise InvalidRequest(
            f"pipeline {known.pipeline!r} names its former name in previous_names, and {running.where} says that run "
            f"{running.running!r} is at work: stop it first, or, where the two are different pipelines, take the name "
            "out of previous_names"
        )
    left = [one for one in found if one.holds]
    if left and not known.is_recorded and not is_chosen:
        raise InvalidRequest(
            f"pipeline {known.pipeline!r}, which was called {former!r}, has no checkpoint under this name yet, and "
            f"{_list(left)}. Nothing was started. Say what it begins with: restore_from the newest snapshot of "
            f"{former!r}, by its URI{_hint(newest)}; or 'none' to read all data again"
        )


def refuse_lost_record(known: KnownHistory, seen: Iterable[Seen], newest: str) -> None:
    """Raise InvalidRequest where the store has no record of a pipeline that has left something.

    ``newest``: the newest snapshot found, as a restore point.
    """
    left = [one for one in seen if one.holds]
    if left and not known.is_recorded:
        raise InvalidRequest(
            f"the coordinator store has no record of pipeline {known.pipeline!r}, but {_list(left)}: the store was "
            f"lost, or is another one. Nothing was started. {WAYS_OUT}{_hint(newest)}; 'dagster-ckpt doctor "
            f"{known.pipeline} --repair' rebuilds the record from the storage"
        )


def refuse_another_history(known: KnownHistory, seen: Iterable[Seen], *, is_chosen: bool) -> None:
    """Raise InvalidRequest where something of the pipeline is another history's than the store's."""
    for one in seen:
        if known.is_recorded and not known.owns(one.lineage) and (known.lineage or not is_chosen):
            raise InvalidRequest(_foreign(known, one))


def refuse_older_store(known: KnownHistory, seen: Iterable[Seen], newest: str) -> None:
    """Raise InvalidRequest where more of the pipeline was seen than the store knows."""
    ahead = [one for one in seen if known.is_behind(one)]
    if ahead and known.is_recorded:
        raise InvalidRequest(
            f"the coordinator store is behind: it knows pipeline {known.pipeline!r} up to attempt {known.epoch} and "
            f"checkpoint {known.next_checkpoint_id - 1}, but {_list(ahead)}. It was put back to an older copy. "
            f"Nothing was started. {WAYS_OUT}{_hint(newest)}; adopt_history to go on from the latest snapshot it knows"
        )


def _foreign(known: KnownHistory, one: Seen) -> str:
    former = "".join(f", {name!r} before" for name in known.previous_names)
    again = ", or it has run under its former name since" if former else ""
    return (
        f"{one.where} belongs to another history ({one.lineage}) of a pipeline named {known.pipeline!r}{former} than "
        f"the coordinator store ({known.lineage or 'none yet'}): another deployment uses it, or the store was "
        f"replaced{again}. "
        "Nothing was started. Give this deployment places of its own, or set adopt_history to take that history over"
    )


def _list(seen: Iterable[Seen]) -> str:
    return ", ".join(
        f"{one.where} has seen attempt {one.epoch}"
        + (f" and checkpoint {one.checkpoint_id}" if one.checkpoint_id else "")
        for one in seen
    )


def _hint(newest: str) -> str:
    return f" (the newest snapshot found is {newest})" if newest else ""


FIRST_CHECKPOINT = CheckpointId(1)


class Origin(StrEnum):
    """Whose the restored snapshot is."""

    STORE = "store"
    """Already in the pipeline's store: its properties stand, and it is not added again."""
    OUTSIDE = "outside"
    """A savepoint, or a snapshot of someone else: it enters the store with properties by claim mode."""


class RestorePurpose(StrEnum):
    """Purpose of a restore: the pipeline continues, or a fork branches off."""

    IN_PLACE = "in_place"
    FORK = "fork"
    """Another pipeline's snapshot is allowed; queries get new ids."""


class AttemptEnd(StrEnum):
    """End of an attempt: clean or not."""

    CLEAN = "clean"
    """Recorded in the store: all queries stopped at batch boundaries."""
    UNCLEAN = "unclean"
    """Killed, failed, or never heard of again."""


class DirectoryState(StrEnum):
    """State of an attempt's working directory."""

    INTACT = "intact"
    LASTING = "lasting"
    """The queries' own directories: Spark itself goes on in them, however the attempt ended."""
    DAMAGED = "damaged"
    MISSING = "missing"
    PUT_BACK = "not as that attempt left it (a part was lost or put back to an older copy, or it did not end cleanly)"
    ELSEWHERE = "outside of work_dir (that is another folder now, or the deployment is a copy of the one it belongs to)"
    OTHER_PARTITIONS = "spread over another number of state partitions"
    """A stage's ``partitions`` were changed; only a restore can redistribute its state."""
    WITHOUT_TABLE = "of a time when a stage had no table that it has now"
    """That table may show rows which do not belong here; only a restore knows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousAttempt:
    """The last attempt that had recorded a working directory."""

    epoch: CoordinatorEpoch
    working_directory: str
    ended: AttemptEnd
    directory: DirectoryState
    shape: tuple[str, ...]
    """``shape_of`` the graph it ran."""


class RestoreLine(Record):
    """Beginning of the history that ``latest`` follows, after a restore that a person asked for.

    Going back to chk-31 leaves chk-32 and chk-33 in the store; ``latest`` must not return to them.
    """

    since: CoordinatorEpoch
    """Attempt that was restored: only snapshots of it and later attempts are on the line."""
    base: KnownSnapshot | None
    """What it was restored from; None: it began without state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFacts:
    """Everything durable that the choice depends on."""

    pipeline: PipelineId
    previous_names: tuple[PipelineId, ...] = ()
    """Names the pipeline had before: a snapshot of one of these is its own."""
    checkpoints: Sequence[KnownSnapshot] = ()
    """The completed store, restored snapshots included."""
    savepoints: Sequence[KnownSnapshot] = ()
    previous: PreviousAttempt | None = None
    line: RestoreLine | None = None
    next_checkpoint_id: CheckpointId = FIRST_CHECKPOINT
    """Above everything this pipeline has ever used."""
    tries_since: CoordinatorEpoch | None = None
    """First epoch of an earlier try of this very run; None: this is its first try."""
    history: KnownHistory | None = None
    """History of the record; None: it is not looked at (previews of another pipeline's snapshots)."""
    has_driver_state: bool = False
    """Driver-side coordinators or master hooks take part: their state is in checkpoints alone, in no directory."""

    def is_called(self, name: str) -> bool:
        """Tell whether this is the pipeline's name, or one it had before."""
        return name in (self.pipeline, *self.previous_names)


def shape_of(graph: PipelineGraph, hooks: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the shape that a working directory must share to be adopted: stages, widths, edges, chains, hooks."""
    stages = (f"stage {s.uid} {s.parallelism} {s.max_parallelism or 'derived'}" for s in graph.stages)
    edges = (f"edge {e.upstream} {e.downstream} {e.pattern}" for e in graph.edges)
    chains = (f"chain {chain.name}" for chain in graph.chains)
    return (*sorted(stages), *sorted(edges), *sorted(chains), *sorted(f"hook {uid}" for uid in hooks))


class KnownSnapshot(Record):
    """A completed snapshot in the coordinator's record."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    location: SnapshotLocation
    properties: CheckpointProperties
    epoch: CoordinatorEpoch
    """Attempt that took it; for one from outside, the attempt that restored it."""
    metadata_checksum: str = ""
    """Of its ``_metadata`` file; empty: recorded before this was kept."""

    @property
    def key(self) -> str:
        """Its key as people see it."""
        return paths.snapshot_key(self.kind, self.checkpoint_id)


def find_by_key(point: Key, known: Iterable[KnownSnapshot]) -> KnownSnapshot:
    """Return the snapshot a key names. Raises NotFound, naming what exists."""
    snapshots = list(known)
    same_id = [s for s in snapshots if s.checkpoint_id == point.checkpoint_id]
    found = next((s for s in same_id if _is_wanted(point.wanted, s)), None)
    if found is not None:
        return found
    hint = f"; {point.checkpoint_id} is {same_id[0].key}" if same_id else ""
    raise NotFound(
        f"there is no {point.wanted}-{point.checkpoint_id} to restore from{hint}. {existing(snapshots)}"
    )


def find_by_folder_name(point: At, known: Iterable[KnownSnapshot]) -> KnownSnapshot:
    """Return the snapshot whose folder has this name. Raises NotFound, naming what exists."""
    snapshots = list(known)
    found = next((s for s in snapshots if s.location.folder.rpartition("/")[2] == point.uri), None)
    if found is None:
        raise NotFound(
            f"there is no savepoint in a folder named {point.uri!r}; give its whole path. "
            f"{existing(snapshots)}"
        )
    return found


def existing(known: Iterable[KnownSnapshot]) -> str:
    """Return one sentence that names what can be restored, newest first (at most ten)."""
    newest_first = sorted(known, key=lambda s: s.checkpoint_id, reverse=True)
    keys = list(dict.fromkeys(s.key for s in newest_first))  # a savepoint may be retained as a checkpoint too
    if not keys:
        return "The pipeline has no completed checkpoint or savepoint yet"
    more = f" and {len(keys) - 10} older ones" if len(keys) > 10 else ""
    return f"There are: {', '.join(keys[:10])}{more}"


def _is_wanted(wanted: Wanted, snapshot: KnownSnapshot) -> bool:
    match wanted:
        case Wanted.EITHER:
            return True
        case Wanted.CHECKPOINT:
            return not snapshot.kind.is_savepoint
        case Wanted.SAVEPOINT:
            return snapshot.kind.is_savepoint
    assert_never(wanted)
