"""Port of sinks: prepare on the executors, publish with the checkpoint, say what the outside has seen, go back.

The order of commits is the coordinator's; a sink only carries out one step of it, and every step can be repeated:
the process may have died in the middle of it, and a newer attempt may be at work already. Source: Flink's
``TwoPhaseCommittingSink``, ``Committer`` and ``SinkWriter``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.core.restore.horizon import Pin
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.sink.accepts import Accepts
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.rows import PublishedRows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AttemptId:
    """Identity of an attempt: its pipeline's history and its number therein."""

    lineage: str
    epoch: CoordinatorEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """Context in which a sink is opened."""

    pipeline: PipelineId
    uid: StageUid
    previous_uids: tuple[StageUid, ...] = ()
    """Names that the sink had before: what stands in the table under them is its own."""
    previous_pipelines: tuple[PipelineId, ...] = ()
    """Names that the pipeline had before; likewise."""
    name: str
    """The sink's ``table`` as its author wrote it; default: the uid."""
    key: tuple[str, ...]
    """Key columns: one row per key, the latest. Empty: rows are appended."""
    keep_days: int = 0
    """Days after which rows leave a table whose key begins with their time (``id_since``); 0: they stay."""
    is_complete: bool
    """Output mode *complete*: every batch holds all rows, and replaces what was there."""
    table_dir: Path
    """The resource's folder of tables."""
    work_dir: Path
    """Folder of the sink's own, which outlives attempts: rows that cannot be staged at their place are staged here."""
    former_work_dirs: tuple[Path, ...] = ()
    """Where that folder was under former names of sink and pipeline."""
    attempt: Callable[[], AttemptId]
    """The attempt at work; known once the coordinator has claimed it, so not asked for before ``take_over``."""

    @property
    def pipelines(self) -> tuple[PipelineId, ...]:
        """Names of the pipeline, of now first."""
        return (self.pipeline, *self.previous_pipelines)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPosition:
    """Newest of everything that the outside has seen of the pipeline."""

    lineage: str
    """History it was seen of; empty: written before histories had an identity."""
    epoch: int
    """Newest attempt that worked on it."""
    checkpoint_id: int | None = None
    """Newest checkpoint that was published to it, also one that was rolled back since; None: none yet."""
    head: int | None = None
    """Checkpoint whose rows it shows now; None: it shows no rows of any."""
    through_batch: int | None = None
    """Last micro-batch of the stage that it shows."""
    others: int | None = None
    """The table's own number of somebody else's newest change of rows since the sink's first; None: none is known."""

    @property
    def attempt(self) -> AttemptId:
        """Newest attempt that worked on it."""
        return AttemptId(self.lineage, CoordinatorEpoch(self.epoch))


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCut:
    """A sink's part of a snapshot that is restored."""

    snapshot: TableSnapshot
    batches: tuple[PreparedBatch, ...]
    """Prepared and not published at the cut: they belong to it."""
    checkpoint_id: CheckpointId
    lineages: frozenset[str] = frozenset()
    """History of the snapshot, and those it goes on from; empty: it says none."""


class LaterRows(StrEnum):
    """Treatment of rows that were published after the cut."""

    SET_ASIDE = "set_aside"
    """They leave the table, and can still be read where the sink keeps them."""
    KEEP = "keep"
    """They stay, and the restored pipeline publishes its rows on top: rows repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """These rows became visible by this call."""

    rows: int
    bytes: int
    files: int = 0
    version: str = ""
    """The outside's own name of its state now: a table version, a snapshot id."""
    position: SinkPosition | None = field(default=None, compare=False)
    """Where the sink stands now; None: it has to be asked."""


@dataclass(frozen=True, slots=True)
class AlreadyPublished:
    """Everything the checkpoint covers was visible before; nothing was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """Result of a roll-back; ``""``: the sink held exactly the rows of the cut."""

    text: str
    """What was done, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Rows that a table shows now, beside those it shows at a cut."""

    is_same: bool
    rows_now: int
    rows_then: int
    """By key: at most, where rows wait that no reader has seen."""
    by_key: bool = False
    """A row may have other values then, and be counted as the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDescription:
    """Description of the table that readers find."""

    place: str
    columns: tuple[tuple[str, str], ...] = ()
    """(name, type), as the outside spells types."""
    rows: int | None = None
    """None: not known without reading."""
    bytes: int | None = None
    version: str = ""
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """One piece of a table's maintenance."""

    what: str
    """What it is, for people: ``small files merged``."""
    files: int = 0
    """Files, or rows, that go; 0 where there is nothing to be done."""
    bytes: int = 0
    note: str = ""
    """Why less is done than could be; empty: everything is."""


class Joint(Protocol):
    """Place in which rows of several sinks change at one moment: a database, a catalog. Sharers have an equal one."""

    def step(self, work: Callable[[], T]) -> T:
        """Do ``work``, and make what the sinks change in it visible at its end, all of it or nothing.

        It is done again where others came in between. An error in it undoes everything; the end raises what the sinks'
        own steps raise.
        """

    @property
    def why_apart(self) -> str:
        """Why its sinks change one after the other all the same, in one sentence; empty: they do not."""


def in_one_step(sinks: Sequence[Sink], work: Callable[[], T]) -> T:
    """Do what changes sinks of one group (``joint``), together; one of its own needs no step."""
    joint = sinks[0].joint if len(sinks) > 1 else None
    return work() if joint is None else joint.step(work)


class Sink(ABC):
    """One sink of one pipeline, opened for one attempt. Methods raise Unavailable and OutcomeUnknown for the outside's
    failures, and are then repeated; Corrupt, naming what is gone, where nothing can help.
    """

    kind: ClassVar[str] = "own"
    """Name of its target, as snapshots and people call it."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the rows end, resolved: two sinks may not share one. Checkpoints name it."""

    @property
    def joint(self) -> Joint | None:
        """Place in which its rows change together with those of sinks with an equal one; None: alone."""
        return None

    @abstractmethod
    def position(self) -> SinkPosition | None:
        """Return the position that the outside has seen of this pipeline; None: none. Needs no attempt."""

    rereads: ClassVar[bool] = False
    """Staged rows are read back when they are published, in the columns of the newest ones; else the files themselves
    become the table's."""

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Columns whose values are the folders of staged files."""
        return ()

    @property
    def accepts(self) -> Accepts:
        """Columns and rows that the outside can hold, as it is now; asked once, when the stage starts.

        Rows that break a rule are refused while they are prepared: once their checkpoint is complete, they could
        neither be shown nor taken back. Default: everything that can be staged.
        """
        return Accepts()

    @abstractmethod
    def check(self, frame: DataFrame) -> None:
        """Refuse rows that this sink cannot take (InvalidRequest), before the first batch, beyond ``accepts``."""

    forgets_calls: ClassVar[bool] = False
    """What it has shown is known by its folder alone, which may be lost: before it begins it hears what the store
    knows of it (``bring_back``)."""

    @abstractmethod
    def prepare(self, frame: DataFrame, batch_id: BatchId) -> PreparedBatch:
        """Stage a micro-batch where no reader sees it; called again for a batch whose committable was not written."""

    @abstractmethod
    def flush(self, batches: Sequence[PreparedBatch]) -> None:
        """Wait until what these batches staged survives a power failure: their checkpoint is acknowledged next."""

    def refuse_lost(self, batches: Sequence[PreparedBatch]) -> None:
        """Raise Corrupt where rows that these batches staged are gone: they could not be published any more."""
        self.flush(batches)

    def refuse_unfit(self, batches: Sequence[PreparedBatch]) -> None:  # noqa: B027 - most take what was staged for them
        """Raise InvalidRequest where the outside, as others may have left it, cannot take these rows that wait."""

    def waiting_rows(self, batches: Sequence[PreparedBatch]) -> Iterator[pa.Table]:
        """Yield the rows that these batches staged, part by part. Raises Corrupt where they are gone."""
        raise InvalidRequest(
            f"{self.place} does not tell the rows that wait for it: a sink of your own says so"
        )

    def only_here(self, batches: Sequence[PreparedBatch]) -> Mapping[str, Path]:
        """Return, by name, the files of ``context.work_dir`` that these batches need and that lie nowhere else.

        Their checkpoint takes them with it: that folder may be lost with its machine. They stay as they are until the
        checkpoint is over. Default: none, the rows are staged where they end.
        """
        return {}

    def bring_back(  # noqa: B027 - most need nothing
        self, folder: Path, later: Mapping[CheckpointId, CoordinatorEpoch]
    ) -> None:
        """Take what a restored checkpoint holds of these files, by name below ``folder``; called before all else.

        ``later``: newer snapshots whose rows may have been published from a machine that is lost, and the attempts
        that took them; those of all times where the attempt begins the stage without state, from an empty ``folder``.
        """

    @abstractmethod
    def take_over(self) -> None:
        """Begin the attempt where the last one ended: finish a publish that stopped half-way, fence older attempts.

        Raises Fenced when a newer attempt owns the sink.
        """

    @abstractmethod
    def publish(self, batches: Sequence[PreparedBatch], permit: CommitPermit) -> Published | AlreadyPublished:
        """Make batches visible, all or none, in order, and the permit's checkpoint the sink's position.

        Batches at or below the position are visible already and are passed over. Raises Fenced when a newer attempt
        owns the sink, Corrupt when staged rows are gone.
        """

    @abstractmethod
    def roll_back(self, cut: SinkCut | None, later: LaterRows) -> RolledBack:
        """Show exactly the rows of a cut (None: no rows), and fence older attempts; repeating it finishes it.

        Raises Corrupt when rows of the cut are gone: nothing was changed then.
        """

    def has_published(self, checkpoint_id: int) -> bool:
        """Tell whether a checkpoint's rows were ever published here."""
        position = self.position()
        return position is not None and (position.checkpoint_id or 0) >= checkpoint_id

    @property
    def never_rolls_back(self) -> str:
        """Why rows never leave this sink, as it is made and set, in one sentence; empty: they may. Asks nobody."""
        return ""

    def cannot_roll_back(self, cut: SinkCut | None) -> str:
        """Return why ``roll_back`` would fail; empty: it would not. Raises Corrupt where rows of the cut are gone."""
        return ""

    def why_not_exchanged(self) -> str:
        """Return why the rows that are shown may not all give way: some are somebody else's; empty: they may."""
        return ""

    def why_not_kept(self, cut: SinkCut) -> str:
        """Return why what is shown cannot stay with a cut's batches on top: it is not made on those; empty: it can."""
        return ""

    def difference(self, cut: SinkCut) -> Difference | None:
        """Return how what is shown differs from a cut, asked beside its pipeline; None: nobody can tell.

        Raises Corrupt where rows of the cut are gone.
        """
        return None

    @property
    def own_folder(self) -> Path | None:
        """The folder that is the whole table, wherever it is moved; None: it is none."""
        return None

    def fork(self, cut: SinkCut) -> str:
        """Begin with exactly the rows of another pipeline's cut, which is only read; return what was done.

        Raises InvalidRequest where this sink cannot, or has other rows already.
        """
        raise InvalidRequest(
            f"{self.place} cannot begin with the rows of {cut.snapshot.uri}: give the fork a sink that can, or let it "
            "begin without them, as it is (keep_rows_of)"
        )

    def refuse_fork(self, cut: SinkCut) -> None:
        """Raise as ``fork`` would, and change nothing: all sinks are asked before any is changed."""
        if type(self).fork is Sink.fork:
            self.fork(cut)

    def collect_garbage(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Remove staged rows and versions that neither readers, nor these cuts, nor these batches need."""
        return 0

    def rows(self, cut: SinkCut | None = None) -> PublishedRows:
        """Return the rows that readers find now, or exactly those of a cut; needs no attempt, changes nothing.

        Raises NotFound where nothing was made yet, Corrupt where rows of the cut are gone, InvalidRequest where this
        sink cannot be read (so).
        """
        raise InvalidRequest(f"{self.place} is no table that can be loaded: read it with a client of its own")

    def checkpoints_of(self, batches: Iterable[int]) -> Mapping[int, int]:
        """Return the checkpoints that published the rows of these batches, of those that are shown and that tell it."""
        return {}

    def pins(self, cut: SinkCut) -> Sequence[Pin]:
        """Return the pins of the outside that a restore of this cut needs, and until when each is there."""
        why = self.cannot_roll_back(cut)
        return (Pin(what=self.place, is_there=not why, advice=why),)

    def upkeep(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Return the upkeep that ``maintain`` would do, beside attempts that may be at work: changes nothing.

        ``needed``: the cuts of all retained checkpoints and savepoints; what they need stays.
        """
        return ()

    def maintain(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Make the table smaller and faster, without changing its rows or what these cuts need; return what was done.

        Needs no attempt. A publish at the same time succeeds, before it or after it.
        """
        return ()

    @abstractmethod
    def describe(self) -> SinkDescription:
        """Return the description of what readers find now. Raises NotFound where nothing was made yet."""
