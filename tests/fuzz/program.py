"""Program that runs drawn pipelines with a Spark of its own, as it is ordered, until it is killed.

It is forked from a process that has imported all this: half of what a program's start costs.
"""

from __future__ import annotations

import errno
import faulthandler
import logging
import os
import signal
import sys
import time
import traceback
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.common import spark_session
from dagster_ckpt import run_epoch, run_stream
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.epoch import drains
from dagster_ckpt.spark.streaming import running_stage
from dagster_ckpt.spark.streaming.restart import FixedDelay
from tests.fuzz.drawn import draw
from tests.fuzz.story import settings_kept
from tests.fuzz.world import World
from tests.spark_session import PATIENT_STARTS, SPARK_JVM


def obey(orders: Connection, scratch: Path, ahead: float) -> None:
    """Obey orders until there are no more; a clock that is ``ahead`` by so many seconds is wrong."""
    os.setsid()
    with (scratch / "programs.log").open("ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    faulthandler.register(signal.SIGUSR1)  # where it stands, for people
    _set_clock(ahead)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    os.environ["SPARK_SUBMIT_OPTS"] = SPARK_JVM
    drains.MAX_START_ATTEMPTS = running_stage.MAX_START_ATTEMPTS = PATIENT_STARTS
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.master": "local[2,3]"}
    with spark_session(scratch / f"spark-{os.getpid()}", **conf) as spark:
        orders.send({"ready": os.getpid()})
        with suppress(EOFError):
            while order := orders.recv():
                orders.send(_answer(order, spark))


def _answer(order: dict[str, Any], spark: Any) -> dict[str, Any]:
    try:
        _run(order, spark)
    except CheckpointError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    except BaseException:
        return {"crashed": traceback.format_exc()[-3000:]}
    return {"ended": True}


def _set_clock(ahead: float) -> None:
    real = time.time
    if ahead:
        time.time = lambda: real() + ahead


def _run(order: dict[str, Any], spark: Any) -> None:
    drawn = draw(order["seed"])
    world = World(drawn, spark, Path(order["place"]))
    _fill_disk(world.folder)
    common: dict[str, Any] = {
        "coordinator": world.coordinator.model_copy(update={"concurrent_runs": "take_over"}),
        "spark": spark,
        "restore": order.get("restore"),
    }
    with settings_kept(spark):
        for name, value in drawn.conf.items():
            spark.conf.set(name, value)
        if order["how"] == "epoch":
            run_epoch(world.pipeline, **common)
        else:
            restarts = FixedDelay(attempts=1000, delay=0.2)
            run_stream(world.pipeline, settings={"interval": 0.5}, strategy=restarts, **common)


_disks: list[str] = []
"""Folders that have no space left while a file ``full`` lies in them."""


def _fill_disk(folder: Path) -> None:
    if not _disks:
        sys.addaudithook(_refuse_when_full)
    _disks[:] = [f"{folder}/"]


def _refuse_when_full(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open" or not isinstance(arguments[2], int) or not arguments[2] & (os.O_WRONLY | os.O_RDWR):
        return
    if any(str(arguments[0]).startswith(disk) and os.path.lexists(f"{disk}full") for disk in _disks):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))
