"""Lines of a run's log: a checkpoint step by step, what hangs and on which input, nothing silent for a minute."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.dagster.reports.op_log import ProgressLines, line_of, location_of, log, on_stderr
from dagster_ckpt.dagster.reports.stream_events import HANGING, StreamingEvents
from dagster_ckpt.spark.epoch.drains import wait_for
from dagster_ckpt.spark.streaming.progress import PendingProgress, RunningStageProgress, StreamProgress
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from tests.lab.lines import Lines


def test_a_checkpoint_is_told_from_its_trigger_to_its_completion() -> None:
    h = CoordinatorHarness(stages={"orders": 1, "totals": 1}, edges=[("orders", "totals")])
    cp = h.checkpoint()
    h.advance(0.25)
    metrics = {"bytes_full": 118_000_000, "bytes_new": 41_000, "sync_ms": 2.0, "async_ms": 84.0}
    h.acknowledge_stage(cp, "orders", metrics={**metrics, "alignment_ms": 4.0})
    h.advance(0.25)
    h.acknowledge_stage(cp, "totals")
    assert [line for event in h.events if (line := line_of(event))] == [
        "checkpoint 1 triggered",
        (
            "checkpoint 1: orders acknowledged (1/2) after 250 ms: 41.0 kB new of 118 MB, alignment 4 ms, sync 2 ms, "
            "async 84 ms"
        ),
        "checkpoint 1: totals acknowledged (2/2) after 500 ms: 0 B new of 0 B, alignment 0 ms, sync 0 ms, async 0 ms",
        "checkpoint 1 completed in 500 ms: 41.0 kB new of 118 MB",
    ]


def stage(uid: str, *inputs: str, **fields: Any) -> RunningStageProgress:
    return RunningStageProgress(uid=StageUid(uid), status="running", inputs=inputs, **fields)


def waiting(age: float, *stages: RunningStageProgress, outstanding: tuple[str, ...]) -> StreamProgress:
    pending = PendingProgress(checkpoint_id=31, age=age, outstanding=outstanding)
    return StreamProgress(at=age, stages=stages, pending=(pending,))


HANGS = waiting(
    45.0,
    stage("orders"),
    stage("payments", batch_id=7),
    stage("joined", "orders", "payments", blocked={"orders": 44.0}),
    stage("totals", "joined"),
    outstanding=("payments", "joined", "totals"),
)


def test_an_alignment_that_hangs_names_the_input_that_is_missing() -> None:
    assert HANGS.hanging(after=15.0) == [
        (
            "checkpoint 31 has waited 45 s: payments has not acknowledged: it works on the batch after 7 or stores its "
            "part; joined waits for the barrier of payments and holds orders since 44 s"
        )
    ]
    assert HANGS.hanging(after=60.0) == []


def test_tables_that_are_published_for_long_are_what_later_checkpoints_wait_for() -> None:
    behind = StreamProgress(at=45.0, publishing={17: 44.0, 18: 3.0})
    assert behind.hanging(after=15.0) == [
        "the tables of checkpoint 17 have been published for 44 s: later checkpoints wait for these commits"
    ]


def test_it_is_said_while_it_hangs() -> None:
    class Reports:
        """Takes what the thread hands over."""

        def __init__(self) -> None:
            self.heard: list[Any] = []

        def due_in(self) -> float | None:
            return None

        def hear(self, item: Any) -> None:
            self.heard.append(item)

        def close(self) -> None: ...

        tick = close

    reports = Reports()
    events = StreamingEvents(reports, unpublished=dict)  # type: ignore[arg-type]
    young = replace(HANGS, pending=(replace(HANGS.pending[0], age=HANGING - 1),))
    events.look_on(young)
    events.look_on(HANGS)
    events.close()
    [line] = reports.heard
    assert line.is_warning
    assert "waits for the barrier of payments" in line.text


def test_a_stream_says_how_it_goes_often_while_rows_arrive_and_at_least_twice_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, log.name)
    say = ProgressLines()
    said: list[float] = []
    for second in range(0, 180, 2):
        rows = min(second, 60) * 100
        say(
            StreamProgress(
                at=float(second), stages=(stage("orders", rows=rows, rows_per_second=50.0),), completed=3
            )
        )
        if len(caplog.records) > len(said):
            said.append(float(second))
    assert said[:4] == [0.0, 6.0, 12.0, 18.0]
    assert max(later - earlier for earlier, later in pairwise(said)) <= 30.0
    assert caplog.messages[1].startswith(
        "1 stage, 50 rows/s, 600 rows in all; slowest batch 0 ms (orders); 3 checkpoints"
    )


def test_the_lines_of_a_stream_are_on_standard_error_which_dagster_keeps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with on_stderr():
        log.info("checkpoint 1 triggered")
    log.info("after the run")
    written = capsys.readouterr().err
    assert "INFO checkpoint 1 triggered" in written
    assert "after the run" not in written


class Query:
    """A query that ends after so many looks."""

    def __init__(self, looks: int, **progress: Any) -> None:
        self.looks, self.waited = looks, list[int]()
        self.progress = progress
        self._jsq = SimpleNamespace(streamingQuery=lambda: SimpleNamespace(noNewData=lambda: True))

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802 - Spark's name
        self.waited.append(timeout)
        return len(self.waited) > self.looks

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802 - Spark's name
        return [{"batchId": n, "numInputRows": 1000} for n in range(len(self.waited))]

    @property
    def lastProgress(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self.progress


def test_a_stage_of_an_epoch_says_how_far_it_is_and_is_never_silent_for_more_than_a_minute() -> None:
    query, lines = Query(6, sources=[{"metrics": {"maxOffsetsBehindLatest": "1200"}}]), Lines()
    wait_for(query, "totals", lines)  # type: ignore[arg-type]
    assert query.waited == [5, 10, 20, 40, 60, 60, 60]
    assert len(lines.said) == 6
    assert lines.said[1].startswith("totals: 2,000 rows so far, 100 rows/s, ")
    assert lines.said[1].endswith(", 1,200 rows behind in the slowest partition; batch 2 is running")


def test_a_short_stage_says_nothing_on_its_way() -> None:
    lines = Lines()
    wait_for(Query(0), "totals", lines)  # type: ignore[arg-type]
    assert lines.said == []


def test_links_of_a_run_that_no_code_location_launched_lead_where_its_job_has_run() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        launched = {"dagster/code_location": "shop_code"}
        runs = [("shop", {}), ("shop", launched), ("shop", {}), ("other", {})]
        made = [create_run_for_test(instance, job_name=job, tags=tags) for job, tags in runs]
        assert [location_of(instance, run) for run in made] == ["shop_code", "shop_code", "shop_code", ""]
