"""A derived table is computed for each state of what it reads, whoever dies in between and whoever else is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_ckpt.authoring.derived import DerivedTable
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.attempt import derived
from dagster_ckpt.spark.attempt.derived import DerivedFile, Refreshed, refresh
from dagster_ckpt.spark.files import local_path
from dagster_ckpt.spark.sink.port import AttemptId, SinkPosition
from dagster_ckpt.spark.table.log import create_table
from dagster_ckpt.spark.table.records import Append

ORDERS, SUMS = StageUid("orders"), StageUid("sums")


@dataclass
class Frame:
    """Rows that are written as Spark writes them."""

    rows: list[int]

    def coalesce(self, _: int) -> Frame:
        return self

    @property
    def write(self) -> Frame:
        return self

    def parquet(self, uri: str) -> None:
        folder = local_path(uri)
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"n": self.rows}), folder / "part-1.parquet")

    def to_spark(self, spark: Any) -> Frame:
        return self


@dataclass
class ShownRows:
    """A sink that shows the rows of one checkpoint."""

    by_head: dict[int, list[int]]
    head: int
    place: str = "here"

    def position(self) -> SinkPosition:
        return SinkPosition(lineage="l", epoch=1, checkpoint_id=2, head=self.head, through_batch=self.head)

    def rows(self) -> Frame:
        return Frame(self.by_head[self.head])


def summed(spark: Any, rows: Mapping[StageUid, Any]) -> Any:
    return Frame([sum(rows[ORDERS].rows)])


@dataclass
class Lab:
    root: Path
    sink: ShownRows = field(default_factory=lambda: ShownRows({1: [1], 2: [1, 2]}, head=1))
    table: DerivedTable = field(default_factory=lambda: DerivedTable(uid=SUMS, reads=(ORDERS,), fn=summed))

    pipeline: str = "mine"
    session: Any = None

    @property
    def place(self) -> DerivedFile:
        return DerivedFile(self.root / SUMS, self.pipeline)

    def refresh(self, epoch: int = 1) -> Refreshed | None:
        return refresh(
            self.table,
            place=self.place,
            sinks={ORDERS: self.sink},  # type: ignore[dict-item]
            derived={},
            attempt=AttemptId("l", epoch),  # type: ignore[arg-type]
            more="",
            session=lambda: self.session,  # type: ignore[arg-type,return-value]
        )

    def shown(self) -> list[int]:
        found: list[int] = pq.read_table(self.root / SUMS / "part-00000.parquet").column("n").to_pylist()
        return found


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


class Died(BaseException):
    pass


def test_it_is_computed_again_for_other_rows_only(lab: Lab) -> None:
    assert lab.refresh() is not None
    assert lab.refresh() is None
    lab.sink.head = 2
    assert lab.refresh() is not None
    assert lab.shown() == [3]
    lab.table = replace(lab.table, each_run=True)
    assert lab.refresh() is not None
    assert lab.refresh() is None
    assert lab.refresh(epoch=2) is not None


def test_rows_that_were_replaced_before_they_were_noted_are_not_taken_for_those_of_a_state_that_comes_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.refresh()
    lab.sink.head = 2
    original = derived.move_whole

    def dies(source: Path, target: Path) -> None:
        original(source, target)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(derived, "move_whole", dies)
        with pytest.raises(Died):
            lab.refresh()
    assert lab.shown() == [3]
    lab.sink.head = 1
    lab.refresh()
    assert lab.shown() == [1]


def test_two_pipelines_do_not_compute_one_folder(lab: Lab) -> None:
    lab.refresh()
    other = replace(lab, pipeline="other", sink=ShownRows({1: [70]}, head=1))
    with pytest.raises(
        InvalidRequest, match=r"sums is computed by pipeline 'mine': give 'other' a table_dir"
    ):
        other.refresh()
    (lab.root / SUMS / "part-00000.parquet").unlink()
    with pytest.raises(InvalidRequest, match=r"sums is computed by pipeline 'mine'"):
        other.refresh()
    lab.refresh()
    assert lab.shown() == [1]


def a_table(folder: Path) -> None:
    create_table(str(folder), pipeline=PipelineId("mine"), mode=Append())


def files_of_somebody(folder: Path) -> None:
    Frame([1]).parquet(str(folder))


def a_delta_table(folder: Path) -> None:
    (folder / "_delta_log").mkdir(parents=True)


@pytest.mark.parametrize("make", [a_table, files_of_somebody, a_delta_table])
def test_a_folder_of_a_table_gets_no_computed_rows_beside_its_own(lab: Lab, make: Any) -> None:
    folder = lab.root / SUMS
    make(folder)
    before = sorted(folder.rglob("*"))
    with pytest.raises(InvalidRequest, match=r"holds those of a table \(.*\): move that folder away"):
        lab.refresh()
    assert sorted(folder.rglob("*")) == before


def test_files_beside_those_that_were_computed_are_refused(lab: Lab) -> None:
    lab.refresh()
    pq.write_table(pa.table({"n": [5]}), lab.root / SUMS / "part-00001.parquet")
    with pytest.raises(InvalidRequest, match=r"Parquet file part-00001.parquet"):
        lab.refresh()


class Settings(dict[str, str]):
    def set(self, key: str, value: str) -> None:
        self[key] = value

    def unset(self, key: str) -> None:
        del self[key]


def test_its_settings_hold_until_its_rows_are_written_and_no_longer(lab: Lab) -> None:
    seen: list[dict[str, str]] = []
    settings = Settings({"a": "0"})

    class Noting(Frame):
        def parquet(self, uri: str) -> None:
            seen.append(dict(settings))
            super().parquet(uri)

    def noting(spark: Any, rows: Mapping[StageUid, Any]) -> Any:
        seen.append(dict(spark.conf))
        return Noting([1])

    lab.session = SimpleNamespace(conf=settings)
    lab.table = replace(lab.table, fn=noting, conf={"a": "1", "b": "2"})
    lab.refresh()
    assert seen == [{"a": "1", "b": "2"}] * 2
    assert settings == {"a": "0"}
