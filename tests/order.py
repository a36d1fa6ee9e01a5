"""The files that take longest begin first: what begins last keeps one process busy while the others have nothing to do.

With ``--dist loadfile`` pytest-xdist hands out whole files; by itself it begins with those of the most tests.
"""

from __future__ import annotations

import pytest

LONGEST = (
    "docs/test_tutorial.py",
    "contract/test_sql_sink.py",
    "ext/quarantine/test_bad_rows.py",
    "spark/streaming/test_crash_at_every_barrier.py",
    "contract/test_kafka_sink.py",
    "ext/delta/test_delta_values.py",
    "crash/test_crash_sweep.py",
    "ext/attach/test_attach.py",
    "spark/cluster/test_standalone.py",
    "ext/iceberg/test_iceberg_values.py",
    "spark/epoch/test_epoch_runs.py",
    "browser/test_restore_from_the_ui.py",
    "spark/epoch/test_kill.py",
    "ext/spark_pipelines/test_changed.py",
    "ext/kafka/test_kafka_values.py",
    "ext/spark_pipelines/test_surroundings.py",
    "ext/spark_pipelines/test_projects.py",
    "operations/test_operations_state.py",
    "contract/test_checkpoint_storage.py",
    "dagster/launched/test_epochs.py",
    "ext/delta/test_delta_s3.py",
    "ext/delta/test_delta_upkeep.py",
    "ext/iceberg/test_iceberg_contract.py",
    "spark/snapshot/test_capture_queries.py",
    "operations/readers/test_load_tables.py",
    "spark/channel/test_channel_spark.py",
    "dagster/reports/test_stream_reports.py",
    "spark/epoch/test_side_by_side.py",
    "ext/spark_pipelines/test_refused.py",
    "spark/snapshot/test_every_operator.py",
    "spark/exchange/test_exchange.py",
    "model/test_coordinator_model.py",
    "ext/spark_pipelines/test_exactness.py",
)
"""Files below ``tests`` that took forty seconds and more, the longest first; any other begins after them."""


def keep_the_order(config: pytest.Config) -> None:
    """Let pytest-xdist, where it is installed, hand out files as they are collected."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def longest_first(items: list[pytest.Item]) -> None:
    """Sort the tests by file, the longest files first; all others stay as they are."""
    place = {f"tests/{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))
