"""Participants in publishes: derived tables, computed from the published rows, and views in Spark's catalog on tables.

A derived table is shown in one step as the sink of all its rows. What one was computed from is written down behind it:
whoever finds another state of what it reads, or of itself, computes it again, so a process may die anywhere in between.

A view and no table: it names exactly the files of what is published, so that a reader sees all of a publish or nothing
of it; Spark refuses to read it as a stream, and nobody can write through it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dagster_ckpt.authoring.stage_settings import DerivedTable
from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import Record
from dagster_ckpt.core.units import counted
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import InvalidRequest, NotFound, Unavailable
from dagster_ckpt.spark.channel.sink import PLAIN_PARQUET
from dagster_ckpt.spark.directories import staged_rows
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.java.process import JAVA_GONE, is_java_gone
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.session import session_settings
from dagster_ckpt.spark.sink.committables import encoded, read_record
from dagster_ckpt.spark.sink.phases import Judge
from dagster_ckpt.spark.sink.port import AttemptId, Published, Sink
from dagster_ckpt.spark.sink.rows import empty_query
from dagster_ckpt.spark.stage_report import Reporter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt.spark.attempt.sinks import PipelineSinks


_NOTE = "computed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedTable(DerivedTable):
    """A derived table that a function of the published rows makes."""

    fn: Callable[[SparkSession, Mapping[StageUid, DataFrame | None]], DataFrame]
    """Called with the rows of what it reads; None: nothing was published there yet."""
    definition: str = ""
    """Other for another function: then it is computed again."""
    each_run: bool = False
    """Computed once in every run also where what it reads has not changed: it depends on more than that."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of the session from the call of ``fn`` until its rows are written: Spark plans and executes it late."""


@dataclass(frozen=True, slots=True)
class ComputedTables:
    """Participant in publishes that computes the tables whose inputs have changed; each after those it reads."""

    tables: tuple[ComputedTable, ...]
    is_forked: bool = True

    def open(self, tables: PipelineSinks) -> Callable[..., None]:
        """Return the function that computes them in one attempt; a table that fails is in ``unpublished``."""

        def compute(checkpoint: int, reporter: Reporter, *, only_existing: bool = False) -> None:
            for table in self.tables:
                if not only_existing or state_of(tables.of(table.uid)):
                    _compute(table, tables, checkpoint, reporter)

        return compute


def _compute(table: ComputedTable, tables: PipelineSinks, checkpoint: int, reporter: Reporter) -> None:
    name, pipeline = tables.name_of(table.uid), tables.pipeline.name
    try:
        if late := [uid for uid in table.reads if tables.name_of(uid) in tables.unpublished]:
            raise Unavailable(f"{late[0]}, which it is computed from, is not published yet")
        done = refresh(
            table,
            tables.of(table.uid),
            folder=staged_rows(tables.work_dir, pipeline, table.uid),
            reads={uid: tables.of(uid) for uid in table.reads},
            permit=permit_of(pipeline, tables.attempt_id(), checkpoint),
            session=tables.session,
        )
    except Exception as error:
        why = JAVA_GONE if is_java_gone(error) else str(error)
        tables.note_late(name, why)
        reporter.warn(f"table {table.uid} is not computed, the next checkpoint tries again: {why}")
        return
    tables.note_shown(name)
    if done is not None:
        reporter.info(f"table {table.uid}: computed, {counted(done.rows, 'row')}")
        tables.tell_changed(table.uid, checkpoint, rows=done.rows, bytes=done.bytes, version=done.version)


class Computed(Record):
    """``computed.json`` in the table's own folder, beside what is staged: what the rows were computed from."""

    format_version: Literal[1] = 1
    token: str
    shown: str
    """State of the table with these rows: another one has other rows."""


def refresh(
    table: ComputedTable,
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


def _token(table: ComputedTable, reads: Mapping[StageUid, Sink], permit: CommitPermit) -> str:
    """Return a text that is another one for other rows."""
    run = [permit.lineage, permit.epoch] if table.each_run else None
    return json.dumps(
        [table.definition, run, *([uid, reads[uid].place, state_of(reads[uid])] for uid in table.reads)]
    )


def state_of(sink: Sink) -> str:
    """Return a text that is another one for each state of a table; empty: it shows nothing."""
    at = sink.position()
    shown = None if at is None else [at.lineage, at.head, at.through_batch, at.others]
    return "" if at is None or at.head is None else json.dumps(shown)


def _rows(sink: Sink, spark: SparkSession) -> DataFrame | None:
    """Return the rows that a sink shows; None: it has no rows and, it may be, no columns either."""
    return sink.rows().to_spark(spark) if state_of(sink) else None


_OWNER = "dagster_ckpt.pipeline"
_DEFINITION = "dagster_ckpt.definition"
_HOW = "take the dataset out of catalog_views"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogView:
    """A view on a sink's table, or on a derived one."""

    uid: StageUid
    name: str
    """``catalog.schema.table``."""
    row_schema: str
    """Its columns, as Spark writes schemas."""


@dataclass(frozen=True, slots=True)
class CatalogViews:
    """Participant in publishes that makes the views which are to be other ones than they are. A fork makes none."""

    views: tuple[CatalogView, ...]
    is_forked: bool = False

    def open(self, tables: PipelineSinks) -> Callable[..., None]:
        """Return the function that makes them in one attempt; a view that fails is in ``unpublished``."""
        shown: dict[str, str] = {}

        def show(_checkpoint: int, reporter: Reporter, *, only_existing: bool = False) -> None:
            for view in self.views:
                name = f"view {view.name}"
                try:
                    wanted = definition_of(view, tables.of(view.uid))
                    if shown.get(view.name) == wanted:
                        continue
                    show_in_catalog(tables.session(), view, wanted, owner=str(tables.pipeline.name))
                except Exception as error:
                    tables.unpublished[name] = str(error)
                    reporter.warn(
                        f"{name} is not in Spark's catalog, the next checkpoint tries again: {error}"
                    )
                    continue
                shown[view.name] = wanted
                tables.unpublished.pop(name, None)
                reporter.info(f"{name} is in Spark's catalog")

        return show


def definition_of(view: CatalogView, table: Sink) -> str:
    """Return the query of a view on what a table shows. Raises InvalidRequest for rows that Spark cannot be told of."""
    try:
        files = table.rows().files()
    except NotFound:
        return empty_query(view.row_schema)
    if files is None:
        raise InvalidRequest(f"Spark reads {table.place} with a reader of its own only: {_HOW}")
    return files.query(view.row_schema)


def show_in_catalog(spark: SparkSession, view: CatalogView, definition: str, *, owner: str) -> None:
    """Make a view, or replace it where it is ours. Raises InvalidRequest where something else has its name."""
    name, digest = ".".join(map(quoted, view.name.split("."))), digest_bytes(definition.encode()).checksum
    if spark.catalog.tableExists(name):
        there = _properties(spark, name)
        if there.get(_OWNER) != owner:
            whose = (
                f"a view of pipeline {there[_OWNER]!r}"
                if _OWNER in there
                else "a table or view of somebody else's"
            )
            raise InvalidRequest(
                f"{view.name} is to be a view on the rows of {view.uid!r}, and is {whose}: rename that first "
                f"(ALTER TABLE {view.name} RENAME TO ...), or {_HOW}"
            )
        if there.get(_DEFINITION) == digest:
            return
    properties = f"'{_OWNER}' = '{owner}', '{_DEFINITION}' = '{digest}'"
    spark.sql(f"CREATE OR REPLACE VIEW {name} TBLPROPERTIES ({properties}) AS {definition}")


def _properties(spark: SparkSession, name: str) -> dict[str, Any]:
    return {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
