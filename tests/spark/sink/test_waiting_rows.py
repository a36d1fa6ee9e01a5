"""Rows that wait while their sink is changed: one table of changes, asked of every kind of sink."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import BatchId, CheckpointId, CoordinatorEpoch, StageUid
from dagster_ckpt.core.model import CheckpointMetadata, TableSnapshot
from dagster_ckpt.core.restore.choice import Restore
from dagster_ckpt.errors import Corrupt, Declined, InvalidRequest
from dagster_ckpt.ext.tables.marks import Mark
from dagster_ckpt.ext.tables.roll_back import _seed
from dagster_ckpt.sinks import DeltaTable, ForEachCheckpoint, IcebergTable, KafkaTopic, SqlTable
from dagster_ckpt.spark.attempt.earlier_attempts import had_rows, left_table, left_tables
from dagster_ckpt.spark.attempt.sink_refusals import refuse_forks
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.sink.committables import PreparedBatch, write_committable
from dagster_ckpt.spark.sink.phases import begun_with, cut_of_sink
from dagster_ckpt.spark.sink.port import AttemptId, SinkCut, SinkPosition
from dagster_ckpt.spark.sink.positions import SEED
from dagster_ckpt.spark.sink.waiting import refuse_other_place
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from tests.lab.pipelines import sink, source, wired
from tests.tables import Attempt

UID = StageUid("kept")
TARGETS: dict[str, Any] = {
    "delta": lambda folder, parts: DeltaTable("t", partition_by=parts),
    "iceberg": lambda folder, parts: IcebergTable("db.t", partition_by=parts),
    "sqlite": lambda folder, parts: SqlTable(f"sqlite:///{folder}/t.db", "t"),
    "postgres": lambda folder, parts: SqlTable("postgresql://nobody@127.0.0.1:1/nowhere", "t"),
    "kafka": lambda folder, parts: KafkaTopic("127.0.0.1:1", "t"),
    "function": lambda folder, parts: ForEachCheckpoint(print),
}
FILES = ("delta", "iceberg")
"""Targets whose tables have the staged files themselves."""


@dataclass(frozen=True)
class Defined:
    """A sink as its author wrote it."""

    columns: str = "id integer, a string"
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    mode: str | None = None

    def schema(self) -> str:
        """Return Spark's schema of its rows."""
        fields = [column.rsplit(" ", 1) for column in self.columns.split(", ")]
        parsed = [
            {"name": name, "type": json.loads(kind) if kind.startswith("{") else kind, "nullable": True}
            for name, kind in fields
        ]
        return json.dumps({"type": "struct", "fields": [{**field, "metadata": {}} for field in parsed]})

    def pipeline(self, folder: Path, target: str) -> CheckpointedPipeline:
        """Return a pipeline with it."""
        to = TARGETS[target](folder, self.partition_by)
        how = {"key": list(self.key)} if self.key else {}

        return wired(
            "shop",
            source("numbers", lambda spark: spark),
            sink("kept", lambda numbers: numbers, table="t", to=to, output_mode=self.mode, **how),
        )

    def sinks(self, folder: Path, target: str) -> PipelineSinks:
        """Return its pipeline's sinks."""
        return PipelineSinks(
            pipeline=self.pipeline(folder, target),
            table_dir=folder / "tables",
            work_dir=folder / "work",
            attempt_id=lambda: AttemptId("one", CoordinatorEpoch(1)),
            session=lambda: pytest.fail("no session is needed"),
        )


def struct(*names: str) -> str:
    fields = [{"name": name, "type": "integer", "nullable": True, "metadata": {}} for name in names]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


PLAIN, BY_ID = Defined(), Defined(key=("id",))
EVERYWHERE, NOWHERE = tuple(TARGETS), ()
REREAD = tuple(name for name in TARGETS if name not in FILES)
CHANGES: dict[str, tuple[Defined, Defined, tuple[str, ...]]] = {
    # name: (as staged, as it is now, where the rows go on)
    "nothing": (PLAIN, PLAIN, EVERYWHERE),
    "a column more": (PLAIN, Defined("id integer, a string, b string"), EVERYWHERE),
    "a column less": (PLAIN, Defined("id integer"), EVERYWHERE),
    "another order": (PLAIN, Defined("a string, id integer"), EVERYWHERE),
    "a column renamed": (PLAIN, Defined("id integer, b string"), NOWHERE),
    "a column in another case": (PLAIN, Defined("id integer, A string"), REREAD),
    "int to long": (PLAIN, Defined("id long, a string"), REREAD),
    "long to int": (Defined("id long, a string"), PLAIN, NOWHERE),
    "a key from int to long": (BY_ID, Defined("id long, a string", key=("id",)), REREAD),
    "a key from float to double": (Defined("id float", ("id",)), Defined("id double", ("id",)), NOWHERE),
    "int to text": (PLAIN, Defined("id string, a string"), NOWHERE),
    "a decimal of another scale": (Defined("d decimal(10,2)"), Defined("d decimal(12,4)"), NOWHERE),
    "timestamp to timestamp_ntz": (Defined("t timestamp"), Defined("t timestamp_ntz"), NOWHERE),
    "a struct with a field more": (
        Defined(f"s {struct('a')}"),
        Defined(f"s {struct('a', 'b')}"),
        NOWHERE,
    ),
    "a key": (PLAIN, BY_ID, NOWHERE),
    "no key": (BY_ID, PLAIN, NOWHERE),
    "another key": (BY_ID, Defined(key=("id", "a")), NOWHERE),
    "a key in another order": (Defined(key=("a", "id")), Defined(key=("id", "a")), EVERYWHERE),
    "a partition column": (PLAIN, Defined(partition_by=("a",)), REREAD),
    "no partition column": (Defined(partition_by=("a",)), PLAIN, REREAD),
    "a partition column of rows by key": (BY_ID, Defined(key=("id",), partition_by=("a",)), EVERYWHERE),
    "output mode complete": (BY_ID, Defined(key=("id",), mode="complete"), NOWHERE),
    "output mode update": (Defined(key=("id",), mode="complete"), BY_ID, NOWHERE),
}


def waiting(defined: Defined, folder: Path, target: str) -> PreparedBatch:
    """Return a batch as it is written down where this definition has staged it."""
    return PreparedBatch(
        batch_id=0,
        epoch=1,
        files=(),
        row_schema=defined.schema(),
        replaces=defined.mode == "complete",
        staged_as=defined.sinks(folder, target).as_now(UID).staged_as,
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_wait_go_on_where_the_sink_still_takes_them_and_are_refused_elsewhere(
    tmp_path: Path, change: str, target: str
) -> None:
    """They came out with nulls, under two keys, or never: told after their checkpoint was complete."""
    was, now, goes_on = CHANGES[change]
    batch = waiting(was, tmp_path, target)
    sinks = now.sinks(tmp_path, target)
    if target in goes_on:
        sinks.refuse_changed(UID, [batch], now.schema())
        return
    with pytest.raises(InvalidRequest, match="dagster-ckpt set-aside shop --sink kept") as refused:
        sinks.refuse_changed(UID, [batch], now.schema())
    assert "rows of batch 0 wait" in str(refused.value)
    was.sinks(tmp_path, target).refuse_changed(UID, [batch], was.schema())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("before", TARGETS)
def test_rows_that_wait_for_one_kind_of_target_are_not_published_to_another(
    tmp_path: Path, before: str, target: str
) -> None:
    batch = waiting(PLAIN, tmp_path, before)
    now = PLAIN.sinks(tmp_path, target)
    if before == target or {before, target} == {"sqlite", "postgres"}:
        now.refuse_changed(UID, [batch])
        return
    with pytest.raises(InvalidRequest, match="kind of target"):
        now.refuse_changed(UID, [batch])


def test_a_fork_does_not_begin_with_rows_that_were_staged_for_another_definition(tmp_path: Path) -> None:
    """With a partition column added they came out without its values."""
    batch = waiting(PLAIN, tmp_path, "delta")
    cut = SinkCut(snapshot=TableSnapshot(uri="/t"), batches=(batch,), checkpoint_id=CheckpointId(1))

    def begun_as(defined: Defined) -> None:
        sinks = defined.sinks(tmp_path, "delta")
        refuse_forks(sinks, {UID: cut})

    begun_as(PLAIN)
    with pytest.raises(
        InvalidRequest, match=r"partition columns were \(none\).*\(a\): take a savepoint of the idle"
    ):
        begun_as(Defined(partition_by=("a",)))
    asked: list[SinkCut] = []
    of: Any = SimpleNamespace(
        refuse_changed=lambda *_, **__: None, of=lambda _: SimpleNamespace(refuse_fork=asked.append)
    )
    refuse_forks(of, {UID: cut})
    assert asked == [cut]  # the sink itself is asked, too, before any is changed


def test_a_fork_is_compared_with_the_rows_it_begins_with_until_it_has_published_its_own(
    tmp_path: Path,
) -> None:
    batch = waiting(PLAIN, tmp_path, "sqlite")
    write_committable(tmp_path, batch)
    for head, found in ((SEED, [batch]), (1, [])):
        position = SinkPosition(lineage="first", epoch=1, head=head, through_batch=0)
        sink: Any = SimpleNamespace(position=lambda position=position: position)
        assert begun_with(tmp_path, sink) == found


def test_rows_that_wait_beside_another_table_are_told_by_that(tmp_path: Path) -> None:
    """They were called gone."""
    batch = waiting(PLAIN, tmp_path, "delta")
    refuse_other_place("kept", "shop", [batch], PLAIN.sinks(tmp_path, "delta").of(UID).place)
    with pytest.raises(
        InvalidRequest, match=r"wait for a checkpoint beside /.*writes /other now: publish them"
    ):
        refuse_other_place("kept", "shop", [batch], "/other")


def test_rows_that_were_staged_before_definitions_were_kept_are_compared_by_their_columns(
    tmp_path: Path,
) -> None:
    batch = PreparedBatch(batch_id=3, epoch=1, files=(), row_schema=PLAIN.schema())
    BY_ID.sinks(tmp_path, "delta").refuse_changed(UID, [batch], PLAIN.schema())
    with pytest.raises(InvalidRequest, match=r"\(id int, a string\).*\(id string, a string\)"):
        PLAIN.sinks(tmp_path, "delta").refuse_changed(UID, [batch], Defined("id string, a string").schema())


def test_a_cut_that_is_described_after_a_newer_checkpoint_was_published_is_declined(tmp_path: Path) -> None:
    """A restore took the newer rows for the cut's, and the batch that came next for shown: its rows were lost."""
    run = Attempt(tmp_path / "table", tmp_path / "stage")
    for key in (1, 2):
        run.batch([(key, 1)])
    run.publish(run.cut(3))
    for savepoint_was_behind in (BatchId(0), None):
        with pytest.raises(Declined, match="shows rows behind the cut already"):
            cut_of_sink(run.sink, run.stage_dir, savepoint_was_behind)
    at_the_newest = cut_of_sink(run.sink, run.stage_dir, BatchId(1)).snapshot
    assert at_the_newest is not None
    assert at_the_newest.head == 3


def test_a_table_that_no_stage_has_for_a_while_has_the_rows_of_each_checkpoint_again(tmp_path: Path) -> None:
    """One restored to when it was away was emptied, though rows in it were older."""
    h = CoordinatorHarness()
    there = TableSnapshot(uri="/tables/quarantine", head=2)
    h.coordinator.started("/work", None, {"judged": there})
    taken = h.metadata(h.completed_checkpoint())
    assert taken.left_tables == {"judged": there}
    assert h.record.left_tables == taken.left_tables
    sinks, nowhere = PLAIN.sinks(tmp_path, "delta"), AttemptDirectory(tmp_path / "attempt-1")

    def begun(metadata: CheckpointMetadata) -> dict[str, TableSnapshot]:
        decision: Any = Restore(**{**dict.fromkeys(f.name for f in fields(Restore)), "metadata": metadata})
        return left_tables(sinks, h.record, nowhere, decision)

    assert begun(taken) == taken.left_tables
    before = taken.model_copy(update={"left_tables": {}})
    assert begun(before) == {"judged": TableSnapshot(uri=there.uri)}, "none of its rows belongs there"

    stages = SimpleNamespace(new=(), matches=())
    place, returned = sinks.of(UID).place, {UID: TableSnapshot(uri=sinks.of(UID).place, head=2)}
    decision: Any = SimpleNamespace(
        metadata=taken.model_copy(update={"left_tables": returned}), stages=stages, purpose=None
    )
    assert left_table(UID, sinks, decision) == TableSnapshot(uri=place, head=2)
    assert had_rows(sinks, decision) == [UID]
    stages.new = (UID,)
    assert left_table(UID, sinks, decision) is None, "its batches begin at 0 again"


@pytest.mark.parametrize(
    ("written_by", "begins"),
    [((("shop", "l1"), ("bar", "l2")), True), ((("bar", "l2"), ("shop", "l1")), False)],
)
def test_a_fork_of_a_shared_table_never_begins_with_another_pipelines_rows(
    written_by: tuple[tuple[str, str], ...], begins: bool
) -> None:
    """Its state of that number had expired, and the other pipeline's was taken."""
    marks = [
        Mark(head=5 - n, pipeline=of, sink=UID, lineage=line, epoch=1)
        for n, (of, line) in enumerate(written_by)
    ]
    table: Any = SimpleNamespace(
        history=[SimpleNamespace(mark=mark) for mark in marks], as_published=lambda newest, of_sink: newest
    )
    cut = SinkCut(
        snapshot=TableSnapshot(uri="/t", head=5),
        batches=(),
        checkpoint_id=CheckpointId(5),
        lineages=frozenset({"l1"}),
    )
    if begins:
        assert _seed("/t", table, cut).mark is marks[0]
        return
    with pytest.raises(Corrupt, match="no state that shows checkpoint 5"):
        _seed("/t", table, cut)
