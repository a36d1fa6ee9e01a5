"""Spark Connect is refused in one sentence wherever a session comes in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_ckpt import InvalidRequest, SparkSessionResource
from dagster_ckpt.spark.session import build_session
from tests.progress import output_of
from tests.root import ROOT

REMEDY = (
    ", and checkpoints need a classic session, whose driver is this process: give spark.master (local[*], "
    "spark://..., yarn, k8s://...) instead of an address of Spark Connect"
)

GIVEN = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from dagster_ckpt import CheckpointCoordinatorResource, InvalidRequest, open_state, run_epoch, run_stream
from tests.spark.epoch.small_pipeline import shop
session = SparkSession.builder.remote("local[1]").config("spark.log.level", "OFF").getOrCreate()
where = CheckpointCoordinatorResource(base_dir=sys.argv[1])
for run in (run_epoch, run_stream):
    try:
        run(shop(Path(sys.argv[1])), coordinator=where, spark=session)
    except InvalidRequest as error:
        print("refused:", error)
try:
    with open_state(session, None, "matched"):
        pass
except InvalidRequest as error:
    print("refused:", error)
session.stop()
"""


@pytest.mark.nightly
@pytest.mark.spark
def test_a_session_of_connect_is_refused_by_runs_and_by_looks_at_state(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", GIVEN, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    said = [line for line in output_of(program).splitlines() if line.startswith("refused:")]
    assert said == [f"refused: the session is one of Spark Connect{REMEDY}"] * 3
    assert not (tmp_path / "store.db").exists()


def test_settings_of_connect_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for conf, found in (
        ({"spark.remote": "sc://host:15002"}, "spark.remote is set"),
        ({"spark.api.mode": "connect"}, "spark.api.mode is connect"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            SparkSessionResource(conf=conf)
        assert str(caught.value) == found + REMEDY
        with pytest.raises(InvalidRequest) as caught:
            build_session("a", conf=conf)
        assert str(caught.value) == found + REMEDY
    for name, value, found in (
        ("SPARK_REMOTE", "sc://host:15002", "SPARK_REMOTE is set"),
        ("SPARK_CONNECT_MODE_ENABLED", "1", "SPARK_CONNECT_MODE_ENABLED is set"),
        ("SPARK_API_MODE", "connect", "SPARK_API_MODE is connect"),
        ("SPARK_CONNECT_MODE", "1", "SPARK_CONNECT_MODE is 1"),
    ):
        monkeypatch.setenv(name, value)
        with pytest.raises(InvalidRequest) as caught:
            build_session("a")
        assert str(caught.value) == f"the environment variable {found}{REMEDY}"
        monkeypatch.delenv(name)
