"""A process in which a stage is rebuilt, and which is killed at a point: ``lab feed code point``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource
from dagster_ckpt.ext.upgrade_plan.rebuild import Rebuilding
from tests.ext.upgrade_plan import test_rebuild as tests

if __name__ == "__main__":
    lab, feed, code, number = sys.argv[1:]
    steps = tests.Steps(end=lambda name: os.killpg(0, signal.SIGKILL))
    steps.kill_in(pytest.MonkeyPatch(), tests.POINTS[int(number)])
    spark = SparkSessionResource(master="local[2,3]")
    Rebuilding.of(
        tests.shop(Path(feed), getattr(tests, code)),
        "totals",
        coordinator=CheckpointCoordinatorResource(base_dir=lab, table_dir=f"{lab}/tables"),
        spark=spark.session,
        step=steps,
    ).carry_out()
