"""Streams in a launched program: live events, a stop with a savepoint from another run, and termination in the UI."""

from __future__ import annotations

import os
import signal

import dagster as dg
import pytest

from dagster_ckpt.core.request import RunStatus
from tests.dagster.launched.conftest import Site
from tests.spark.epoch.small_pipeline import Feed, read_lines

pytestmark = pytest.mark.spark

SUCCESS, FAILURE = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE


@pytest.mark.nightly
def test_a_launched_stream_tells_while_it_runs_and_is_stopped_with_a_savepoint_an_epoch_goes_on_from(
    warm_site: Site, feed: Feed
) -> None:
    site = warm_site
    stops: list[dg.ExecuteInProcessResult] = []

    def is_told() -> bool:
        key = dg.AssetKey(["shop", "checkpoints"])
        return bool(site.materializations()) and bool(site.instance.fetch_observations(key, limit=1).records)

    def stop() -> None:
        definition = site.definitions().resolve_job_def("shop_savepoint")
        config = {"ops": {"savepoint": {"config": {"action": "stop"}}}}
        stops.append(
            definition.execute_in_process(instance=site.instance, run_config=config, raise_on_error=False)
        )

    stopper = site.during(is_told, stop)
    stream = site.run("shop_streaming", stream={"progress_interval": 1.0})
    stopper.join()
    assert stream.status is SUCCESS, stream.failure
    assert stops[0].success
    assert any(line.startswith("stopped with savepoint ") for line in stream.lines)
    record = site.record()
    assert record is not None
    assert (record.owner, record.status) == (stream.run_id, RunStatus.SUSPENDED)
    [savepoint] = [key for key in site.partitions() if key.startswith("savepoint-")]
    [told] = [m for m in site.materializations() if m.partition == savepoint]
    assert "/jobs/shop_streaming/playground/setup?config=" in str(told.metadata["restore"].value)

    feed.order(("ann", 3))
    after = site.run(restore={"restore_from": savepoint})
    assert after.status is SUCCESS, after.failure
    feed.check(site.tables)


@pytest.mark.nightly
def test_a_run_that_is_terminated_stops_its_stream_between_two_batches(
    site: Site, feed: Feed, engine: str
) -> None:
    def has_rows() -> bool:
        return site.newest() > 0

    terminator = site.during(has_rows, site.terminate)
    stream = site.run("shop_streaming")
    terminator.join()
    assert stream.status is dg.DagsterRunStatus.CANCELED
    record = site.record()
    assert record is not None
    assert (record.status, record.clean, record.lease_until) == (RunStatus.CANCELED, True, None)
    assert not is_running(site.pid())
    site.engine = engine
    after = site.run()
    assert after.status is SUCCESS, after.failure
    assert read_lines(site.tables) == feed.expected_lines()


@pytest.mark.nightly
def test_a_stream_that_somebody_else_stops_is_not_green(site: Site, feed: Feed) -> None:
    def has_rows() -> bool:
        return site.newest() > 0

    def terminate_program() -> None:
        os.kill(int(site.pid() or 0), signal.SIGTERM)

    stopper = site.during(has_rows, terminate_program)
    stream = site.run("shop_streaming")
    stopper.join()
    assert stream.status is FAILURE
    assert stream.failure.startswith("the program was stopped from outside (SIGTERM or SIGINT)")


def is_running(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    return True
