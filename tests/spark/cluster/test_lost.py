"""Applications that a cluster has let go of: when an attempt is given up, and whose session is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from dagster_ckpt import InvalidRequest, SparkSessionResource, Unavailable
from dagster_ckpt.programs import _session_of
from dagster_ckpt.spark.cluster import lost
from dagster_ckpt.spark.session import build_session
from tests.progress import wait_until


class Application:
    """A session as far as it is asked whether it still works."""

    numbers, version = 0, "4.3.0"

    def __init__(self, *, executors: str = "1,2", is_local: bool = False) -> None:
        Application.numbers += 1
        self.executors, self.jobs, self.is_stopped, self.is_closed = executors, [7], False, False
        self.is_cancelled, self.looks = threading.Event(), 0
        scala = SimpleNamespace(
            isLocal=lambda: is_local,
            isStopped=lambda: self.is_stopped,
            getExecutorIds=lambda: SimpleNamespace(mkString=self._asked),
        )
        self.sparkContext = SimpleNamespace(
            _jsc=SimpleNamespace(sc=lambda: scala),
            applicationId=f"app-{Application.numbers}",
            master="spark://master:7077",
            statusTracker=lambda: SimpleNamespace(getActiveJobsIds=lambda: self.jobs),
            cancelAllJobs=self.is_cancelled.set,
        )

    def _asked(self, separator: str) -> str:
        self.looks += 1
        return self.executors


class Watched:
    """An attempt that is looked at every ten seconds."""

    def __init__(self, application: Any) -> None:
        self.now = 0.0
        self._watch = lost.ExecutorWatch(application, now=lambda: self.now)

    def after(self, seconds: float) -> str:
        """Return what the looks of so many seconds have found last."""
        told = ""
        for _ in range(int(seconds / 10)):
            self.now += 10.0
            told = self._watch.look()
        return told


def test_an_attempt_whose_tasks_find_no_executor_for_five_minutes_is_given_up() -> None:
    application = Application()
    watched = Watched(application)
    assert not watched.after(3600)
    application.executors = ""
    assert not watched.after(lost.PATIENCE)
    assert watched.after(10).startswith("there is no executor and none has come for 5 min, while tasks wait")


def test_executors_that_come_back_are_waited_for_from_the_beginning() -> None:
    application = Application(executors="")
    watched = Watched(application)
    assert not watched.after(lost.PATIENCE - 20)
    application.executors = "3"
    assert not watched.after(10)
    application.executors = ""
    assert not watched.after(lost.PATIENCE)
    assert watched.after(10)


def test_a_stream_without_data_needs_no_executor() -> None:
    """Dynamic allocation gives idle executors back."""
    application = Application(executors="")
    application.jobs = []
    assert not Watched(application).after(3600)


def test_tasks_of_the_drivers_own_process_wait_for_no_executor() -> None:
    assert not Watched(Application(executors="", is_local=True)).after(3600)


def test_an_application_that_was_ended_from_outside_is_told_at_once() -> None:
    application = Application()
    application.is_stopped = True
    assert Watched(application).after(10) == "Spark's application was ended: spark://master:7077"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow at once, and the first one without an executor is the last."""
    monkeypatch.setattr(lost, "PATIENCE", 0.0)
    monkeypatch.setattr(lost, "_LOOK_EVERY", 0.0)


def job(application: Any, is_over: Callable[[], bool]) -> None:
    """Run a job that fails once it is over."""
    with lost.not_for_ever(application):
        wait_until(is_over, "the job is over")
        raise RuntimeError("the job has failed")


@pytest.mark.usefixtures("hasty")
def test_a_job_that_an_attempt_starts_with_is_given_up_where_no_executor_comes() -> None:
    application: Any = Application(executors="")
    with pytest.raises(Unavailable, match="there is no executor"):
        job(application, application.is_cancelled.is_set)
    assert lost.is_lost(application)


@pytest.mark.usefixtures("hasty")
def test_a_job_that_an_attempt_starts_with_is_waited_for_where_there_is_an_executor() -> None:
    application: Any = Application()
    with pytest.raises(RuntimeError, match="has failed"):
        job(application, lambda: application.looks > 3)
    assert not application.is_cancelled.is_set()


# --- whose session is replaced --------------------------------------------------------------------------------------


class Resource(SparkSessionResource):
    """Begins applications that nothing runs."""

    @contextmanager
    def _started(self) -> Iterator[Any]:
        self._is_ours = self.app_name == "ours"
        application = Application()
        yield application
        application.is_closed = True


@pytest.mark.parametrize("how", ["stopped", "deserted"])
def test_a_session_of_this_run_is_replaced_once_the_cluster_has_let_go_of_it(how: str) -> None:
    resource = Resource(app_name="ours")
    first: Any = resource.session
    assert resource.session is first
    if how == "stopped":
        first.is_stopped = True
    else:
        first.executors = ""
        assert lost.abandon_if_deserted(first)
    second: Any = resource.session
    assert second is not first
    assert first.is_closed
    assert not second.is_closed
    assert resource.session is second


def test_a_session_of_this_run_that_is_stopped_while_it_is_made_is_no_mistake_of_anyone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next attempt begins another one."""
    monkeypatch.setattr(lost, "is_stopped", lambda spark: True)
    resource = Resource(app_name="ours")
    first: Any = resource.session
    second: Any = resource.session
    assert second is not first
    assert first.is_closed


def test_a_session_that_could_not_be_made_leaves_no_context_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = Mock()

    def ended_meanwhile(builder: SparkSession.Builder) -> SparkSession:
        SparkContext._active_spark_context = left
        raise RuntimeError("Cannot call methods on a stopped SparkContext")

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", ended_meanwhile)
    with pytest.raises(RuntimeError, match="stopped SparkContext"):
        build_session("test", master="local[1]")
    left.stop.assert_called_once_with()


def test_a_session_with_an_executor_is_kept() -> None:
    resource = Resource(app_name="ours")
    application: Any = resource.session
    assert not lost.abandon_if_deserted(application)
    assert resource.session is application


def test_a_session_that_this_run_has_not_started_is_kept_and_refused_once_it_is_stopped() -> None:
    resource = Resource(app_name="found")
    given: Any = Application()
    for session in (lambda: resource.session, _session_of(given, ExitStack())):
        application: Any = session()
        application.executors = ""
        assert lost.abandon_if_deserted(application)
        assert session() is application
        application.is_stopped = True
        with pytest.raises(InvalidRequest, match="was stopped, and the run did not start it"):
            session()
