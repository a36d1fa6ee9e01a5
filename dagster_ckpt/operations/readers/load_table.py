"""A sink's published table, loaded for whoever works on with its rows; or asked whether a snapshot's rows are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.authoring.targets import SinkTarget, target_at
from dagster_ckpt.core.checkpoint.tables import ServingRecord, ShownTable, ShownTables
from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.model import StageSnapshot, TableSnapshot
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import find_record, serving_of
from dagster_ckpt.operations.readers.open_sink import (
    Coordinator,
    ReaderTable,
    open_sink,
    own_table,
    served_table,
    tables_of,
)
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.operations.snapshots.contents import (
    FileProblem,
    ProblemKind,
    Verified,
    prepared_batches_of,
    require_stage,
)
from dagster_ckpt.spark.sink.opening import open_at, open_target
from dagster_ckpt.spark.sink.port import Sink, SinkCut
from dagster_ckpt.spark.sink.positions import as_fork_began
from dagster_ckpt.spark.sink.rows import PublishedRows, RowsWithCheckpoint
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot


def load_table(
    table: CheckpointedPipeline | SinkTarget | str | Path,
    sink: str = "",
    *,
    coordinator: Coordinator | None = None,
    as_of: str = "",
) -> PublishedRows:
    """Return the rows that a sink has published, of one state of its table, whatever is published meanwhile.

    ``.to_arrow()``, ``.to_pandas()``, ``.to_polars()``, ``.to_duckdb()`` and ``.to_spark(spark)`` read them. Those of a
    stage's quarantine have the column ``checkpoint``: which one published them, NULL once the table has forgotten.

    Args:
        table: the pipeline; or the table itself, by path, by URI or as the target its sink names.
        sink: of a pipeline, the sink's uid; may be left out where it has one only.
        coordinator: the coordinator resource; not needed for a table with a place of its own.
        as_of: ``latest``, a key such as ``chk-31`` or ``savepoint-7``, or the path or URI of one: exactly its rows, in
            the pipeline's own table, whichever serves the name after a swap.

    Raises:
        NotFound: nothing was published there yet, or there is no such sink or snapshot.
        InvalidRequest: it cannot be loaded, or not as of a snapshot.
        Corrupt: rows of that snapshot are gone.
    """
    if not isinstance(table, CheckpointedPipeline):
        if sink or as_of:
            raise InvalidRequest(
                f"only of a pipeline's table is known what it showed at a checkpoint: load_table(pipeline, sink, "
                f"coordinator=..., as_of=...), not {table!r}"
            )
        return _at_place(table).rows()
    uid = table_of(table, sink)
    return _as_of(table, uid, coordinator, as_of) if as_of else _now(table, uid, coordinator)


def _now(pipeline: CheckpointedPipeline, uid: StageUid, coordinator: Coordinator | None) -> PublishedRows:
    serving = None if coordinator is None else serving_of(coordinator.deployment(pipeline), pipeline.name)
    if coordinator is None or serving is None:
        table = own_table(pipeline, uid, coordinator)
    else:
        table = served_table(pipeline, uid, coordinator, serving)
    stage = pipeline.stages.get(uid)
    if stage is None or stage.participant is None:
        return table.rows()
    return RowsWithCheckpoint(table.rows(), table.opened.checkpoints_of)


def _as_of(
    pipeline: CheckpointedPipeline, uid: StageUid, coordinator: Coordinator | None, as_of: str
) -> PublishedRows:
    """Return the rows of a snapshot of the pipeline: its own, whoever serves readers now."""
    if uid not in pipeline.stages:
        raise InvalidRequest(
            f"{uid!r} is computed from other tables, and no snapshot holds its rows: load those as of {as_of!r}"
        )
    if coordinator is None:
        raise InvalidRequest(
            f"as_of={as_of!r} needs the coordinator resource: load_table(..., coordinator=...)"
        )
    opened = open_sink(pipeline, uid, coordinator)
    found = find_snapshot(coordinator.deployment(pipeline), as_of, pipeline.name)
    return opened.rows(_cut(found, pipeline, uid, opened))


def table_of(pipeline: CheckpointedPipeline, sink: str) -> StageUid:
    """Return the uid of a pipeline's table; empty: the only one. Raises NotFound, naming those there are."""
    sinks = tables_of(pipeline)
    if not sink and len(sinks) == 1:
        return sinks[0]
    if sink not in sinks:
        named = f"no sink {sink!r}" if sink else "more than one sink"
        raise NotFound(f"pipeline {pipeline.name!r} has {named}: name one of {', '.join(sinks) or 'none'}")
    return StageUid(sink)


def _at_place(table: SinkTarget | str | Path) -> Sink:
    """Return the sink at a place of its own, which no pipeline has to tell."""
    target = table if isinstance(table, SinkTarget) else target_at(str(table))
    assert target is not None
    target.refuse_unless_whole()
    return open_target(target)


def _cut(found: FoundSnapshot, pipeline: CheckpointedPipeline, uid: StageUid, sink: Sink) -> SinkCut:
    source = found.stored
    if not pipeline.is_called(found.pipeline):
        raise InvalidRequest(
            f"{source.describe()} is not one of pipeline {pipeline.name!r}: load the table of its own one"
        )
    names = pipeline.stages[uid].names
    stage = require_stage(source, next((name for name in names if source.metadata.stage(name)), uid))
    snapshot = stage.table
    if snapshot is None:
        raise InvalidRequest(
            f"{source.describe()} says nothing of the table of {uid!r}, which was no sink then: load the newest rows, "
            "without as_of"
        )
    _refuse_another_table(source.describe(), uid, sink, snapshot)
    return cut_of(source, stage, snapshot)


def cut_of(
    source: StoredSnapshot, stage: StageSnapshot | None, snapshot: TableSnapshot, *, fork: str = ""
) -> SinkCut:
    """Return a sink's part of a snapshot; ``fork``: place of the sink, of a fork that began with the snapshot.

    ``stage``: None for a table that it had no stage for.

    Raises Corrupt, Unavailable.
    """
    metadata = source.metadata
    if fork:
        began, number = as_fork_began(snapshot, fork), CheckpointId(metadata.number_at_sinks)
        return SinkCut(snapshot=began, batches=(), checkpoint_id=number)
    return SinkCut(
        snapshot=snapshot,
        batches=() if stage is None else prepared_batches_of(source, stage),
        checkpoint_id=CheckpointId(metadata.number_at_sinks),
        lineages=frozenset((metadata.lineage, *metadata.lineages)) - {""},
    )


def _refuse_another_table(what: str, uid: StageUid, sink: Sink, snapshot: TableSnapshot) -> None:
    is_same = snapshot.sink == sink.kind and same_place(snapshot.uri, sink.place)
    if is_same or snapshot.head is None:
        return
    if snapshot.sink != sink.kind or not sink.has_published(snapshot.head):
        raise InvalidRequest(
            f"sink {uid!r} writes {sink.place} now, and the rows of {what} are in {snapshot.uri}: load that table"
        )


def with_tables(verified: Verified, source: StoredSnapshot) -> Verified:
    """Add what is gone of the tables that the snapshot's sinks write, and which could not be asked.

    Staged rows are read, of published files the size is compared: their content is the table format's own.
    """
    problems: list[FileProblem] = []
    remarks: list[str] = []
    for stage in source.metadata.stages:
        cut = stage.table
        if cut is None or (cut.head is None and not cut.prepared):
            continue
        try:
            sink = open_at(cut.uri, cut.sink, PipelineId(source.metadata.pipeline), StageUid(stage.uid))
            found = None if sink is None else sink.difference(cut_of(source, stage, cut))
        except Corrupt as error:
            problems.append(_problem(stage, cut.uri, str(error)))
        except CheckpointError as error:
            remarks.append(f"the table of stage {stage.uid} ({cut.uri}) could not be asked: {error}")
        else:
            if found is None:
                remarks.append(
                    f"the table of stage {stage.uid} ({cut.uri}) was not asked: its next run does that"
                )
    return replace(
        verified,
        problems=tuple(sorted((*verified.problems, *problems), key=lambda p: (p.stage, p.path))),
        remarks=(*verified.remarks, *remarks),
    )


def _problem(stage: StageSnapshot, path: str, message: str) -> FileProblem:
    return FileProblem(stage=stage.uid, path=path, problem=ProblemKind.MISSING, message=message)


TRIES = 5
"""How often the pointer is read again where what it named went meanwhile."""


class NoOlderRows(InvalidRequest):
    """A table cannot be read as of a checkpoint; the message says why, in one sentence."""


class LoadedTables(Mapping[StageUid, PublishedRows]):
    """Rows of tables by the uid of their sink, all of one checkpoint."""

    def __init__(self, checkpoint_id: int | None, tables: Mapping[StageUid, PublishedRows]) -> None:
        self.checkpoint_id = checkpoint_id
        """Checkpoint whose rows they are; None: the pipeline began without state, and they have none."""
        self._tables = dict(tables)

    def __getitem__(self, uid: str) -> PublishedRows:
        return self._tables[StageUid(uid)]

    def __iter__(self) -> Iterator[StageUid]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def load_tables(
    pipeline: CheckpointedPipeline, *, coordinator: Coordinator, without: Sequence[str] = ()
) -> LoadedTables:
    """Return the tables of a pipeline as of the newest checkpoint that all of them show.

    ``load_tables(shop, coordinator=...)["orders"].to_polars()``: a join of two of them is always of one checkpoint,
    also while it is being published, after a kill and during a restore. Rows are read when a form of them is asked for.

    Args:
        pipeline: whose tables; after a swap those of the pipeline that serves its name.
        coordinator: the coordinator resource.
        without: uids of tables that are left out.

    Raises:
        NotFound: no checkpoint is shown by all tables yet, or the pipeline has no such table.
        InvalidRequest: a table cannot show the rows of an older checkpoint: it is named, to be left out.
        Corrupt: rows of that checkpoint are gone.
    """
    wanted = _wanted(pipeline, without)
    for tries in range(TRIES):
        moment = moment_of(pipeline, coordinator)
        try:
            return LoadedTables(moment.shown.checkpoint_id, _loaded(moment, wanted))
        except (Corrupt, NotFound):
            is_newest = moment_of(pipeline, coordinator).shown == moment.shown
            if is_newest or tries == TRIES - 1:
                raise
    raise AssertionError("the last try returns or raises")


def _wanted(pipeline: CheckpointedPipeline, without: Sequence[str]) -> list[StageUid]:
    tables = tables_of(pipeline)
    unknown = sorted({*without} - {*tables})
    if unknown:
        raise NotFound(
            f"pipeline {pipeline.name!r} has no table {unknown[0]!r} to leave out: it has "
            f"{', '.join(tables) or 'none'}"
        )
    return [uid for uid in tables if uid not in without]


def _loaded(moment: Moment, wanted: Sequence[StageUid]) -> dict[StageUid, PublishedRows]:
    found: dict[StageUid, PublishedRows] = {}
    reasons: dict[StageUid, str] = {}
    for uid in wanted:
        try:
            found[uid] = moment.rows(uid)
        except NoOlderRows as error:
            reasons[uid] = str(error)
    if reasons:
        raise InvalidRequest(
            f"{'; '.join(reasons.values())}. Leave out what cannot be read as of a checkpoint: load_tables(..., "
            f"without={[str(uid) for uid in reasons]})"
        )
    return found


@dataclass(frozen=True, slots=True)
class Moment:
    """Checkpoint that the tables readers find show together; as long as it is kept, it is the same."""

    pipeline: CheckpointedPipeline
    coordinator: Coordinator
    serving: ServingRecord | None
    shown: ShownTables

    def is_empty(self, uid: StageUid) -> bool:
        """Tell whether a table has no rows of any checkpoint at this moment."""
        found = self._found(uid)
        return found is not None and found.head is None

    def rows(self, uid: StageUid) -> PublishedRows:
        """Return a table's rows at this moment.

        Raises NoOlderRows for a table that cannot show them, Corrupt where they are gone, NotFound where a fork that
        serves has no such table.
        """
        table = self._table(uid)
        found = self._found(uid)
        if found is None:
            raise NoOlderRows(f"table {uid!r} has been shown with no checkpoint yet: run the pipeline once")
        return self._at(table, uid, found)

    def _found(self, uid: StageUid) -> ShownTable | None:
        """Return a table as all show it: of a renamed sink under its former name, until all show it under this one."""
        stage = self.pipeline.stages.get(uid)
        names = (uid,) if stage is None else stage.names
        return next((self.shown.tables[one] for one in names if one in self.shown.tables), None)

    def _table(self, uid: StageUid) -> ReaderTable:
        if self.serving is None:
            return own_table(self.pipeline, uid, self.coordinator)
        return served_table(self.pipeline, uid, self.coordinator, self.serving)

    def _at(self, table: ReaderTable, uid: StageUid, found: ShownTable) -> PublishedRows:
        if not same_place(table.place, found.uri):
            raise InvalidRequest(
                f"sink {uid!r} writes {table.place} in this code, and what all tables show of it is in {found.uri}: "
                "run the pipeline once with this code, or load with the code that wrote it"
            )
        cut = SinkCut(snapshot=found.as_cut(), batches=(), checkpoint_id=CheckpointId(found.head or 0))
        try:
            return table.rows(cut)
        except InvalidRequest as error:
            raise NoOlderRows(f"sink {uid!r}: {error}") from error


def moment_of(pipeline: CheckpointedPipeline, coordinator: Coordinator) -> Moment:
    """Return the moment that all tables of a pipeline's name show now. Raises NotFound, Corrupt, Unavailable."""
    store = coordinator.deployment(pipeline).store
    record = find_record(store, pipeline.name)
    serving = None if record is None else record.serving
    if serving is not None and serving.pipeline != pipeline.name:
        names: tuple[PipelineId, ...] = (PipelineId(serving.pipeline),)
    else:  # of a renamed pipeline, until all its tables were shown under the new name: what they showed under the old
        names = (pipeline.name, *pipeline.previous_names)
    records = (find_record(store, name) for name in names)
    shown = next((one.shown for one in records if one is not None and one.shown is not None), None)
    if shown is None or not shown.tables:
        raise NotFound(
            f"no checkpoint of pipeline {pipeline.name!r} is shown by all its tables yet: run it once; load_table "
            "loads what one table shows now"
        )
    return Moment(pipeline, coordinator, serving, shown)
