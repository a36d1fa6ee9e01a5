"""Settings that a session is built with: ours, under the user's."""

from __future__ import annotations

import pytest

from dagster_ckpt.spark.session import HDFS_PROVIDER, ROCKSDB_PROVIDER, launch_settings

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
