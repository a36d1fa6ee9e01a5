"""The sinks of a pipeline together: which of them shows what, and under which name that is told."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ckpt import CheckpointedPipeline
from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.sql.sink import SqlSink
from dagster_ckpt.sinks import DeltaTable, ForEachCheckpoint, SqlTable
from dagster_ckpt.spark.attempt import sinks
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.sink.committables import write_committable
from dagster_ckpt.spark.sink.phases import Due
from tests.ext.sql.tables import FIRST, LONGS, permit, staged
from tests.lab.lines import Lines
from tests.lab.pipelines import sink, source, wired


def opened(pipeline: CheckpointedPipeline, folder: Path) -> sinks.PipelineSinks:
    """The sinks of a pipeline in its first attempt."""
    return sinks.PipelineSinks(
        pipeline=pipeline,
        table_dir=folder / "tables",
        work_dir=folder / "work",
        attempt_id=lambda: FIRST,
        session=lambda: pytest.fail("no session is needed"),
    )


def publish_at(
    mine: sinks.PipelineSinks, checkpoint: int, folder: Path, batches: dict[str, int | None]
) -> None:
    """Publish a checkpoint whose barrier lies behind these batches."""
    attempt = AttemptDirectory(folder / "attempt-1")
    for uid, batch in batches.items():
        folder_of_log = attempt.stage(StageUid(uid)).log
        log = ChannelLog(folder_of_log) if folder_of_log.exists() else ChannelLog.create(folder_of_log)
        if batch is not None:
            log.append_data(BatchId(batch), [])
        log.append_barrier(CheckpointId(checkpoint), timestamp=1.0)
    mine.publish(attempt, CheckpointId(checkpoint), permit(checkpoint), Lines())


def test_of_two_tables_with_one_name_the_failure_of_one_is_told_though_the_other_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The success of the second took the failure of the first back: the run succeeded, and a stream never failed."""

    pipeline = wired(
        "shop",
        source("numbers", lambda spark: spark),
        sink("told", lambda numbers: numbers, table="orders", to=ForEachCheckpoint(print)),
        sink("kept", lambda numbers: numbers, table="orders"),
    )

    def publish(due: Sequence[Due], permit: CommitPermit) -> list[None]:
        if due[0].sink.kind == "function":
            raise OSError("nobody answers")
        return [None]

    monkeypatch.setattr(sinks, "publish_prepared", publish)
    mine = opened(pipeline, tmp_path)
    publish_at(mine, 1, tmp_path, {"told": None, "kept": None})
    assert mine.unpublished == {"orders (told)": "nobody answers"}
    missed = mine.missed_more_than(0)
    assert missed is not None
    assert missed.startswith("table orders (told) could not be published for 1 checkpoint in a row")


def test_tables_of_one_database_show_one_checkpoint_and_wait_for_one_another(tmp_path: Path) -> None:
    """One after the other they showed two checkpoints to a reader between them, and for as long as one was refused."""
    url = f"sqlite:///{tmp_path}/shop.db"

    pipeline = wired(
        "shop",
        source("numbers", lambda spark: spark),
        sink("orders", lambda numbers: numbers, to=SqlTable(url)),
        sink("refunds", lambda numbers: numbers, to=SqlTable(url, "Refunds")),
        sink("elsewhere", lambda numbers: numbers, to=SqlTable(f"sqlite:///{tmp_path}/other.db")),
    )

    mine = opened(pipeline, tmp_path)
    assert mine.groups() == [["orders", "refunds"], ["elsewhere"]]

    def prepare(batch: int, rows: dict[str, int]) -> None:
        for uid, value in rows.items():
            sink = mine.of(StageUid(uid))
            assert isinstance(sink, SqlSink)
            prepared = staged(sink.context.work_dir, batch, LONGS, [(batch, value)])
            write_committable(AttemptDirectory(tmp_path / "attempt-1").stage(StageUid(uid)).root, prepared)

    def shown(database: str, table: str) -> list[tuple[int, int]]:
        with closing(sqlite3.connect(tmp_path / database)) as connection:
            return connection.execute(f"SELECT k, v FROM {table}").fetchall()

    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE refunds (k BIGINT, v BIGINT CONSTRAINT positive CHECK (v > 0))")
    prepare(0, {"orders": 1, "refunds": -1, "elsewhere": 1})
    publish_at(mine, 1, tmp_path, {"orders": 0, "refunds": 0, "elsewhere": 0})
    assert set(mine.unpublished) == {"orders", "refunds"}
    assert all("CHECK positive" in why for why in mine.unpublished.values())
    assert shown("other.db", "elsewhere") == [(0, 1)]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("DROP TABLE refunds")
    prepare(1, {"orders": 2})
    publish_at(mine, 2, tmp_path, {"orders": 1, "refunds": 0, "elsewhere": 0})
    assert mine.unpublished == {}
    assert (shown("shop.db", "orders"), shown("shop.db", "refunds")) == ([(0, 1), (1, 2)], [(0, -1)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SqlTable("sqlite:///{folder}/shop.db", "orders"), SqlTable("sqlite:///{folder}/shop.db", "Orders")),
        (DeltaTable("{folder}/t#1"), DeltaTable("file://localhost{folder}/t#1/")),
        (DeltaTable("{folder}/t#1/t"), DeltaTable("{folder}/t#1")),
        (DeltaTable("s3://shop/t"), DeltaTable("s3a://shop/t")),
    ],
)
def test_two_sinks_of_one_table_are_refused_however_it_is_spelled(
    tmp_path: Path, one: SqlTable | DeltaTable, other: SqlTable | DeltaTable
) -> None:
    def here(target: SqlTable | DeltaTable) -> SqlTable | DeltaTable:
        name = "url" if isinstance(target, SqlTable) else "uri"
        return replace(target, **{name: getattr(target, name).format(folder=tmp_path)})

    def seen() -> None:
        pipeline = wired(
            "shop",
            source("numbers", lambda spark: spark),
            sink("orders", lambda numbers: numbers, to=here(one)),
            sink("other", lambda numbers: numbers, to=here(other)),
        )
        opened(pipeline, tmp_path).seen()

    with pytest.raises(InvalidRequest, match="rows of the one would be taken for the other's"):
        seen()


def test_a_file_of_another_machine_is_no_table(tmp_path: Path) -> None:
    """It was made as a folder of that name in the root of the file system."""
    pipeline = wired(
        "shop",
        source("numbers", lambda spark: spark),
        sink("orders", lambda numbers: numbers, to=DeltaTable("file://shop/t")),
    )
    with pytest.raises(InvalidRequest, match="no folder of this machine"):
        opened(pipeline, tmp_path).seen()
