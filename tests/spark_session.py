"""One Spark session per test process, small enough to share a machine, with fast state maintenance."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from dagster_ckpt.ext.warm.class_archive import fitting_archive, java_options
from dagster_ckpt.spark.session import build_session
from dagster_ckpt.spark.versions import Stages, version_of
from tests.adapters.servers import spark_kafka_jars, spark_s3_jars
from tests.needs import needs
from tests.plain_files import OPTION, plain_files


@pytest.fixture(scope="session")
@needs("spark")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Our defaults on two cores and 2 GB, for fixtures that live longer than a test."""
    folder: Path = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = _session(
        {
            "spark.driver.memory": "2g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.log.level": "OFF",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stateStore.maintenanceInterval": "500ms",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            **_jars(),
        }
    )
    yield session
    session.stop()


def _session(conf: dict[str, str]) -> SparkSession:
    """Return a session as pipelines have it; where they cannot run (``make versions``), as programs have it."""
    name, master = "dagster-ckpt-tests", "local[2,3]"
    if version_of(pyspark.__version__).stages is not Stages.NONE:
        return build_session(name, master=master, conf=conf)
    return SparkSession.builder.appName(name).master(master).config(map=conf).getOrCreate()


def _jars() -> dict[str, str]:
    """Connectors that were fetched: a session gets none later."""
    jars = ",".join(str(jar) for jar in (*spark_kafka_jars(), *spark_s3_jars()))
    return {"spark.jars": jars} if jars else {}


BRIEF_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=256m"
"""Of every JVM that tests start: each lives for minutes; the optimizing compiler took 0.4 of their processor time.

Without that compiler Java keeps 48 MB for compiled code, which one session's queries fill: what was swept out was
compiled again and again. And it collects all garbage whenever the classes have grown from 21 MB on.
"""
_ARCHIVE = fitting_archive(Path(sys.prefix) / "class-archive")
"""Of Spark's classes, made by ``scripts/bootstrap class_archive``: half of the time a JVM needs to start Spark."""
SPARK_JVM = f"{BRIEF_JVM} {java_options(_ARCHIVE)}" if _ARCHIVE is not None else BRIEF_JVM
"""Of JVMs with Spark's own jars: drivers, and what a cluster starts."""
BRIEF_SPARK = "-Dspark.ui.enabled=false"
"""Of every driver, unless it is told otherwise."""
if plain_files().exists():
    os.environ.setdefault("SPARK_DIST_CLASSPATH", str(plain_files()))
    BRIEF_SPARK = f"{BRIEF_SPARK} {OPTION}"
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{SPARK_JVM} {BRIEF_SPARK}")
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
"""Of the JVM that tells a shell script how to start the one it is asked for."""


PATIENT_STARTS = 40
"""Starts of one query: Spark gives the process of a reader ten seconds, which a busy machine needs many times over."""


@pytest.fixture
def spark(shared_spark: SparkSession) -> Iterator[SparkSession]:
    """The session, whose settings and temporary views are afterwards what they were."""
    before, views = settings_of(shared_spark), temporary_views(shared_spark)
    with pytest.MonkeyPatch.context() as patience:
        for module in ("spark.streaming.running_stage", "spark.epoch.drains"):
            patience.setattr(f"dagster_ckpt.{module}.MAX_START_ATTEMPTS", PATIENT_STARTS)
        yield shared_spark
    for view in temporary_views(shared_spark) - views:
        shared_spark.catalog.dropTempView(view)
    after = settings_of(shared_spark)
    for key in after.keys() - before.keys():
        shared_spark.conf.unset(key)
    for key, value in before.items():
        if after.get(key) != value and shared_spark.conf.isModifiable(key):
            shared_spark.conf.set(key, value)


def settings_of(session: SparkSession) -> dict[str, str]:
    """Return the session's settings; PySpark 3.5 tells them by a statement alone."""
    if hasattr(session.conf, "getAll"):
        return session.conf.getAll
    return {row["key"]: row["value"] for row in session.sql("SET").collect()}


def temporary_views(session: SparkSession) -> set[str]:
    """Return the names of the session's temporary views: a query's memory sink makes one too."""
    return {view.name for view in session.catalog.listTables() if view.isTemporary}


def allow_installed_pandas(config: pytest.Config) -> None:
    """Let PySpark say what it thinks of the installed pandas; everything else is still an error."""
    config.addinivalue_line(
        "filterwarnings", "ignore:PySpark does not yet fully support pandas:FutureWarning"
    )
