"""Tables of a pipeline as of one checkpoint that all of them show, whatever is published meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.shown import ServingRecord, ShownTable, ShownTables
from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.location import same_place
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.readers.open_sink import (
    Coordinator,
    ReaderTable,
    own_table,
    served_table,
    tables_of,
)
from dagster_ckpt.operations.records import find_record
from dagster_ckpt.spark.sink.port import SinkCut
from dagster_ckpt.spark.sink.rows import PublishedRows

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
        found = self.shown.tables.get(uid)
        return found is not None and found.head is None

    def rows(self, uid: StageUid) -> PublishedRows:
        """Return a table's rows at this moment.

        Raises NoOlderRows for a table that cannot show them, Corrupt where they are gone, NotFound where a fork that
        serves has no such table.
        """
        table = self._table(uid)
        found = self.shown.tables.get(uid)
        if found is None:
            raise NoOlderRows(f"table {uid!r} has been shown with no checkpoint yet: run the pipeline once")
        return self._at(table, uid, found)

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
        record = find_record(store, PipelineId(serving.pipeline))
    shown = None if record is None else record.shown
    if shown is None or not shown.tables:
        raise NotFound(
            f"no checkpoint of pipeline {pipeline.name!r} is shown by all its tables yet: run it once; load_table "
            "loads what one table shows now"
        )
    return Moment(pipeline, coordinator, serving, shown)
