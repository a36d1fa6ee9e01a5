"""The durable facts a restore is decided on: what the store, the disks and the graph say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.model import Record
from dagster_ckpt.core.restore.known import KnownSnapshot
from dagster_ckpt.core.restore.lineage import KnownHistory

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
