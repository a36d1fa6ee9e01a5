"""Port of what takes part in a stage's batches: it writes them for the channel log, and may keep rows in a table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dagster_ckpt.authoring.stages import StageDefinition, StageRole
from dagster_ckpt.core.checkpoint.tables import RequeueRecord
from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.spark.channel.batch_input import BatchInput
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import DataFile, replace_whole
from dagster_ckpt.spark.plan.tree import analyzed, expression, kind_of
from dagster_ckpt.spark.sink.accepts import RowRule
from dagster_ckpt.spark.sink.port import Sink
from dagster_ckpt.spark.snapshot.checkpoint_files import read_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
    from dagster_ckpt.spark.attempt.sinks import PipelineSinks


@dataclass(frozen=True, slots=True)
class RuleAhead:
    """A rule of a table's rows, and the table."""

    place: str
    rule: RowRule

    @property
    def said(self) -> str:
        """The rule's sentence for a row that breaks it."""
        return f"column {self.rule.column!r} has {self.rule.what}, and {self.place} cannot hold it"


def rules_ahead(
    pipeline: CheckpointedPipeline, uid: StageUid, frame: DataFrame, sink_of: Callable[[StageUid], Sink]
) -> tuple[RuleAhead, ...]:
    """Return the rules of the sinks that get a stage's rows, or some of their columns, as they are.

    Of a sink that filters rows or makes other columns of them, nobody knows ahead what it is going to write.
    """
    return tuple(_rules(pipeline, uid, frame, sink_of))


def _rules(
    pipeline: CheckpointedPipeline, uid: StageUid, frame: DataFrame, sink_of: Callable[[StageUid], Sink]
) -> Iterator[RuleAhead]:
    for reader, inputs in pipeline.authored.upstream.items():
        stage = pipeline.authored.stages[reader]
        if stage.role is not StageRole.SINK or inputs != (uid,):
            continue
        if stage.takes_context or stage.takes_spark or stage.state is not None:
            continue
        rows = stage.fn(**dict.fromkeys(stage.inputs, frame))
        if are_columns_of(rows, frame):
            sink = sink_of(reader)
            yield from (RuleAhead(sink.place, rule) for rule in sink.accepts.rules(rows.schema.json()))


def are_columns_of(rows: DataFrame, frame: DataFrame) -> bool:
    """Tell whether rows are a frame's, each as it is, with all of its columns or some."""
    node, whole = analyzed(rows), analyzed(frame)
    while node is not None and node != whole:
        if kind_of(node) not in ("Project", "SubqueryAlias"):
            return False
        if any(kind_of(expression(one)) != "AttributeReference" for one in node.get("projectList") or ()):
            return False
        node = node["_children"][0]
    return node is not None


@dataclass(frozen=True, slots=True)
class Requeue:
    """Orders for rows of a stage's own table, and that table."""

    orders: tuple[RequeueRecord, ...]
    table: Sink

    @classmethod
    def of(cls, uid: StageUid, record: CoordinatorRecord, tables: PipelineSinks) -> Requeue | None:
        """Return the orders for rows of a stage's table, where both are there."""
        if tables.pipeline.stages[uid].table is None:
            return None
        found = tuple(order for order in record.requeue if order.stage in tables.pipeline.stages[uid].names)
        return cls(found, tables.of(uid)) if found else None


def plan_empty_batch(query: Path) -> None:
    """Have a query begin with a batch that reads nothing, unless one is planned: rows go through without new input.

    Spark runs the batch behind the last committed one as its offsets are written down, here with no progress.
    """
    planned, committed = (_numbers(query / name) for name in ("offsets", "commits"))
    if not committed or planned[-1:] != committed[-1:]:
        return
    version, header, *offsets = (query / "offsets" / str(planned[-1])).read_text(encoding="utf-8").split("\n")
    said = parse_json(header)
    watermark = read_commit(query / "commits" / str(committed[-1])).watermark_ms or 0
    said |= {
        "batchTimestampMs": int(time.time() * 1000),
        "batchWatermarkMs": max(watermark, said.get("batchWatermarkMs") or 0),
    }
    text = "\n".join([version, json.dumps(said), *offsets])
    replace_whole(query / "offsets" / str(planned[-1] + 1), text.encode())


def _numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())


class BatchFiles(Protocol):
    """Writer of a stage's micro-batches into files for its channel log."""

    schema: StructType
    """Columns of what goes on."""

    def write(self, frame: DataFrame, folder: Path, root: Path, batch_id: BatchId) -> tuple[DataFile, ...]:
        """Write a batch below a new folder; return the files that readers get, named relative to ``root``.

        Called again for a batch whose entry is not in the log: what the first try has kept is not there then.
        """

    def replay(self, frame: DataFrame) -> None:
        """Run a batch whose entry is in the log, for the state that it leaves."""


@dataclass(frozen=True, kw_only=True)
class ParticipantContext:
    """Context in which a participant is opened, each time its stage's query starts."""

    stage: StageDefinition
    directory: StageDirectory
    frame: DataFrame
    """The rows that the stage returns."""
    keep: Callable[[DataFrame], Callable[[DataFrame, int], None]]
    """Return, for rows of this schema, the function that prepares a batch of them for the participant's table."""
    requeue: Callable[[], Requeue | None]
    """Return what is to be put through the stage again; None: nothing."""
    function: Callable[[SparkSession, Sequence[DataFrame]], DataFrame]
    """Return the rows that the stage's function makes of other inputs, which may be no streams."""
    processed: Callable[[DataFrame, BatchId], AbstractContextManager[DataFrame]]
    """Return a batch's rows as the stage's own objects make them, for each try of the batch."""
    input_of: Callable[[BatchId | None], BatchInput]
    """Return the input of a planned batch, to be read again; None: one without rows."""
    rules_ahead: Callable[[DataFrame], Sequence[RuleAhead]]
    """Return the rules of the tables behind the stage, for rows that go on to them."""
    own_table: Callable[[], Sink | None]
    """Return the participant's own table; None: nothing is asked of tables."""
    warn: Callable[[str], None]
