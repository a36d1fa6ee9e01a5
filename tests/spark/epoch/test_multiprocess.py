"""Dagster's multiprocess executor: every step of an epoch has a process, and a Spark session, of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableJob, build_reconstructable_job

from dagster_ckpt import CheckpointCoordinatorResource, InvalidRequest, PipelineOptions
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.dagster.runs.attempt import PipelineAttempt
from tests.lab.lab import Lab
from tests.needs import needs
from tests.records import stored_record
from tests.spark.epoch.multiprocess_job import BROKEN, ENGINE, epoch_job, streaming_job
from tests.spark.epoch.small_pipeline import Feed, shop
from tests.tables import rows_in
from tests.warm_engine import engine_in


@pytest.fixture
@needs("spark")
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with engine_in(tmp_path / ENGINE), dg.instance_for_test(temp_dir=str(tmp_path)) as made:
        yield made


def _record(folder: Path) -> CoordinatorRecord:
    with closing(CheckpointCoordinatorResource(base_dir=str(folder / "lab")).store()) as store:
        return stored_record(store, PipelineId("fanned_out"))


def _job(made_by: Callable[..., dg.JobDefinition], *given: object) -> ReconstructableJob:
    """A job that processes of its steps make again by its name."""
    return build_reconstructable_job(made_by.__module__, made_by.__name__, given)


def _run(instance: dg.DagsterInstance, job: ReconstructableJob, **checkpointing: object) -> str:
    """Return what failed; empty: nothing did."""
    config = {"ops": {"restore": {"config": {"checkpointing": checkpointing}}}}
    with dg.execute_job(job, instance=instance, run_config=config, raise_on_error=False) as result:
        return _failures(result)


def _failures(result: dg.JobExecutionResult) -> str:
    failures = [event for event in result.all_events if event.is_step_failure]
    return " | ".join(str(event.step_failure_data.error) for event in failures)


@pytest.mark.nightly
def test_epochs_whose_steps_have_processes_of_their_own_go_on_from_one_another_and_are_re_executed(
    instance: dg.DagsterInstance, feed: Feed, tmp_path: Path
) -> None:
    at_once, in_turn = (_job(epoch_job, str(tmp_path), concurrent) for concurrent in (2, 1))
    assert _run(instance, at_once) == ""
    record = _record(tmp_path)
    assert (record.status, record.epoch, len(record.completed)) == (RunStatus.SUSPENDED, 1, 1)

    shutil.rmtree(tmp_path / "lab" / "work")  # a fresh container
    feed.order(("ann", 3), ("bob", 4))
    assert _run(instance, in_turn, num_retained=1) == ""
    kept = [one.checkpoint_id for one in _record(tmp_path).completed]
    assert kept == [2], "settings of the run reach every step"
    _has_rows(tmp_path, feed, {"ann": 8, "bob": 11})

    (feed.folder / BROKEN).touch()
    feed.order(("ann", 1), ("bob", 1))
    with dg.execute_job(in_turn, instance=instance, raise_on_error=False) as failed:
        assert "the totals are broken" in _failures(failed)
    (feed.folder / BROKEN).unlink()
    feed.order(("ann", 1))
    again = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
    with dg.execute_job(
        in_turn, instance=instance, reexecution_options=again, raise_on_error=False
    ) as result:
        assert result.success, _failures(result)
        assert {e.step_key for e in result.all_events if e.is_step_success} == {"totals", "complete"}
    record = _record(tmp_path)
    assert (record.status, record.owner) == (RunStatus.SUSPENDED, result.run_id)
    _has_rows(tmp_path, feed, {"ann": 10, "bob": 12})


def _has_rows(folder: Path, feed: Feed, amounts: dict[str, int]) -> None:
    tables = folder / "lab" / "tables" / "fanned_out"
    assert _numbers(tables) == [order["number"] for order in feed.orders]
    assert {row["customer"]: row["amount"] for row in rows_in(tables / "totals")} == amounts


def _numbers(tables: Path) -> list[int]:
    return sorted(row["number"] for row in rows_in(tables / "lines"))


@pytest.mark.nightly
def test_a_stream_is_one_step_in_one_process(
    instance: dg.DagsterInstance, feed: Feed, tmp_path: Path
) -> None:
    with dg.execute_job(
        _job(streaming_job, str(tmp_path)), instance=instance, raise_on_error=False
    ) as result:
        assert result.success, _failures(result)
    assert _numbers(tmp_path / "lab" / "tables" / "bounded") == [order["number"] for order in feed.orders]


def test_a_step_that_does_not_see_the_runs_working_directory_makes_none(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = shop(feed.folder)
    run_stage = PipelineAttempt.run_stage

    def in_another_container(attempt: PipelineAttempt, *given: Any) -> None:
        shutil.rmtree(lab.folder / "work")
        attempt._epoch._attempt.__dict__.pop("directory", None)
        run_stage(attempt, *given)

    monkeypatch.setattr(PipelineAttempt, "run_stage", in_another_container)
    lab.fails(pipeline, "Give work_dir a folder that all processes of a run share")
    assert not (lab.folder / "work" / "shop").exists()


def test_an_executor_that_is_none_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match=r"executor='multiprocess' is no executor: give Dagster's, such as dg\.mul"
    ):
        PipelineOptions(executor="multiprocess")  # type: ignore[arg-type]
