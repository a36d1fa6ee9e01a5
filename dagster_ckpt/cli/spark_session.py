"""A Spark session for looking at state: small, quiet, stopped at the end."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dagster_ckpt.cli.context import key_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_QUIET = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
    # An idle session must not look after the state it only reads.
    "spark.sql.streaming.stateStore.maintenanceInterval": "1h",
}


def spark_options(function: Any) -> Any:
    """Add ``--master`` and ``--conf``."""
    function = click.option(
        "--conf", multiple=True, metavar="NAME=VALUE", help="Spark setting; may be repeated."
    )(function)
    return click.option("--master", default="local[*]", show_default=True, help="Spark master.")(function)


@contextmanager
def started(master: str, conf: tuple[str, ...]) -> Iterator[SparkSession]:
    """Yield a session; one that runs in this process already is used and left running. Raises InvalidRequest."""
    from dagster_ckpt.spark.session import build_session

    settings = {**_QUIET, **key_values("--conf", conf)}
    running = _running()
    with quiet_java():
        session = running or build_session("dagster-ckpt", master=master, conf=settings)
    try:
        yield session
    finally:
        if running is None:
            session.stop()


@contextmanager
def quiet_java() -> Iterator[None]:
    """Keep what Java says on standard error while it starts, ten lines that help nobody, unless it does not start."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said, os.fdopen(os.dup(2), "wb") as stderr:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            said.seek(0)
            stderr.write(said.read())
            raise
        finally:
            os.dup2(stderr.fileno(), 2)


def _running() -> SparkSession | None:
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
