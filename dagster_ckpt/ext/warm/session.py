"""A Spark session on the warm engine of a folder, or on a JVM of its own where that one cannot be had."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.warm.borrow import borrow
from dagster_ckpt.ext.warm.class_archive import with_archive
from dagster_ckpt.spark.java.process import stop_session
from dagster_ckpt.spark.session import build_session, launch_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def session_sooner(
    app_name: str,
    *,
    folder: str,
    idle: float,
    class_archive: str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Yield a session with the archive of classes of a folder, on the warm engine of ``folder`` if it names one."""
    how: dict[str, Any] = {"master": master, "conf": with_archive(conf or {}, class_archive)}
    if folder:
        with warm_session(app_name, folder=folder, idle=idle, **how) as session:
            yield session
        return
    session = build_session(app_name, **how)
    try:
        yield session
    finally:
        stop_session(session)


@contextlib.contextmanager
def warm_session(
    app_name: str,
    *,
    folder: str,
    idle: float,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Yield a session of one's own: a new Spark context in a JVM that has run before. Stopped at the end.

    ``idle`` is in seconds. Raises InvalidRequest for a master that is not local, or a folder that cannot be made.
    """
    if master is not None and not master.startswith("local"):
        raise InvalidRequest(
            f"a warm engine is a Spark on this machine: `master` is {master!r}, not local[…]"
        )
    settings = launch_settings(master=master, conf=conf)
    try:
        engine = borrow(Path(folder), settings, idle=idle)
    except OSError as error:
        raise InvalidRequest(f"`warm_engine`: the folder {folder} cannot be used: {error}") from error
    with contextlib.ExitStack() as opened:
        if engine is not None:
            opened.callback(engine.give_back)
        with engine.attached() if engine is not None else contextlib.nullcontext():
            session = build_session(app_name, master=master, conf=conf)
        opened.callback(session.stop)
        if engine is not None:
            engine.own_numbers()
        yield session
