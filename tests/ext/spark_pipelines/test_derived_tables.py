"""A derived table is computed for each state of what it reads, whoever dies in between and whoever else is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt.core.ids import CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.errors import Fenced
from dagster_ckpt.ext.spark_pipelines.published import ComputedTable, permit_of, refresh
from dagster_ckpt.spark.channel.sink import PLAIN_PARQUET
from dagster_ckpt.spark.sink.accepts import Accepts
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import AttemptId, Published, SinkPosition

ORDERS, SUMS = StageUid("orders"), StageUid("sums")


@dataclass
class Frame:
    """Rows, as Spark hands them over."""

    rows: list[int]

    @property
    def schema(self) -> Any:
        column = '{"name": "n", "type": "long", "nullable": true, "metadata": {}}'
        return SimpleNamespace(json=lambda: f'{{"type": "struct", "fields": [{column}]}}')

    def to_spark(self, spark: Any) -> Frame:
        return self


@dataclass
class ShownRows:
    """A sink that shows the rows of one checkpoint."""

    by_head: dict[int, list[int]]
    head: int
    place: str = "here"
    others: int | None = None

    def position(self) -> SinkPosition:
        shown = SinkPosition(lineage="l", epoch=1, checkpoint_id=2, head=self.head, through_batch=self.head)
        return replace(shown, others=self.others)

    def rows(self) -> Frame:
        return Frame(self.by_head[self.head])


@dataclass
class Computed:
    """A sink whose rows are all there are each time; what it shows outlives attempts."""

    place: str = "there"
    at: SinkPosition | None = None
    shown: list[int] = field(default_factory=list)
    staged: list[int] = field(default_factory=list)
    publishes: int = 0
    dies: bool = False
    """Once it has published."""

    @property
    def accepts(self) -> Accepts:
        return Accepts()

    def position(self) -> SinkPosition | None:
        return self.at

    def take_over(self) -> None:
        """Nothing."""

    def prepare(self, frame: Frame, number: int) -> PreparedBatch:
        self.staged = frame.rows
        return PreparedBatch(batch_id=number, epoch=1, files=(), row_schema="", replaces=True)

    def flush(self, batches: Sequence[PreparedBatch]) -> None:
        """Nothing."""

    def publish(self, batches: Sequence[PreparedBatch], permit: CommitPermit) -> Published:
        if self.at is not None and self.at.epoch > permit.epoch:
            raise Fenced("a newer attempt is at work")
        [batch] = batches
        assert self.at is None or batch.batch_id > (self.at.through_batch or 0), "it would pass for published"
        self.at = SinkPosition(
            lineage=permit.lineage,
            epoch=permit.epoch,
            checkpoint_id=permit.checkpoint_id,
            head=permit.checkpoint_id,
            through_batch=batch.batch_id,
        )
        self.shown, self.publishes = self.staged, self.publishes + 1
        if self.dies:
            raise Died
        return Published(rows=len(self.shown), bytes=1)


def summed(spark: Any, rows: Mapping[StageUid, Any]) -> Any:
    return Frame([sum(rows[ORDERS].rows)])


@dataclass
class Lab:
    folder: Path
    sink: ShownRows = field(default_factory=lambda: ShownRows({1: [1], 2: [1, 2]}, head=1))
    computed: Computed = field(default_factory=Computed)
    table: ComputedTable = field(default_factory=lambda: ComputedTable(uid=SUMS, reads=(ORDERS,), fn=summed))
    session: Any = field(default_factory=lambda: SimpleNamespace(conf=Settings(PLAIN_PARQUET)))

    def refresh(self, epoch: int = 1) -> Published | None:
        attempt = AttemptId("l", CoordinatorEpoch(epoch))
        return refresh(
            self.table,
            self.computed,  # type: ignore[arg-type]
            folder=self.folder,
            reads={ORDERS: self.sink},  # type: ignore[dict-item]
            permit=permit_of(PipelineId("shop"), attempt, 7),
            session=lambda: self.session,
        )


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "own")


class Died(BaseException):
    pass


class Settings(dict[str, str]):
    def set(self, key: str, value: str) -> None:
        self[key] = value

    def unset(self, key: str) -> None:
        del self[key]


def test_it_is_computed_again_for_other_rows_only(lab: Lab) -> None:
    assert lab.refresh() is not None
    assert lab.refresh() is None
    lab.sink.head = 2
    assert lab.refresh() is not None
    assert lab.computed.shown == [3]
    lab.sink.others, lab.sink.by_head[2] = 5, [1]
    assert lab.refresh() is not None
    assert lab.computed.shown == [1], "somebody else has deleted a row"
    lab.table = replace(lab.table, each_run=True)
    assert lab.refresh() is not None
    assert lab.refresh() is None
    assert lab.refresh(epoch=2) is not None


def test_rows_that_were_shown_before_they_were_noted_are_not_taken_for_those_of_a_state_that_comes_back(
    lab: Lab,
) -> None:
    lab.refresh()
    lab.sink.head, lab.computed.dies = 2, True
    with pytest.raises(Died):
        lab.refresh()
    assert lab.computed.shown == [3]
    lab.sink.head, lab.computed.dies = 1, False
    lab.refresh()
    assert lab.computed.shown == [1]


def test_a_table_that_somebody_else_has_changed_and_one_whose_note_is_lost_are_computed_again(
    lab: Lab,
) -> None:
    lab.refresh()
    assert lab.computed.at is not None
    lab.computed.at, lab.computed.shown = replace(lab.computed.at, through_batch=9), [-1]
    lab.refresh()
    assert lab.computed.shown == [1]
    [note] = lab.folder.iterdir()
    note.unlink()
    assert lab.refresh() is not None


def test_an_older_attempt_does_not_show_its_rows_over_those_of_a_newer_one(lab: Lab) -> None:
    lab.refresh(epoch=2)
    lab.sink.head = 2
    with pytest.raises(Fenced):
        lab.refresh(epoch=1)
    assert lab.computed.shown == [1]


def test_its_settings_hold_until_its_rows_are_written_and_no_longer(lab: Lab) -> None:
    seen: list[dict[str, str]] = []
    settings = Settings({"a": "0"})
    prepare = lab.computed.prepare

    def noting(spark: Any, rows: Mapping[StageUid, Any]) -> Any:
        seen.append(dict(spark.conf))
        return Frame([1])

    def preparing(frame: Frame, number: int) -> PreparedBatch:
        seen.append(dict(settings))
        return prepare(frame, number)

    lab.computed.prepare = preparing  # type: ignore[method-assign]
    lab.session = SimpleNamespace(conf=settings)
    lab.table = replace(lab.table, fn=noting, conf={"a": "1", "b": "2"})
    lab.refresh()
    assert seen == [{"a": "1", "b": "2", **PLAIN_PARQUET}] * 2
    assert settings == {"a": "0"}
