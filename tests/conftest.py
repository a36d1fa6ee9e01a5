"""What several test folders share: one Spark session, and servers. A missing server skips its tests, but not in CI."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.clouds import PLAIN_CLIENT, AzureServer, GoogleServer, azure_server, google_server
from tests.adapters.servers import (
    KafkaBroker,
    PostgresCluster,
    S3Server,
    ServerMissing,
    kafka_broker,
    postgres_cluster,
    s3_server,
    s3_server_process,
    spark_kafka_jars,
)
from tests.adapters.started import started
from tests.dagster_storage import make_once
from tests.needs import mark_needs, needs, refuse_unmarked
from tests.order import keep_the_order, longest_first
from tests.properties import load_profile
from tests.spark_session import allow_installed_pandas, shared_spark, spark
from tests.sweeps import mark_nightly

load_profile()

_IMPORTED_BY_OPS = (
    "adapters.fsspec_storage",
    "adapters.sql_engine",
    "dagster.jobs.gate",
    "dagster.launched.run",
    "dagster.reports.stream_events",
    "dagster.runs.attempt",
    "operations.care.clean",
    "operations.care.maintain",
    "operations.care.maintain",
    "operations.readers.replay",
    "operations.restores.horizon",
    "operations.snapshots.export",
    "operations.snapshots.registration",
)
"""Imported before a test replaces a function: a module that is imported meanwhile would keep the replacement."""

__all__ = ["shared_spark", "spark"]


def pytest_configure(config: pytest.Config) -> None:
    allow_installed_pandas(config)
    keep_the_order(config)
    make_once()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "dagster_ckpt.dagster.definitions" in sys.modules:
        for name in _IMPORTED_BY_OPS:
            import_module(f"dagster_ckpt.{name}")
    mark_nightly(items)
    mark_needs(items)
    longest_first(items)


@pytest.fixture
def nothing_inlined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of a snapshot is one of its storage, however small."""
    monkeypatch.setattr("dagster_ckpt.spark.snapshot.take.INLINE_THRESHOLD", 0)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    refuse_unmarked(fixturedef, request._pyfuncitem)


@pytest.fixture(scope="session")
@needs("postgres")
def postgres_server() -> Iterator[PostgresCluster]:
    """A real PostgreSQL cluster for the whole session."""
    with started(postgres_cluster("fsync=off", "max_connections=60")) as cluster:
        yield cluster


@pytest.fixture
def postgres_url(postgres_server: PostgresCluster) -> str:
    """URL of an empty database of the test's own."""
    return postgres_server.new_database()


@pytest.fixture(scope="session")
@needs("kafka")
def kafka() -> Iterator[KafkaBroker]:
    """A real Kafka for the whole session."""
    with started(kafka_broker()) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_servers(kafka: KafkaBroker) -> str:
    """Its address."""
    return kafka.address


@pytest.fixture(scope="session")
def kafka_for_spark(kafka: KafkaBroker) -> KafkaBroker:
    """The same, where the shared Spark session can read topics."""
    if not spark_kafka_jars():
        missing = "Spark's Kafka connector is not installed: scripts/bootstrap spark_kafka, which needs Maven"
        if os.environ.get("CI"):
            raise ServerMissing(missing)
        pytest.skip(missing)
    return kafka


@pytest.fixture(scope="session")
@needs("s3")
def s3() -> Iterator[S3Server]:
    """S3 over HTTP for the whole session; ``s3.options`` are what ``open_storage`` needs to reach it."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
@needs("s3")
def s3_apart() -> Iterator[S3Server]:
    """S3 in a process of its own, for clients that hold Python's lock while they wait, as delta-rs does."""
    with s3_server_process() as server:
        yield server


@pytest.fixture
def s3_uri(s3: S3Server) -> str:
    """URI of an empty bucket of the test's own."""
    return f"s3://{s3.new_bucket()}/checkpoints"


@pytest.fixture(scope="session")
def google() -> Iterator[GoogleServer]:
    """An emulator of Google's storage for the whole session."""
    os.environ.update(PLAIN_CLIENT)
    with started(google_server()) as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureServer]:
    """Azurite for the whole session."""
    with started(azure_server()) as server:
        yield server


@pytest.fixture
def javas_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that leaves a mark where it is started."""
    home, mark = tmp_path / "java", tmp_path / "java was started"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\ntouch '{mark}'\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="17.0.9"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    return mark
