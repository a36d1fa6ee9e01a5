"""Plan of an upgrade: what becomes of each stage, source and sink when changed code goes on from a snapshot.

Decided by the rules of a start (START_CHECKS, RULES of plans and of rows that wait); nothing of the pipeline is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.pipeline import run_as
from dagster_ckpt.core.chains import kept_chains, with_kept_chains
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.location import SnapshotLocation, same_place
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.core.restore.decision import FromSnapshot
from dagster_ckpt.core.restore.facts import Origin, RestoreFacts, RestorePurpose
from dagster_ckpt.core.restore.from_snapshot import restore_of
from dagster_ckpt.core.restore.matching import (
    MatchedStages,
    NonRestoredState,
    StageMatch,
    match_stages,
    other_inputs,
)
from dagster_ckpt.core.restore_point import At
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.ext.upgrade_plan.stand_ins import NotAtHand, StandIns
from dagster_ckpt.ext.upgrade_plan.verdicts import (
    WORST_FIRST,
    SinkPlan,
    SourcePlan,
    StagePlan,
    StageVerdict,
    UpgradePlan,
)
from dagster_ckpt.operations.restores.sources import late_readers
from dagster_ckpt.operations.snapshots.plan_facts import ExportedFacts, StageFacts
from dagster_ckpt.spark.attempt.stage_query import StageArguments, StageQuery
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.directories import AttemptDirectory, StageDirectory
from dagster_ckpt.spark.plan.facts import PlanFacts, facts_of
from dagster_ckpt.spark.plan.functions import may_mean_another
from dagster_ckpt.spark.plan.rules import why_not
from dagster_ckpt.spark.sink.opening import open_sink
from dagster_ckpt.spark.sink.waiting.rules import SinkNow, refuse_changed_sink
from dagster_ckpt.spark.snapshot.rescale import saved_partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

__all__ = ["plan_upgrade"]


def plan_upgrade(
    facts: ExportedFacts,
    pipeline: CheckpointedPipeline,
    spark: SparkSession,
    scratch: Path,
    options: RestoreOptions,
) -> UpgradePlan:
    """Plan the start of ``pipeline`` from a snapshot. ``scratch``: an empty folder. Raises InvalidRequest."""
    metadata = facts.metadata
    chains = kept_chains(pipeline.graph, metadata.chains)
    graph = with_kept_chains(pipeline.graph, metadata.chains)
    refusals = list(_refused(facts, graph, options))
    matched = match_stages(graph, metadata, non_restored=NonRestoredState.SKIP)
    refusals += [why for match in matched.matches if (why := other_inputs(match))]
    refusals += late_readers(graph, matched, pipeline)
    planner = _Planner(
        facts=facts,
        pipeline=run_as(pipeline, chains),
        matched=matched,
        attempt=AttemptDirectory(scratch / "attempt-1"),
        stand_ins=StandIns(scratch=scratch),
    )
    with planner.stand_ins.active():
        stages = [planner.stage(spark, stage.uid) for stage in graph.topological]
    stages += [StagePlan(uid=uid, verdict=StageVerdict.DROPPED) for uid in matched.skipped]
    return UpgradePlan(
        pipeline=str(pipeline.name),
        snapshot=facts.snapshot,
        refusals=tuple(dict.fromkeys(refusals)),
        stages=tuple(stages),
        sources=tuple(_sources(graph, matched, facts)),
        sinks=tuple(_sinks(planner.pipeline, matched)),
    )


def _refused(facts: ExportedFacts, graph: PipelineGraph, options: RestoreOptions) -> Iterator[str]:
    base, _, folder = facts.uri.rpartition("/")
    location = SnapshotLocation(base_uri=base, folder=folder)
    load = FromSnapshot(location=location, origin=Origin.OUTSIDE, known=None, reason="planned")
    is_own = facts.metadata.pipeline in (graph.pipeline, *graph.previous_names)
    purpose = RestorePurpose.IN_PLACE if is_own else RestorePurpose.FORK
    asked = options.model_copy(update={"restore_from": At(facts.uri), "fork": not is_own})
    restore = RestoreFacts(pipeline=graph.pipeline, previous_names=graph.previous_names)
    try:
        restore_of(
            load,
            facts.metadata,
            options=asked,
            facts=restore,
            graph=graph,
            config=CheckpointConfig(),
            purpose=purpose,
            asked=purpose,
        )
    except CheckpointError as error:
        yield str(error)


class _NoResources:
    """Dagster resources of a plan: a stage that needs them cannot be planned."""

    def __getattr__(self, name: str) -> Any:
        raise NotAtHand(f"it needs the Dagster resource {name!r}, which a plan does not open")


@dataclass(frozen=True, kw_only=True)
class _Planner:
    """Plans the queries of a pipeline, inputs before their readers."""

    facts: ExportedFacts
    pipeline: CheckpointedPipeline
    matched: MatchedStages
    attempt: AttemptDirectory
    stand_ins: StandIns
    _unknown: set[StageUid] = field(default_factory=set)
    """Stages whose columns are not known."""

    def stage(self, spark: SparkSession, uid: StageUid) -> StagePlan:
        """Plan one query."""
        match = next((match for match in self.matched.matches if match.uid == uid), None)
        said = StageFacts() if match is None else self.facts.stages.get(match.snapshot.uid, StageFacts())
        found: dict[StageVerdict, list[str]] = {} if match else {StageVerdict.EMPTY: []}
        behind = [str(one) for one in self.pipeline.upstream[uid] if one in self._unknown]
        if behind:
            self._unknown.add(uid)
            found.setdefault(StageVerdict.UNKNOWN, []).append(f"its input {behind[0]} has no columns here")
        else:
            self._ask(spark, uid, match, said, found)
        if match is not None:
            _of_state(match, self.pipeline.stages[uid].partitions, said, found)
        verdict = next((verdict for verdict in WORST_FIRST if verdict in found), StageVerdict.GOES_ON)
        sentences = [why for one in WORST_FIRST for why in found.get(one, ())]
        return StagePlan(uid=str(uid), verdict=verdict, why=tuple(dict.fromkeys(sentences)))

    def _ask(
        self,
        spark: SparkSession,
        uid: StageUid,
        match: StageMatch | None,
        said: StageFacts,
        found: dict[StageVerdict, list[str]],
    ) -> None:
        ChannelLog.create(self.attempt.stage(uid).log)
        comparison = _Comparison(said=said, goes_on=bool(match and match.snapshot.batch_id is not None),
                                 stand_ins=self.stand_ins, found=found)  # fmt: skip
        query = StageQuery(
            pipeline=self.pipeline,
            uid=uid,
            attempt=self.attempt,
            table_writer=lambda *_: _to_nowhere,
            arguments=StageArguments(resources=_NoResources()),
            members=dict.fromkeys(self.pipeline.members(uid), StageArguments(resources=_NoResources())),
            compare=comparison,
            warn=lambda message: None,
        )
        before = PlanFacts.of(said.plan, {})
        self.stand_ins.remember(before.sources, before.source_schemas)
        try:
            frame = query.planned(spark)
        except NotAtHand as error:
            found.setdefault(StageVerdict.UNKNOWN, []).append(str(error))
            self._unknown.add(uid)
        except InvalidRequest as error:
            found.setdefault(StageVerdict.REFUSED, []).append(str(error))
            self._unknown.add(uid)
        except Exception as error:  # whatever the user's code raises where nothing is at hand
            said_first = str(error).strip().partition("\n")[0]
            why = f"its function cannot be called here: {type(error).__name__}: {said_first}"
            found.setdefault(StageVerdict.UNKNOWN, []).append(why)
            self._unknown.add(uid)
        else:
            self._compare_sink(uid, match, said, frame, found)

    def _compare_sink(
        self,
        uid: StageUid,
        match: StageMatch | None,
        said: StageFacts,
        frame: DataFrame,
        found: dict[StageVerdict, list[str]],
    ) -> None:
        """Compare where a sink's rows are, and those that wait, with the sink as it is now."""
        stage = self.pipeline.stages[uid]
        if match is None or match.snapshot.table is None or stage.table is None:
            return
        folder = self.attempt.root
        sink = open_sink(stage, self.pipeline.name, table_dir=folder, work_dir=folder)
        if why := _other_place(uid, match.snapshot.table, sink.place, folder):
            found.setdefault(StageVerdict.REFUSED, []).append(why)
        try:
            refuse_changed_sink(
                uid, str(self.pipeline.name), said.waiting, SinkNow.of(stage, sink, frame.schema.json())
            )
        except InvalidRequest as error:
            found.setdefault(StageVerdict.REFUSED, []).append(str(error))


def _other_place(uid: StageUid, saved: TableSnapshot, place: str, folder: Path) -> str:
    """Return why a sink cannot go on with its rows, which are in another table; empty: it can.

    Of a table in the deployment's folder only the name is compared: which folder that is, a plan does not know.
    """
    now = Path(place)
    is_ours = now.parent == folder
    if (Path(saved.uri).name == now.name) if is_ours else same_place(saved.uri, place):
        return ""
    if saved.head is None and not saved.prepared:
        return ""
    former = f"table={Path(saved.uri).name!r}" if is_ours else "its former `to`"
    return (
        f"sink {uid!r} writes table {now.name if is_ours else place}, and its rows are in {saved.uri}: go on with that "
        f"table by {former}, or give the sink a new uid and restore with allow_non_restored_state"
    )


def _to_nowhere(batch: DataFrame, batch_id: int) -> None:
    """Take the batches of a query that is never started."""


def _of_state(
    match: StageMatch, wanted: int | None, said: StageFacts, found: dict[StageVerdict, list[str]]
) -> None:
    saved = saved_partitions(match.snapshot.state_formats)
    if None not in (wanted, saved) and wanted != saved and not match.snapshot.stateless:
        found.setdefault(StageVerdict.REDISTRIBUTED, []).append(
            f"its state is spread over {wanted} partitions instead of {saved}"
        )
    if said.waiting or said.rows_in_channel:
        where = "staged at its sink" if said.waiting else "in its channel"
        found.setdefault(StageVerdict.WAITS, []).append(f"rows of the old code wait {where}")


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """Comparison of a query's plan with the snapshot's facts, as ``check_plan`` has it, that goes on."""

    said: StageFacts
    goes_on: bool
    stand_ins: StandIns
    found: dict[StageVerdict, list[str]]

    def __call__(
        self,
        uid: StageUid,
        directory: StageDirectory,
        frame: DataFrame,
        *,
        output_mode: str,
        stages: Sequence[str],
        functions: Mapping[str, str],
        renamed: Mapping[str, str],
    ) -> None:
        """Note what the comparison finds, and write the facts down for the query's readers."""
        now = facts_of(frame, output_mode=output_mode, stages=stages, functions=functions)
        if now is None:
            self._note(StageVerdict.UNKNOWN, "Spark does not show its plan")
            return
        now.write(directory)
        if not self.goes_on:
            return
        before = PlanFacts.of(self.said.plan, renamed)
        real = self.stand_ins.real_names(now.sources)
        if real != list(now.sources):  # digests are of the stand-ins' options
            now = replace(now, sources=real, source_options=before.source_options)
        if now.variables is None:
            now = replace(now, variables=before.variables)
        if why := why_not(before, now):
            self._note(StageVerdict.REFUSED, f"stage {uid!r} {why}")
        self._note_meaning(before, now)

    def _note_meaning(self, before: PlanFacts, now: PlanFacts) -> None:
        if not before.written_by:
            self._note(StageVerdict.UNKNOWN, "the snapshot holds no facts of its plan")
        elif before.written_by != now.written_by:
            self._note(
                StageVerdict.MEANING,
                f"its plan was written by {before.written_by}, and is by {now.written_by} now: they are not compared, "
                "and Spark itself reads the state",
            )
        if before.functions is None:
            self._note(StageVerdict.MEANING, "the snapshot holds no digest of its code")
        elif changed := may_mean_another(before.functions, now.functions or {}):
            self._note(
                StageVerdict.MEANING,
                f"the code of {', '.join(changed)} is another one: rows may mean other things",
            )

    def _note(self, verdict: StageVerdict, why: str) -> None:
        self.found.setdefault(verdict, []).append(why)


# --- what is read, and what moves ------------------------------------------------------------------------------


def _sources(graph: PipelineGraph, matched: MatchedStages, facts: ExportedFacts) -> Iterator[SourcePlan]:
    sources = {stage.uid for stage in graph.sources}
    for match in matched.matches:
        if match.uid in sources:
            names = PlanFacts.of(facts.stages.get(match.snapshot.uid, StageFacts()).plan, {}).sources
            for place, (source, offset) in enumerate(sorted(match.snapshot.offsets.items())):
                name = names[place] if place < len(names) else source
                yield SourcePlan(stage=str(match.uid), source=name, reads_on=f"behind {_short(offset)}")
            if not match.snapshot.offsets:
                yield SourcePlan(stage=str(match.uid), source="", reads_on="from its beginning")
    for uid in matched.new:
        if uid in sources:
            yield SourcePlan(stage=str(uid), source="", reads_on="from its beginning")


def _short(offset: str, most: int = 60) -> str:
    return offset if len(offset) <= most else f"{offset[: most - 1]}…"


def _sinks(pipeline: CheckpointedPipeline, matched: MatchedStages) -> Iterator[SinkPlan]:
    saved = {match.uid: match.snapshot.table for match in matched.matches}
    for uid, stage in pipeline.stages.items():
        if stage.table is None:
            continue
        table = saved.get(uid)
        if table is None:
            becomes = "begins with the rows that are written now"
        elif table.cannot_roll_back:
            becomes = f"does not go back: {table.cannot_roll_back}"
        elif table.head is None:
            becomes = "goes on; nothing was published yet"
        else:
            becomes = f"goes on behind checkpoint {table.head}; a restore takes newer rows back"
        yield SinkPlan(stage=str(uid), table=stage.table.name, becomes=becomes)
