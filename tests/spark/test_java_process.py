"""A Java that has ended is noticed by its process, and forgotten without being asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from dagster_ckpt.errors import Unavailable
from dagster_ckpt.spark.java import process as java_process
from dagster_ckpt.spark.java.sessions import begin_again, end_quietly
from dagster_ckpt.spark.session import build_session


class Session:
    """A session whose Java does not answer any more."""

    def __init__(self) -> None:
        self.asked = 0

    def stop(self) -> None:
        self.asked += 1
        raise ConnectionRefusedError


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A process in Java's place; it ends when its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_jvm", object())
    yield process
    process.kill()
    process.communicate()


def test_a_java_that_runs_has_not_ended_and_one_that_ends_is_waited_for(java: Any) -> None:
    assert not java_process.java_has_ended()
    java.stdin.close()
    assert java_process.java_has_ended(60.0)
    assert java_process.java_has_ended()


def test_without_a_java_of_this_process_none_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    assert not java_process.java_has_ended()


def test_a_session_whose_java_has_ended_is_forgotten_without_being_asked(java: Any) -> None:
    java.stdin.close()
    java.wait()
    session: Any = Session()
    java_process.stop_session(session)
    assert session.asked == 0
    assert SparkContext._gateway is None
    assert SparkContext._jvm is None


def test_a_session_whose_java_ends_while_it_is_stopped_is_forgotten(
    java: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = Session()
    quiet: list[Any] = []
    monkeypatch.setattr(java_process, "end_quietly", quiet.append)
    session.before, session.stop = session.stop, lambda: (java.stdin.close(), session.before())
    java_process.stop_session(session)
    assert quiet == [session]
    assert session.asked == 1
    assert SparkContext._gateway is None


def test_the_upkeep_of_state_does_not_warn_of_a_context_that_ends_and_does_in_the_next(
    spark: SparkSession,
) -> None:
    managed: Any = spark._jvm.org.apache.logging.log4j.LogManager

    def level() -> str:
        return str(managed.getLogger("org.apache.spark.sql.execution.streaming.state.StateStore").getLevel())

    before = level()
    end_quietly(spark)
    end_quietly(spark)
    assert level() == "ERROR" != before
    begin_again(spark)
    assert level() == before
    begin_again(spark)
    assert level() == before


def test_a_session_that_cannot_be_stopped_while_java_runs_says_why(
    java: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_process, "ENDING", 0.0)
    session: Any = Session()
    with pytest.raises(ConnectionRefusedError):
        java_process.stop_session(session)


def test_a_java_that_is_killed_while_it_makes_a_session_is_named(
    java: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: SparkSession.Builder) -> SparkSession:
        java.kill()
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", killed)
    with pytest.raises(
        Unavailable, match="while the session was made: the JVM of the Spark session has ended"
    ):
        build_session("killed")
    assert SparkContext._gateway is None


@pytest.mark.parametrize(
    ("settings", "variables", "is_ours"),
    [
        ({}, {}, True),
        (
            {"spark.log.level": "INFO", "spark.driver.extraJavaOptions": "-Xss4m"},
            {"JAVA_TOOL_OPTIONS": "-Xss4m"},
            True,
        ),
        ({"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine.xml"}, {}, False),
        ({"spark.log.structuredLogging.enabled": "true"}, {}, False),
        ({"spark.driver.extraClassPath": "/mine"}, {}, False),
        ({}, {"SPARK_SUBMIT_OPTS": "-Dlog4j.configurationFile=mine.xml"}, False),
        ({}, {"LOG4J_CONFIGURATION_FILE": "mine.xml"}, False),
        ({}, {"SPARK_CONF_DIR": "conf"}, False),
        ({}, {"DAGSTER_CKPT_TRACEBACK": "1"}, False),
    ],
)
def test_a_start_is_quiet_where_nobody_has_configured_javas_logging(
    settings: dict[str, str],
    variables: dict[str, str],
    is_ours: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.xml").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("DAGSTER_CKPT_TRACEBACK", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with java_process.of_this_start(settings):
        options = os.environ["SPARK_SUBMIT_OPTS"]
    assert dict(os.environ) == before
    assert ("log4j2.properties" in options) == is_ours
    assert "-XX:Tier4InvocationThreshold=200000" in options
    theirs = variables.get("SPARK_SUBMIT_OPTS", "")
    assert theirs in options.partition("-XX:Tier4BackEdgeThreshold=1600000")[2], (
        "the later one of two options counts"
    )
