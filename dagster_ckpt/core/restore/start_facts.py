"""Facts of a start: what is known of code, machine, request, store and snapshot before a run begins.

Each part is gathered where its world is known, and ``refuse_start`` is asked at once: the checks of a part that is None
wait. What takes a look at other systems is a function here, called when every check before it has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.restore.choice import FromSnapshot
from dagster_ckpt.core.restore.facts import KnownHistory, RestoreFacts, RestorePurpose, Seen
from dagster_ckpt.core.restore_point import Latest, RestorePoint

Look = Callable[[], None]
"""Raises an error of the library where the look finds a reason not to start."""


def finds_nothing() -> None:
    """Look nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFacts:
    """Pipelines of a code location, by name, and the names they take in Dagster."""

    pipelines: Sequence[str]
    stages: Mapping[str, Sequence[str]]
    keys: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    """Key columns of sinks, by pipeline and uid."""
    reserved: frozenset[str] = frozenset()
    """Words that Dagster keeps for itself."""
    longest_name: int = 63
    """Most characters of a tag's value in Dagster; runs are found by the tag that names their pipeline."""
    jobs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Names of each pipeline's further jobs."""
    assets: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Asset of each sink's table, by pipeline and uid."""
    checkpoint_assets: Mapping[str, str] = field(default_factory=dict)
    """Asset of each pipeline's checkpoints, by pipeline."""
    settings: Mapping[str, Look] = field(default_factory=dict)
    """Refuses settings of each pipeline that cannot be, by pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A local folder or file that a run writes."""

    setting: str
    path: str
    why: str
    """Why nothing can be made or written there; empty: it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A Python package that the pipeline or its places need."""

    needed_by: str
    name: str
    install: str
    """Command that installs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaFound:
    """The Java that Spark would start."""

    looked: str
    """Where was looked, for people."""
    version: int | None
    """Major version; 0: it does not say; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """This machine: folders, packages, Java."""

    places: Sequence[Place] = ()
    missing: Sequence[Package] = ()
    """Those that are needed and not installed."""
    java: JavaFound | None = None
    """None: no Java is started here, or one runs already."""
    spark: Look = finds_nothing
    """Refuses the version of Spark that is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """Request of the run: what it is to start from."""

    job: str
    pipeline: str
    point: RestorePoint
    chooses: str = ""
    """How its snapshot is chosen, where the job must be given one."""
    op: str = ""
    is_backfill: bool = False
    approved: Look = finds_nothing
    """Refuses a restore that is not as it was approved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFacts:
    """History of the pipeline in the store, and what was seen of it elsewhere."""

    known: KnownHistory
    seen: Sequence[Seen]
    point: RestorePoint
    adopt_history: bool
    newest: str
    """Newest snapshot found in the storage, as a restore point."""

    @property
    def is_chosen(self) -> bool:
        """True where a person chose the restore point."""
        return self.point != Latest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """The snapshot that is to be restored, and the graph it is to fit."""

    load: FromSnapshot
    metadata: CheckpointMetadata
    options: RestoreOptions
    facts: RestoreFacts
    graph: PipelineGraph
    asked: RestorePurpose
    """Purpose that the run was started for."""
    purpose: RestorePurpose
    """Purpose that the snapshot gives it."""

    @property
    def pipeline(self) -> PipelineId:
        """Pipeline that is to start."""
        return self.facts.pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideFacts:
    """Sources and sinks, asked whether they can go on from the restore point."""

    inputs: Look = finds_nothing
    positions: Look = finds_nothing
    files: Look = finds_nothing
    sinks: Look = finds_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """Everything known of a start; a part that is None has not been looked at."""

    code: CodeFacts | None = None
    machine: MachineFacts | None = None
    request: RequestFacts | None = None
    store: Look | None = None
    """Opens the coordinator store."""
    history: HistoryFacts | None = None
    snapshot: SnapshotFacts | None = None
    outside: OutsideFacts | None = None
