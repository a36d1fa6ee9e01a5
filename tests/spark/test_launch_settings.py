"""Settings that a session is built with: ours, under the user's."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_ckpt.spark.session import HDFS_PROVIDER, ROCKSDB_PROVIDER, launch_settings
from tests.root import ROOT

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@pytest.mark.parametrize(
    ("given", "settled"),
    [
        ({}, (ROCKSDB_PROVIDER, "2")),
        ({PROVIDER: HDFS_PROVIDER}, (HDFS_PROVIDER, "1")),
        ({PROVIDER: HDFS_PROVIDER, FORMAT: "2"}, (HDFS_PROVIDER, "2")),
        ({FORMAT: "1"}, (ROCKSDB_PROVIDER, "1")),
        ({PROVIDER: "com.example.Provider"}, ("com.example.Provider", "2")),
    ],
)
def test_state_is_in_a_format_that_its_provider_can_write(
    given: dict[str, str], settled: tuple[str, str]
) -> None:
    """With Spark's other provider alone every first batch failed: it does not know the format of our defaults."""
    settings = launch_settings(conf=given)
    assert (settings[PROVIDER], settings[FORMAT]) == settled


@pytest.mark.parametrize(
    ("master", "given", "expected"),
    [
        ("k8s://https://127.0.0.1:6443", {}, "1h"),
        ("yarn", {}, "1h"),
        ("yarn", {"spark.executor.failuresValidityInterval": "5m"}, "5m"),
        ("spark://master:7077", {}, None),
    ],
)
def test_failed_executors_are_forgotten_after_an_hour_where_spark_counts_them(
    master: str, given: dict[str, str], expected: str | None
) -> None:
    settings = launch_settings(master=master, conf=given)
    assert settings.get("spark.executor.failuresValidityInterval") == expected


SECRET = "s3cr3t = of: #victim\\ \n\u00fc\U0001f600"


def test_secrets_are_in_a_file_of_their_owner_and_in_no_argument(tmp_path: Path) -> None:
    """Every user of a machine may read the arguments of a process."""
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    submit = home / "bin" / "spark-submit"
    submit.write_text(
        f"#!{sys.executable}\n"
        "import json, os, shutil, sys\n"
        "at = sys.argv[sys.argv.index('--properties-file') + 1]\n"
        f"shutil.copy2(at, {str(tmp_path / 'seen')!r})\n"
        f"json.dump(sys.argv, open({str(tmp_path / 'arguments')!r}, 'w'))\n"
        "sys.exit(1)\n"
    )
    submit.chmod(0o755)
    ask = (
        "import json, os, sys\n"
        "from dagster_ckpt.errors import InvalidRequest\n"
        "from dagster_ckpt.spark.session import build_session\n"
        "try:\n"
        "    build_session('t', master='local[1]', conf=json.loads(sys.argv[1]))\n"
        "except InvalidRequest as error:\n"
        "    print(error, os.environ.get('PYSPARK_SUBMIT_ARGS'))\n"
    )
    conf = {"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.ui.port": "0"}
    said = subprocess.run(
        [sys.executable, "-c", ask, json.dumps(conf)],
        cwd=ROOT,
        env={**os.environ, "SPARK_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith("Java did not start")
    assert said.endswith(" None\n")
    arguments = json.loads((tmp_path / "arguments").read_text())
    assert "spark.ui.port=0" in arguments
    assert arguments[-2:] == ["--load-spark-defaults", "pyspark-shell"]
    assert not [one for one in arguments if "s3cr3t" in one or "secret.key" in one]
    assert stat.S_IMODE((tmp_path / "seen").stat().st_mode) == 0o600
    name, _, value = (tmp_path / "seen").read_text().strip().partition("=")
    assert json.loads(f'"{name}"') == "spark.hadoop.fs.s3a.secret.key"
    assert json.loads(f'"{value}"') == SECRET
    given = arguments[arguments.index("--properties-file") + 1]
    assert not Path(given).exists()
