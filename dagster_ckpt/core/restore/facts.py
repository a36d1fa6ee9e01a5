"""The durable facts a restore is decided on: what store, disks and graph say, the snapshots that are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core import paths
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.location import SnapshotLocation
from dagster_ckpt.core.model import CheckpointKind, Record
from dagster_ckpt.core.properties import CheckpointProperties
from dagster_ckpt.core.restore.lineage import KnownHistory
from dagster_ckpt.core.restore_point import At, Key, Wanted
from dagster_ckpt.errors import NotFound

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
