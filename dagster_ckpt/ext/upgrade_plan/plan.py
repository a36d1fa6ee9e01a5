"""Plan of an upgrade: what becomes of each stage, source and sink when changed code goes on from a snapshot.

Decided by the rules of a start (START_CHECKS, RULES of plans and of rows that wait); nothing of the pipeline is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.pipeline import run_as
from dagster_ckpt.core.chains import kept_chains, with_kept_chains
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.core.restore.facts import RestoreFacts
from dagster_ckpt.core.restore.from_snapshot import restore_refusals
from dagster_ckpt.core.restore.matching import (
    MatchedStages,
    NonRestoredState,
    StageMatch,
    match_stages,
    other_inputs,
)
from dagster_ckpt.core.restore_point import At
from dagster_ckpt.errors import InvalidRequest, first_line
from dagster_ckpt.ext.upgrade_plan.branch import why_not_alone
from dagster_ckpt.ext.upgrade_plan.comparison import (
    Findings,
    NotAtHand,
    PlanComparison,
    SinkPlan,
    SourcePlan,
    StagePlan,
    StageVerdict,
    StandIns,
    UpgradePlan,
)
from dagster_ckpt.operations.restores.parts import late_readers
from dagster_ckpt.operations.snapshots.export import ExportedFacts, StageFacts
from dagster_ckpt.spark.attempt.own_objects import StageArguments
from dagster_ckpt.spark.attempt.stage_query import StageQuery
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.schema import FORMAT
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.plan.facts import PlanFacts
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.opening import open_sink
from dagster_ckpt.spark.sink.waiting import SinkNow, refuse_changed_sink, refused_facts
from dagster_ckpt.spark.snapshot.rescale import saved_partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

_LONGEST_OFFSET = 60
_OF_A_PROGRAM = (
    "program {0} starts its queries itself, so nothing but Spark looks at their plans, at the types of state alone: "
    "dagster-ckpt adopt FILE.py -p {0} shows it with decorators, of which a plan tells"
)


def plan_upgrade(
    facts: ExportedFacts,
    pipeline: CheckpointedPipeline,
    spark: SparkSession,
    scratch: Path,
    options: RestoreOptions,
) -> UpgradePlan:
    """Plan the start of ``pipeline`` from a snapshot. ``scratch``: an empty folder. Raises InvalidRequest."""
    metadata = facts.metadata
    if pipeline.program:
        said = (_OF_A_PROGRAM.format(pipeline.name),)
        queries = (StagePlan(uid=one.uid, verdict=StageVerdict.UNKNOWN, why=said) for one in metadata.stages)
        return UpgradePlan(str(pipeline.name), facts.snapshot, refusals=(), stages=tuple(queries))
    try:
        chains = kept_chains(pipeline.graph, metadata.chains)
    except InvalidRequest as error:  # no stage of it is a query of the snapshot's
        return UpgradePlan(str(pipeline.name), facts.snapshot, refusals=(str(error),))
    graph = with_kept_chains(pipeline.graph, metadata.chains)
    is_own = metadata.pipeline in (graph.pipeline, *graph.previous_names)
    asked = options.model_copy(update={"restore_from": At(facts.uri), "fork": not is_own})
    known = RestoreFacts(pipeline=graph.pipeline)
    refusals = list(restore_refusals(known, facts.uri, metadata, asked, graph))
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
        str(pipeline.name),
        facts.snapshot,
        refusals=tuple(dict.fromkeys(refusals)),
        stages=tuple(stages),
        sources=tuple(_sources(graph, matched, facts)),
        sinks=tuple(_sinks(planner.pipeline, matched)),
    )


class _NoResources:
    """Dagster resources of a plan: a stage that needs them cannot be planned."""

    def __getattr__(self, name: str) -> Any:
        raise NotAtHand(f"it needs the Dagster resource {name!r}, which a plan does not open")


@dataclass(frozen=True, kw_only=True)
class _Planner:
    """Planner of the queries of a pipeline, inputs before their readers."""

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
        if match is not None and (match.part is not None or match.joined is not None):
            said = said.model_copy(update={"plan": {}})  # that was of a query which read other things
        found = Findings()
        behind = [one for one in self.pipeline.upstream[uid] if one in self._unknown]
        if behind:
            found[StageVerdict.UNKNOWN].append(f"its input {behind[0]} has no columns here")
            self._unknown.add(uid)
        elif (frame := self._planned(spark, uid, match, said, found)) is None:
            self._unknown.add(uid)
        elif match is not None and match.snapshot.table is not None:
            self._compare_sink(uid, match.snapshot.table, said, frame, found)
        if match is None:
            found[StageVerdict.EMPTY] = []
        else:
            self._of_state(uid, match, said, found)
        if found.verdict in (StageVerdict.REFUSED, StageVerdict.MEANING):
            found[found.verdict] += self._rebuilt(uid, said)
        return found.plan(str(uid))

    def _of_state(self, uid: StageUid, match: StageMatch, said: StageFacts, found: Findings) -> None:
        wanted, saved = self.pipeline.stages[uid].partitions, saved_partitions(match.snapshot.state_formats)
        if None not in (wanted, saved) and wanted != saved and not match.snapshot.stateless:
            spread = f"its state is spread over {wanted} partitions instead of {saved}"
            found[StageVerdict.REDISTRIBUTED].append(spread)
        if said.prepared and not self.facts.is_shown:
            found[StageVerdict.WAITS].append("rows of the old code wait staged at its sink")
        if said.rows_in_channel:
            found[StageVerdict.WAITS].append("rows of the old code wait in its channel")

    def _rebuilt(self, uid: StageUid, said: StageFacts) -> Iterator[str]:
        """Yield how the stage can be rebuilt from its input, where it can be, and has state or rows of its own."""
        sources = [name for name in PlanFacts.of(said.plan, {}).sources if not name.startswith(FORMAT)]
        if sources and not any(why_not_alone(self.pipeline.authored, uid)):
            yield (
                f"it can be rebuilt from {', '.join(sources)}: dagster-ckpt upgrade {self.pipeline.name} --rebuild "
                f"{uid} -f the changed code"
            )

    def _planned(
        self, spark: SparkSession, uid: StageUid, match: StageMatch | None, said: StageFacts, found: Findings
    ) -> DataFrame | None:
        """Return the rows of a query, which is compared with the snapshot's; None: they are not known."""
        ChannelLog.create(self.attempt.stage(uid).log)
        goes_on = match is not None and match.snapshot.batch_id is not None
        comparison = PlanComparison(said=said, goes_on=goes_on, stand_ins=self.stand_ins, found=found)
        query = StageQuery(
            pipeline=self.pipeline,
            uid=uid,
            attempt=self.attempt,
            table_writer=lambda *_: lambda batch, batch_id: None,  # it is never started
            arguments=StageArguments(resources=_NoResources()),
            members=dict.fromkeys(self.pipeline.members(uid), StageArguments(resources=_NoResources())),
            compare=comparison,
            warn=lambda message: None,
        )
        before = PlanFacts.of(said.plan, {})
        known = zip(before.sources, before.source_schemas, strict=False)
        self.stand_ins.known |= {name: schema for name, schema in known if schema}
        try:
            return query.planned(spark)
        except NotAtHand as error:
            found[StageVerdict.UNKNOWN].append(str(error))
        except InvalidRequest as error:
            found[StageVerdict.REFUSED].append(str(error))
        except Exception as error:  # whatever the user's code raises where nothing is at hand
            said_first = first_line(error)
            why = f"its function cannot be called here: {type(error).__name__}: {said_first}"
            found[StageVerdict.UNKNOWN].append(why)
        return None

    def _compare_sink(
        self, uid: StageUid, saved: TableSnapshot, said: StageFacts, frame: DataFrame, found: Findings
    ) -> None:
        """Compare where a sink's rows are, and those that wait, with the sink as it is now."""
        stage, folder = self.pipeline.stages[uid], self.attempt.root
        if stage.table is None:
            return
        sink = open_sink(stage, self.pipeline.name, table_dir=folder, work_dir=folder)
        for name in (one for one in stage.table.key if one not in frame.columns):
            why = f"the rows have no column {name}: there are {', '.join(frame.columns)}"
            found[StageVerdict.REFUSED].append(why)
        if why := _other_place(uid, saved, sink.place, folder):
            found[StageVerdict.REFUSED].append(why)
        now = SinkNow.of(stage, sink, frame.schema.json())
        if not self.facts.is_shown:
            try:
                refuse_changed_sink(uid, str(self.pipeline.name), said.prepared, now)
            except InvalidRequest as error:
                found[StageVerdict.REFUSED].append(str(error))
        elif not sink.never_rolls_back:
            for verdict, why in _other_table(uid, said.prepared[-1:], now):
                found[verdict].append(why)


def _other_table(
    uid: StageUid, newest: Sequence[PreparedBatch], now: SinkNow
) -> Iterator[tuple[StageVerdict, str]]:
    """Yield the differences of a sink from the one that wrote the newest rows of its table."""
    for batch in newest:
        for rule, was, is_now in refused_facts(batch, now):
            changed = f"sink {uid!r}: its {rule.fact} were ({was}), and now they are ({is_now})"
            if rule.is_of_table:
                ways_out = (
                    "change it back, write another table under a new uid, or begin with restore_from: none"
                )
                yield StageVerdict.REFUSED, f"{changed}, which its table does not take: {ways_out}"
            elif not now.is_complete:
                yield StageVerdict.UNKNOWN, f"{changed}: the deployment tells whether its table takes them"


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


# --- what is read, and what moves ------------------------------------------------------------------------------


def _sources(graph: PipelineGraph, matched: MatchedStages, facts: ExportedFacts) -> Iterator[SourcePlan]:
    sources = {stage.uid for stage in graph.sources}
    for match in matched.matches:
        if match.uid in sources:
            names = PlanFacts.of(facts.stages.get(match.snapshot.uid, StageFacts()).plan, {}).sources
            in_order = sorted(match.snapshot.offsets.items(), key=lambda one: (len(one[0]), one[0]))
            for place, (source, offset) in enumerate(in_order):  # Spark numbers the sources of a query
                name = names[place] if place < len(names) else source
                short = offset if len(offset) <= _LONGEST_OFFSET else f"{offset[:_LONGEST_OFFSET]}…"
                yield SourcePlan(stage=str(match.uid), source=name, reads_on=f"behind {short}")
    begin = [*(match.uid for match in matched.matches if not match.snapshot.offsets), *matched.new]
    for uid in begin:
        if uid in sources:
            yield SourcePlan(stage=str(uid), source="", reads_on="from its beginning")


def _sinks(pipeline: CheckpointedPipeline, matched: MatchedStages) -> Iterator[SinkPlan]:
    saved = {match.uid: match.snapshot.table for match in matched.matches}
    for uid, stage in pipeline.stages.items():
        if stage.table is None:
            continue
        becomes = "begins with the rows that are written now"
        if table := saved.get(uid):
            stays = table.cannot_roll_back and f"does not go back: {table.cannot_roll_back}"
            becomes = stays or "goes on behind this checkpoint; a restore takes newer rows back"
        yield SinkPlan(stage=str(uid), table=stage.table.name, becomes=becomes)
