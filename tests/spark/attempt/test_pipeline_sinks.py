"""The sinks of a pipeline together: which of them shows what, and under which name that is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source
from dagster_ckpt.core.config import CheckpointingMode
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.sinks import ForEachCheckpoint
from dagster_ckpt.spark.attempt import sinks
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.sink.port import AttemptId, Sink


class Silent:
    """A reporter nobody listens to."""

    def info(self, message: str) -> None:
        """Nothing."""

    def warn(self, message: str) -> None:
        """Nothing."""


def test_of_two_tables_with_one_name_the_failure_of_one_is_told_though_the_other_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The success of the second took the failure of the first back: the run succeeded, and a stream never failed."""

    @spark_source
    def numbers(spark):  # type: ignore[no-untyped-def]
        return spark

    @spark_sink(table="orders", to=ForEachCheckpoint(print))
    def told(numbers):  # type: ignore[no-untyped-def]
        return numbers

    @spark_sink(table="orders")
    def kept(numbers):  # type: ignore[no-untyped-def]
        return numbers

    @checkpointed_pipeline(name="shop")
    def pipeline() -> None:
        feed = numbers()
        told(feed)
        kept(feed)

    def publish(sink: Sink, *_: Any) -> None:
        if sink.kind == "function":
            raise OSError("nobody answers")

    monkeypatch.setattr(sinks, "publish_prepared", publish)
    attempt = AttemptDirectory(tmp_path / "attempt-1")
    for uid in ("told", "kept"):
        ChannelLog.create(attempt.stage(StageUid(uid)).log).append_barrier(CheckpointId(1), timestamp=1.0)
    mine = sinks.PipelineSinks(
        pipeline=pipeline,
        table_dir=tmp_path / "tables",
        work_dir=tmp_path / "work",
        mode=CheckpointingMode.EXACTLY_ONCE,
        attempt_id=lambda: AttemptId("one", CoordinatorEpoch(1)),
        session=lambda: pytest.fail("no session is needed"),
    )
    permit = CommitPermit(PipelineId("shop"), CoordinatorEpoch(1), CheckpointId(1), object(), lineage="one")
    mine.publish(attempt, CheckpointId(1), permit, Silent())
    assert mine.unpublished == {"orders (told)": "nobody answers"}
    missed = mine.missed_more_than(0)
    assert missed is not None
    assert missed.startswith("table orders (told) could not be published for 1 checkpoints in a row")
