"""Sources of a query in Spark's order, by which it tells positions apart; plans of stages that run in one query.

Asked where a pipeline begins without state (``see_plans``: which chains there are is written into its checkpoints from
then on), and again at every start of a chain, because its stages may have been changed since (``ChainOfFrames``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.chains import SeenInPlans, judges_of, layout_of
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import Chain
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.schema import FORMAT
from dagster_ckpt.spark.java.plans import analyzed_plan, leaves_of, nodes_of, scala_items
from dagster_ckpt.spark.java.sessions import is_local
from dagster_ckpt.spark.plan.errors import WAY_OUT, ChangedQuery, understood
from dagster_ckpt.spark.plan.tree import Tree, analyzed, columns_of, is_source, is_streaming, kind_of, walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

_KAFKA = "kafka"
_TOPICS = ("subscribe", "subscribePattern", "assign")
_NOT_WHAT_IS_READ = re.compile(r"max|min|.*(?:password|secret|token|credential|jaas)")
"""Options that say how fast, and those that nothing is kept of."""


def sources_in(plan: Tree, frame: DataFrame) -> list[str]:
    """Return the names of the streaming sources in Spark's order; channels are told apart by their offsets."""
    found = (node for node in walk(plan) if is_source(node))
    names = [str(node.get("sourceName", "")) for node in found if "sourceName" in node]
    return [_with_topics(node) for node in relations(frame)] if _KAFKA in names else names


def options_of_sources(names: Sequence[str], frame: DataFrame) -> list[str]:
    """Return a digest per source of the options that say what is read, where sources have one name.

    The name of files is their folder: which of them are read may be said by an option. Options of other sources may be
    all that says what they read.
    """
    if len(set(names)) == len(names):
        return []
    return [_digest(one) if one.sourceName() != FORMAT else "" for one in relations(frame)]


def schemas_of_sources(frame: DataFrame) -> list[str]:
    """Return the schema of each source in Spark's order, as JSON; none of a channel, which its writer tells."""
    return ["" if one.sourceName() == FORMAT else str(one.schema().json()) for one in relations(frame)]


def channels_read(frame: DataFrame) -> dict[int, Path]:
    """Return the working directory of the stage that writes each channel, by the channel's place in the plan."""
    found = enumerate(relations(frame))
    return {n: Path(options_said(one)["path"]).parent for n, one in found if one.sourceName() == FORMAT}


def have_moved(before: Sequence[str], now: Sequence[str]) -> bool:
    """Tell whether a source would go on from the position of another one that was in its place."""
    return any(one != other and other in before for one, other in zip(before, now, strict=False))


def relations(frame: DataFrame) -> Iterator[Any]:
    """Return the places of a plan at which streams are read, as Spark's own objects."""
    nodes = nodes_of(analyzed_plan(frame))
    return (node for node in nodes if str(node.getClass().getSimpleName()).startswith("StreamingRelation"))


def _with_topics(relation: Any) -> str:
    """Return a source's name; that of Kafka's does not say which topics it reads."""
    name = str(relation.sourceName())
    if name != _KAFKA:
        return name
    said = (relation.extraOptions().get(option) for option in _TOPICS)
    return f"{name}[{next((text for text in said if text), '')}]"


def options_said(relation: Any) -> Mapping[str, str]:
    """Return the options that the reader of a source was given, as they are spelt."""
    if relation.getClass().getSimpleName() != "StreamingRelation":
        return dict(relation.extraOptions().asCaseSensitiveMap())
    return {str(option._1()): str(option._2()) for option in scala_items(relation.dataSource().options())}


def _digest(relation: Any) -> str:
    given = {name.lower(): value for name, value in options_said(relation).items()}
    telling = sorted((name, value) for name, value in given.items() if not _NOT_WHAT_IS_READ.match(name))
    return hashlib.sha256(json.dumps(telling).encode()).hexdigest()[:16]


# --- files that Spark would take away -------------------------------------------------------------------------

# Files that Spark removes from a source by itself: no restore reads them again, and none says so.

CLEANS = "cleansource"
LEAVES_THEM = "off"


def refuse_clean_source(title: str, frame: DataFrame) -> None:
    """Raise InvalidRequest where a file source of these rows has the option ``cleanSource``.

    Spark removes what a committed batch has read; the checkpoint that a run goes on from may be older.
    """
    for name, value in _set_options(frame):
        if name.lower() == CLEANS and value.strip().lower() != LEAVES_THEM:
            raise InvalidRequest(
                f"a source of {title} has the option {name}={value!r}: Spark takes files away once it has read them, "
                "before a checkpoint holds their rows, and a run that goes on from an older one passes over them "
                "without a word. Leave the option out, and remove files that no retained snapshot reads again"
            )


def _set_options(frame: DataFrame) -> Iterator[tuple[str, str]]:
    for leaf in leaves_of(analyzed_plan(frame)):
        if leaf.getClass().getSimpleName() == "StreamingRelation":
            for option in scala_items(leaf.dataSource().options()):
                yield str(option._1()), str(option._2())


STATELESS = frozenset(
    {
        "Project",
        "Filter",
        "SubqueryAlias",
        "View",
        "Union",
        "Generate",
        "Expand",
        "ResolvedHint",
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
        "DataFrameDropColumns",
        "MapInPandas",
        "MapInArrow",
        "PythonMapInArrow",
        "Sample",
        "SerializeFromObject",
        "DeserializeToObject",
        "MapElements",
        "MapPartitions",
        "TypedFilter",
    }
)
"""Nodes that keep no rows from one micro-batch to the next; any other above a stream is taken to keep some."""

Calls = Callable[["SparkSession", StageUid, Sequence["DataFrame"]], "DataFrame"]
"""Calls the function of a stage."""
Choose = Callable[["CheckpointedPipeline", "SparkSession", Calls, Callable[[str], None]], tuple[Chain, ...]]
"""Chooses the chains of a pipeline that begins without state (``choose_chains``)."""


def why_it_leaves_its_reader(frame: DataFrame) -> str:
    """Return why the rows of ``frame`` need a query of their own; empty: they may be part of their reader's."""
    plan = analyzed(frame)
    if plan is None:
        return "has a plan that Spark does not show"
    for node in walk(plan):
        if why := _why_stateful(node):
            return why
    if not analyzed_plan(frame).deterministic():
        return "is not deterministic: a batch that runs again would bring other rows"
    return ""


def _why_stateful(node: Tree) -> str:
    kind = kind_of(node)
    if is_source(node) or not is_streaming(node):
        return ""
    if kind == "EventTimeWatermark":
        return "has a watermark, which would be its reader's too"
    if kind == "Join":
        return "keeps state (Join)" if all(is_streaming(child) for child in node["_children"]) else ""
    return "" if kind in STATELESS else f"keeps state ({kind})"


def why_it_leaves_its_inputs(frame: DataFrame, inputs: Sequence[DataFrame]) -> str:
    """Return why no input may be part of the query of ``frame``; empty: it reads each once, and nothing else."""
    here, there = _sources(frame), [_sources(one) for one in inputs]
    if here is None or None in there:
        return "has a plan that Spark does not show"
    if sorted(here) != sorted(source for found in there for source in found or ()):
        return "reads other streams than each of its inputs once"
    return ""


_OF_ITS_MOMENT = re.compile(r"expressions\.(?:\w+\.)*(?:Current\w+|LocalTimestamp|Now|\w*Subquery)\"")


def why_it_needs_a_query(frame: DataFrame, inputs: Sequence[DataFrame]) -> str:
    """Return why a stage cannot take rows batch by batch, as a table; empty: its rows are the same then.

    Beyond what may run in its reader's query: nothing but its one input is read, and no moment, which Spark fixes for
    a query's batch.
    """
    plan = analyzed(frame)
    if plan is None or sum(not node["_children"] for node in walk(plan)) != 1:
        return "reads more than its input"
    if why := why_it_leaves_its_reader(frame) or why_it_leaves_its_inputs(frame, inputs):
        return why
    is_of_moment = _OF_ITS_MOMENT.search(str(analyzed_plan(frame).toJSON()))
    return "asks for the moment, or for other rows" if is_of_moment else ""


_OF_AUTHORS = re.compile(r"\.(?:\w*UDF|\w*MapIn\w+|MapElements|MapPartitions|TypedFilter)\"")


def why_readers_may_differ(frame: DataFrame) -> str:
    """Return why those who take a batch may get other values each; empty: all get the same.

    Spark takes functions in Python and Scala for deterministic, and calls them again for what a lost executor held.
    """
    if is_local(frame.sparkSession) or not _OF_AUTHORS.search(str(analyzed_plan(frame).toJSON())):
        return ""
    return "calls functions that may go by chance, on executors that may be lost"


def why_it_reads_apart(inputs: Sequence[StageUid]) -> str:
    """Return why none of a stage's inputs is part of its query: Spark counts a stream that is given twice as one
    source, with two offsets.
    """
    return "reads a stream twice" if len(set(inputs)) < len(inputs) else ""


def _sources(frame: DataFrame) -> list[tuple[int, ...]] | None:
    """Return the streaming sources of a plan in Spark's order, each by the ids of its columns."""
    plan = analyzed(frame)
    if plan is None:
        return None
    return [columns_of(node) for node in walk(plan) if is_source(node)]


# --- where a pipeline begins ------------------------------------------------------------------------------------


def choose_chains(
    pipeline: CheckpointedPipeline, spark: SparkSession, call: Calls, tell: Callable[[str], None]
) -> tuple[Chain, ...]:
    """Return the chains of a pipeline that begins without state, and say why a channel remains."""
    seen = _see_plans(pipeline, spark, call)
    layout = layout_of(pipeline.graph, seen)
    for chain in layout.chains:
        tell(f"chain {chain.name}: {counted(len(chain.stages), 'stage')} run as one query")
    for (uid, reader), why in layout.reasons.items():
        tell(f"stage {uid} writes a channel for {reader}: it {why}")
    return layout.chains


def _see_plans(pipeline: CheckpointedPipeline, spark: SparkSession, call: Calls) -> SeenInPlans:
    """Call every stage's function once; what cannot join its reader is stood in for by its columns only."""
    frames: dict[StageUid, DataFrame] = {}
    leaves_reader: dict[StageUid, str] = {}
    leaves_inputs: dict[StageUid, str] = {}
    for stage in pipeline.graph.topological:
        uid = stage.uid
        inputs = [frames[one] for one in pipeline.upstream[uid] if one in frames]
        try:
            assert len(inputs) == len(pipeline.upstream[uid]), "an input has no columns"
            frame = call(spark, uid, inputs)
            why = why_it_leaves_its_reader(frame)
            if inputs:
                twice = why_it_reads_apart(pipeline.upstream[uid])
                leaves_inputs[uid] = why_it_leaves_its_inputs(frame, inputs) or twice
        except Exception as error:
            _refuse_wrong_code(pipeline, uid, error)  # any other is told where the stage runs
            leaves_reader[uid] = leaves_inputs[uid] = f"cannot be planned ({type(error).__name__})"
            continue
        leaves_reader[uid] = why
        frames[uid] = _stand_in(spark, frame) if why else frame
    return SeenInPlans(leaves_reader=leaves_reader, leaves_inputs=leaves_inputs)


def _refuse_wrong_code(pipeline: CheckpointedPipeline, uid: StageUid, error: Exception) -> None:
    """Raise InvalidRequest, before a row is read, for what a stage's function says of its inputs whenever it is called.

    Settings of the stage's own are not set here: Spark may understand the same function with them.
    """
    from pyspark.errors import AnalysisException

    stage = pipeline.stages[uid]
    if isinstance(error, InvalidRequest):
        raise error
    if isinstance(error, AnalysisException) and pipeline.upstream[uid] and not stage.conf:
        raise InvalidRequest(str(understood(stage, error) or error)) from error


def _stand_in(spark: SparkSession, frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    columns = [f.expr("NULL").cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    return spark.readStream.format("rate").load().select(*columns)


# --- where a chain starts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ChainOfFrames:
    """Frames of a chain's stages while its query is put together."""

    chain: Chain
    _owners: dict[tuple[int, ...], str] = field(default_factory=dict)

    def check(
        self, uid: StageUid, frame: DataFrame, inputs: Sequence[DataFrame], *, from_chain: bool
    ) -> None:
        """Raise ChangedQuery where a stage was changed so that it cannot be part of the chain any more.

        ``from_chain``: some of its inputs are stages of the chain; what it reads by channels it may read twice.

        A plan that Spark does not show (Connect) is no part of a chain either: nothing would tell its sources apart.
        """
        why = why_it_leaves_its_inputs(frame, inputs) if from_chain else ""
        if not why and uid != self.chain.uid:
            why = why_it_leaves_its_reader(frame)
        if why:
            raise ChangedQuery(
                f"stage {uid!r} runs in the chain {self.chain.name} of its checkpoint, and now {why}. {WAY_OUT}"
            )
        for one in (*inputs, frame):
            for source in _sources(one) or ():
                self._owners.setdefault(source, str(uid))

    def owners(self, frame: DataFrame) -> list[str]:
        """Return, per source of the query in Spark's order, the stage that reads it."""
        return [self._owners.get(source, "") for source in _sources(frame) or ()]


def renamed(pipeline: CheckpointedPipeline, uid: StageUid) -> Mapping[str, str]:
    """Return the stages of a query by the uids they had before, or the stage had that judged their rows."""
    authored = pipeline.authored.stages
    specs = [pipeline.authored.graph.by_uid[one] for one in pipeline.members(uid)]
    judged = {judge: str(one.uid) for one in specs for judge in judges_of(one) if judge not in authored}
    return judged | {str(earlier): str(one.uid) for one in specs for earlier in one.previous_uids}
