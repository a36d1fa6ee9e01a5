"""Program that runs drawn pipelines with a Spark of its own, as it is ordered, until it is killed.

    python -m tests.fuzz.program FOLDER    (orders are lines of JSON on its input, answers such lines on its output)
"""

from __future__ import annotations

import errno
import faulthandler
import json
import logging
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import IO, Any

AHEAD = "FUZZ_CLOCK_AHEAD"
"""Variable with the seconds by which the program's clock is ahead, which may be less than 0."""


def main() -> int:
    """Obey orders until there are no more."""
    _set_clock(float(os.environ.get(AHEAD, "0")))
    answers, sys.stdout = sys.stdout, sys.stderr
    faulthandler.register(signal.SIGUSR1)  # where it stands, for people
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    from benchmarks.common import spark_session
    from tests.spark_session import SPARK_JVM

    os.environ["SPARK_SUBMIT_OPTS"] = SPARK_JVM
    folder = Path(sys.argv[1])
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g", "spark.master": "local[2,3]"}
    with spark_session(folder / f"spark-{os.getpid()}", **conf) as spark:
        _answer(answers, {"ready": os.getpid()})
        for number, line in enumerate(sys.stdin):
            try:
                _obey(json.loads(line), spark, f"program-{os.getpid()}-{number}")
            except BaseException as error:
                from dagster_ckpt.errors import CheckpointError

                is_told = isinstance(error, CheckpointError)
                said = f"{type(error).__name__}: {error}" if is_told else traceback.format_exc()[-3000:]
                _answer(answers, {"refused" if is_told else "crashed": said})
            else:
                _answer(answers, {"ended": number})
    return 0


def _set_clock(ahead: float) -> None:
    real = time.time
    if ahead:
        time.time = lambda: real() + ahead


def _answer(answers: IO[str], told: dict[str, Any]) -> None:
    answers.write(json.dumps(told) + "\n")
    answers.flush()


def _obey(order: dict[str, Any], spark: Any, run_id: str) -> None:
    from dagster_ckpt import run_epoch, run_stream
    from dagster_ckpt.spark.epoch import drains
    from dagster_ckpt.spark.streaming import running_stage
    from dagster_ckpt.spark.streaming.restart import FixedDelay
    from tests.fuzz.drawn import draw
    from tests.fuzz.story import settings_kept
    from tests.fuzz.world import World
    from tests.spark_session import PATIENT_STARTS

    drains.MAX_START_ATTEMPTS = running_stage.MAX_START_ATTEMPTS = PATIENT_STARTS
    drawn = draw(order["seed"])
    world = World(drawn, spark, Path(order["place"]))
    _fill_disk(world.folder)
    common: dict[str, Any] = {
        "coordinator": world.coordinator.model_copy(update={"concurrent_runs": "take_over"}),
        "spark": spark,
        "run_id": run_id,
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


if __name__ == "__main__":
    sys.exit(main())
