"""The model of Spark's query against the real one: the same batches, entries, replays and gaps through restarts."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from dagster_ckpt.authoring.stages import StageRole
from tests.sim.queries import ModelQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = 3
STORY = ((4, None), (5, 2), (2, None), (9, 5), (0, None), (0, None), (1, 7), (3, None), (12, None))
"""Rows that come before each start, and the batch that fails, once its rows are written."""
Seen = tuple[int, list[int], list[int], list[int]]
"""A batch: its number, its rows, and whose offsets and commits are there while it is written."""


class Failed(Exception):
    pass


def entries(query: Path, name: str) -> list[int]:
    return sorted(int(path.name) for path in (query / name).glob("[0-9]*"))


def recorded(query: Path, start: Callable[[int, Callable[[int, list[int]], None]], None]) -> list[Seen]:
    """Return every batch of the story, and at its end what is left."""
    seen: list[Seen] = []
    arrived = 0
    for come, fails_at in STORY:
        arrived += come

        def batch(number: int, rows: list[int], fails_at: int | None = fails_at) -> None:
            seen.append((number, rows, entries(query, "offsets"), entries(query, "commits")))
            if number == fails_at:
                raise Failed

        start(arrived, batch)
        seen.append((-1, [], entries(query, "offsets"), entries(query, "commits")))
    return seen


def test_the_model_plans_writes_commits_replays_and_forgets_as_a_real_query_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, real, played = tmp_path / "files", tmp_path / "real", tmp_path / "played"
    files.mkdir()
    settings = {
        "spark.sql.streaming.minBatchesToRetain": str(KEPT),
        "spark.sql.streaming.asyncLogPurge.enabled": "false",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)

    def start_real(arrived: int, batch: Callable[[int, list[int]], None]) -> None:
        for number in range(len(list(files.iterdir())), arrived):
            file = files / f"{number:04d}.json"
            file.write_text(json.dumps({"n": number}))
            os.utime(file, (10**9 + number,) * 2)  # the source takes the oldest first
        read = (
            spark.readStream.schema("n long").option("maxFilesPerTrigger", 3).option("latestFirst", "false")
        )
        query = (
            read.json(str(files))
            .writeStream.option("checkpointLocation", str(real))
            .foreachBatch(lambda rows, number: batch(number, sorted(row.n for row in rows.collect())))
            .trigger(availableNow=True)
            .start()
        )
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination()

    def start_played(arrived: int, batch: Callable[[int, list[int]], None]) -> None:
        model = ModelQuery(_query(played), _reads(arrived, batch))  # type: ignore[arg-type]
        try:
            while model.batch() is not None:
                pass
        except Failed:
            pass

    try:
        of_spark = recorded(real, start_real)
    finally:
        for name, was in before.items():
            spark.conf.unset(name) if was is None else spark.conf.set(name, was)
    assert recorded(played, start_played) == of_spark


def _query(root: Path) -> Any:
    return SimpleNamespace(
        uid="numbers",
        directory=SimpleNamespace(query=root),
        input_logs=dict,
        stage=SimpleNamespace(role=StageRole.SOURCE),
        guard=lambda write: write,
        log=SimpleNamespace(find_batch=lambda batch: None),
    )


def _reads(arrived: int, batch: Callable[[int, list[int]], None]) -> Any:
    return SimpleNamespace(arrived=arrived, per_batch=3, kept=KEPT, step=lambda what: None, written=batch)


@pytest.fixture(autouse=True)
def rows_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def append(self: ModelQuery, batch: int, rows: list[tuple[int, int]]) -> None:
        self.run.written(batch, [k for k, _ in rows])

    monkeypatch.setattr(ModelQuery, "_append", append)
