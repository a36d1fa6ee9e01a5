"""Blue/green: a fork's tables compared with those that readers find, and readers swapped to them in one step."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import ServingRecord
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.restore.horizon import Positions, merged
from dagster_ckpt.core.supervision.approval import (
    behind,
    comparison_approval,
    refuse_other_pair,
    refuse_stale,
    serving_in,
    swapped_back,
    with_serving,
)
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import Deployment, change_record, load_record, serving_of
from dagster_ckpt.operations.readers.diff_tables import ReadersComparison, TableComparison, diff_tables
from dagster_ckpt.operations.readers.open_sink import (
    Coordinator,
    ReaderTable,
    own_table,
    served_as,
    served_table,
    table_dir_of,
    tables_of,
)
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.ports import AuditRow
from dagster_ckpt.runtime.record_store import NOBODY, Operator, RecordChange
from dagster_ckpt.spark.sink.rows import PublishedRows
from dagster_ckpt.spark.source.positions import source_positions

SWAPPED = "swapped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """A swap that was made."""

    name: PipelineId
    serving: PipelineId
    """Pipeline whose tables readers find now."""
    before: PipelineId
    places: Mapping[str, str]
    """By sink, where readers find its table now."""


def name_of(fork: CheckpointedPipeline) -> CheckpointedPipeline:
    """Return the pipeline whose name readers know. Raises InvalidRequest for one that is no fork."""
    if not fork.origins:
        raise InvalidRequest(
            f"{fork.name!r} is no fork: what readers are swapped to is made with pipeline.fork(...) of what they read"
        )
    return fork.origins[-1]


def compare_readers(
    fork: CheckpointedPipeline,
    coordinator: Coordinator,
    *,
    named: Coordinator | None = None,
    only: Mapping[str, str] | None = None,
    examples: int = 5,
) -> ReadersComparison:
    """Compare a fork's tables with those that readers of its first origin's name find; nothing is changed.

    Args:
        fork: the pipeline that is to serve.
        coordinator: its coordinator resource.
        named: that of the pipeline readers name, where it is another one.
        only, examples: as in ``diff_tables``.

    Raises:
        InvalidRequest: it is no fork. NotFound: one of the two has never run. Corrupt, Unavailable.
    """
    return _Pair.of(fork, coordinator, named or coordinator).compared(only or {}, examples)


def swap_readers(
    fork: CheckpointedPipeline,
    coordinator: Coordinator,
    *,
    named: Coordinator | None = None,
    approved: str = "",
    allow_stale: bool = False,
    allow_behind: bool = False,
    operator: Operator = NOBODY,
    run_id: str = "",
    tries: Collection[str] = (),
) -> Swapped:
    """Make readers of the name find the fork's tables from now on, all at once.

    ``approved``: the approval of a comparison. Without one the tables are compared now, and swapped when they are the
    same. ``tries``: runs of which this one is another try: a swap that one of them has made is made. Raises
    InvalidRequest, naming the way out, where tables differ or have changed since, where the fork is behind, and where
    another swap came first.
    """
    pair = _Pair.of(fork, coordinator, named or coordinator)
    if pair.serving == fork.name:
        return pair.made_by(tries)
    if approved:
        check = refuse_other_pair if allow_stale else refuse_stale
        check(approved, pair.approval, serving=pair.serving, candidate=fork.name)
    else:
        pair.refuse_different()
    late = [] if allow_behind else list(pair.behind())
    if late:
        raise InvalidRequest(
            f"{fork.name!r} is behind {pair.serving!r}: {'; '.join(late)}. Run it first, or allow it (allow_behind)"
        )
    return pair.swap(operator, run_id)


def swap_back(
    fork: CheckpointedPipeline,
    coordinator: Coordinator,
    *,
    named: Coordinator | None = None,
    operator: Operator = NOBODY,
    run_id: str = "",
) -> Swapped:
    """Make readers find the tables again that served before ``fork`` did, as they are now.

    Raises InvalidRequest where the fork does not serve.
    """
    root, now = name_of(fork), time.time()
    deployment = (named or coordinator).deployment(root)
    load_record(deployment.store, root.name)

    def change(record: CoordinatorRecord) -> RecordChange[Swapped]:
        after = swapped_back(record, expected=fork.name, now=now)
        serves = PipelineId(serving_in(after))
        known = {} if after.serving is None else after.serving.tables
        own = {} if known else _places(root, named or coordinator)
        done = Swapped(
            name=root.name,
            serving=serves,
            before=fork.name,
            places=own or {uid: table.place for uid, table in known.items()},
        )
        return RecordChange(
            answer=done, record=after, audit=[_row(done, "swapped back", operator, run_id, now)]
        )

    return change_record(deployment.store, root.name, change)


def who_serves(deployment: Deployment, fork: CheckpointedPipeline) -> PipelineId:
    """Return whose tables readers find of a pipeline's name, or of its first origin's. Raises Corrupt, Unavailable."""
    name = fork.origins[-1].name if fork.origins else fork.name
    serving = serving_of(deployment, name)
    return name if serving is None else PipelineId(serving.pipeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """The pipeline that serves a name, and a fork that is to."""

    root: CheckpointedPipeline
    fork: CheckpointedPipeline
    named: Coordinator
    coordinator: Coordinator
    record: ServingRecord | None

    @classmethod
    def of(cls, fork: CheckpointedPipeline, coordinator: Coordinator, named: Coordinator) -> _Pair:
        root = name_of(fork)
        record = load_record(named.deployment(root).store, root.name)
        load_record(coordinator.deployment(fork).store, fork.name)  # says what there is
        return cls(root=root, fork=fork, named=named, coordinator=coordinator, record=record.serving)

    @property
    def name(self) -> PipelineId:
        return self.root.name

    @property
    def serving(self) -> PipelineId:
        return self.name if self.record is None else PipelineId(self.record.pipeline)

    @property
    def approval(self) -> str:
        return comparison_approval(self.name, self.serving, self.fork.name, self._states())

    def compared(self, only: Mapping[str, str], examples: int) -> ReadersComparison:
        approval = self.approval  # before the rows are read: what comes meanwhile makes it stale
        return ReadersComparison(
            name=self.name,
            serving=self.serving,
            candidate=self.fork.name,
            tables=(*(self._compared(uid, only, examples) for uid in tables_of(self.root)), *self._lost()),
            behind=tuple(self.behind()),
            approval=approval,
            only=only,
        )

    def _states(self) -> dict[str, tuple[str, str]]:
        return {str(uid): (self._found(uid), self._offered(uid)) for uid in tables_of(self.root)}

    def _found(self, uid: StageUid) -> str:
        served = self._served(uid)
        return "" if served is None else served.state()

    def _offered(self, uid: StageUid) -> str:
        known = uid in tables_of(self.fork)
        return own_table(self.fork, uid, self.coordinator).state() if known else ""

    def _served(self, uid: StageUid) -> ReaderTable | None:
        """Return the table that readers find; None: the pipeline that serves has no such table."""
        if self.record is None:
            return own_table(self.root, uid, self.named)
        return served_table(self.root, uid, self.named, self.record) if uid in self.record.tables else None

    def _lost(self) -> Iterator[TableComparison]:
        """Yield the tables that readers find now and the fork's code does not have any more, nor this of their own."""
        known = {*map(str, tables_of(self.root)), *map(str, tables_of(self.fork))}
        found = (
            _published(self.named.deployment(self.root), self.name)
            if self.record is None
            else self.record.tables
        )
        for uid in sorted(set(found) - known):
            yield TableComparison(sink=uid, diff=None, problem=f"{self.fork.name} has no such table")

    def _compared(self, uid: StageUid, only: Mapping[str, str], examples: int) -> TableComparison:
        if uid not in tables_of(self.fork):
            return TableComparison(sink=uid, diff=None, problem=f"{self.fork.name} has no such table")
        stage = self.root.stages.get(uid)
        key = () if stage is None or stage.table is None else stage.table.key
        served = self._served(uid)
        if served is None:
            return TableComparison(sink=uid, diff=None, problem=f"{self.serving} has no such table")
        try:
            before = self._rows(served)
            after = self._rows(own_table(self.fork, uid, self.coordinator))
        except InvalidRequest as error:
            return TableComparison(sink=uid, diff=None, problem=f"cannot be compared: {error}")
        if before is None or after is None:
            one = self.serving if before is None else self.fork.name
            problem = "" if before is after else f"{one} has no rows yet"
            return TableComparison(sink=uid, diff=None, problem=problem)
        return TableComparison(
            sink=uid, diff=diff_tables(before, after, key=key, only=only, examples=examples)
        )

    @staticmethod
    def _rows(table: ReaderTable) -> PublishedRows | None:
        """Return a table's rows; None: it was not made yet."""
        try:
            return table.rows()
        except NotFound:
            return None

    def refuse_different(self) -> None:
        """Raise InvalidRequest where readers would find other rows than now."""
        found = self.compared({}, examples=0)
        if not found.is_same:
            raise InvalidRequest(
                f"{'; '.join(table.line for table in found.tables if not table.is_same)}: nothing was swapped. Compare "
                "them, and approve what you find (approved)"
            )
        refuse_stale(found.approval, self.approval, serving=self.serving, candidate=self.fork.name)

    def behind(self) -> Iterator[str]:
        theirs = _positions(self.coordinator.deployment(self.fork), self.fork.name)
        if theirs is None:
            yield "it has completed no checkpoint yet"
            return
        # A fork that serves may have a store of its own: that of its name's pipeline, or this one's.
        places = (self.named.deployment(self.root), self.coordinator.deployment(self.fork))
        known = [at for one in places if (at := _positions(one, self.serving)) is not None]
        if not known and self.serving != self.name:
            yield f"what {self.serving} has read is in a store that is not known here"
        yield from behind(known[0] if known else {}, theirs)

    def made_by(self, tries: Collection[str]) -> Swapped:
        """Return the swap that an earlier try has made. Raises InvalidRequest where somebody else has."""
        newest = self.named.deployment(self.root).store.audited(self.name, limit=1)
        if self.record is None or not (newest and newest[0].what == SWAPPED and newest[0].run_id in tries):
            raise InvalidRequest(f"{self.fork.name!r} serves {self.name!r} already")
        return Swapped(
            name=self.name,
            serving=self.fork.name,
            before=PipelineId(self.record.before),
            places={uid: table.place for uid, table in self.record.tables.items()},
        )

    def swap(self, operator: Operator, run_id: str) -> Swapped:
        now = time.time()
        tables = {str(uid): served_as(self.fork, uid, self.coordinator) for uid in tables_of(self.fork)}
        serving = ServingRecord(
            pipeline=self.fork.name,
            table_dir=str(table_dir_of(self.fork, self.coordinator)),
            tables=tables,
            since=now,
            before=self.serving,
        )
        done = Swapped(
            name=self.name,
            serving=self.fork.name,
            before=self.serving,
            places={uid: table.place for uid, table in tables.items()},
        )

        def change(record: CoordinatorRecord) -> RecordChange[Swapped]:
            return RecordChange(
                answer=done,
                record=with_serving(record, serving, expected=self.serving),
                audit=[_row(done, SWAPPED, operator, run_id, now)],
            )

        return change_record(self.named.deployment(self.root).store, self.name, change)


def _positions(deployment: Deployment, pipeline: PipelineId) -> Positions | None:
    """Return the positions of topics in a pipeline's latest snapshot; None: it has none."""
    try:
        found = find_snapshot(deployment, "latest", pipeline)
    except NotFound:
        return None
    return merged([at.positions for at in source_positions(found.stored.metadata, None)])


def _published(deployment: Deployment, pipeline: PipelineId) -> set[str]:
    """Return the sinks that a pipeline's latest snapshot knows a table of."""
    try:
        found = find_snapshot(deployment, "latest", pipeline)
    except NotFound:
        return set()
    return {stage.uid for stage in found.stored.metadata.stages if stage.table is not None}


def _places(pipeline: CheckpointedPipeline, coordinator: Coordinator) -> dict[str, str]:
    return {str(uid): own_table(pipeline, uid, coordinator).place for uid in tables_of(pipeline)}


def _row(done: Swapped, what: str, operator: Operator, run_id: str, now: float) -> AuditRow:
    said = f"readers of {done.name} find the tables of {done.serving}, and no longer of {done.before}"
    return AuditRow(
        pipeline=done.name,
        at=now,
        what=what,
        key=done.serving,
        uri="",
        who=operator.who,
        run_id=run_id,
        shown=operator.text or said,
    )
