"""Derived tables of a pipeline: computed from the published rows, and shown in one step as the sink of all their rows.

What one was computed from is written down behind it. Whoever finds another state of what it reads, or of itself,
computes it again, so a process may die anywhere in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dagster_ckpt.authoring.derived import DerivedTable
from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import Record
from dagster_ckpt.spark.channel.sink import PLAIN_PARQUET
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.session import session_settings
from dagster_ckpt.spark.sink.committables import encoded, read_record
from dagster_ckpt.spark.sink.judge import Judge
from dagster_ckpt.spark.sink.port import AttemptId, Published, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_NOTE = "computed.json"


class Computed(Record):
    """``computed.json`` in the table's own folder, beside what is staged: what the rows were computed from."""

    format_version: Literal[1] = 1
    token: str
    shown: str
    """State of the table with these rows: another one has other rows."""


def refresh(
    table: DerivedTable,
    sink: Sink,
    *,
    folder: Path,
    reads: Mapping[StageUid, Sink],
    permit: CommitPermit,
    session: Callable[[], SparkSession],
) -> Published | None:
    """Compute a table if what it reads has changed; None: it has not.

    ``folder``: the table's own, where it is noted what it was computed from.

    Raises Fenced where a newer attempt has computed it, and whatever its function raises.
    """
    token = _token(table, reads, permit)
    known = read_record(Computed, folder / _NOTE)
    if known is not None and known.token == token and known.shown == state_of(sink):
        return None
    sink.take_over()
    position = sink.position()
    shown = None if position is None else position.through_batch
    spark = session()
    with session_settings(spark, {**PLAIN_PARQUET, **table.conf}):
        frame = table.fn(spark, {uid: _rows(reads[uid], spark) for uid in table.reads})
        number = BatchId(0 if shown is None else shown + 1)
        batch = Judge.of(sink, frame).carry_out(sink.prepare, frame, number)
    sink.flush([batch])
    done = sink.publish([batch], permit)
    folder.mkdir(parents=True, exist_ok=True)
    replace_whole(folder / _NOTE, encoded(Computed(token=token, shown=state_of(sink))))
    return done if isinstance(done, Published) else None


def permit_of(pipeline: PipelineId, attempt: AttemptId, checkpoint: int) -> CommitPermit:
    """Return leave to show what is computed from published rows: no checkpoint has to be complete for that."""
    epoch = CoordinatorEpoch(attempt.epoch)
    return CommitPermit(pipeline, epoch, CheckpointId(checkpoint), object(), lineage=attempt.lineage)


def _token(table: DerivedTable, reads: Mapping[StageUid, Sink], permit: CommitPermit) -> str:
    """Return a text that is another one for other rows."""
    run = [permit.lineage, permit.epoch] if table.each_run else None
    return json.dumps(
        [table.definition, run, *([uid, reads[uid].place, state_of(reads[uid])] for uid in table.reads)]
    )


def state_of(sink: Sink) -> str:
    """Return a text that is another one for each state of a table; empty: it shows nothing."""
    at = sink.position()
    return "" if at is None or at.head is None else json.dumps([at.lineage, at.head, at.through_batch])


def _rows(sink: Sink, spark: SparkSession) -> DataFrame | None:
    """Return the rows that a sink shows; None: it has no rows and, it may be, no columns either."""
    return sink.rows().to_spark(spark) if state_of(sink) else None
