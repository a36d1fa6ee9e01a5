"""The files that take longest begin first: what begins last keeps one process busy while the others have nothing to do.

With ``--dist loadfile`` pytest-xdist hands out whole files; by itself it begins with those of the most tests.
"""

from __future__ import annotations

import pytest

LONGEST = (
    "contract/test_sql_sink.py",
    "ext/quarantine/test_bad_rows.py",
    "spark/streaming/test_failures.py",
    "contract/test_kafka_sink.py",
    "spark/epoch/test_epoch_runs.py",
    "ext/attach/test_attach.py",
    "spark/epoch/test_kill.py",
    "contract/test_checkpoint_storage.py",
    "browser/test_restore_from_the_ui.py",
    "ext/sql/test_sql_values.py",
    "spark/streaming/test_streaming_job.py",
    "spark/streaming/test_crash_at_every_barrier.py",
    "ext/iceberg/test_iceberg_contract.py",
    "model/test_coordinator_model.py",
    "spark/channel/test_channel_spark.py",
    "dagster/launched/test_epochs.py",
    "spark/epoch/test_lake_pipelines.py",
    "spark/streaming/test_sources_and_ends.py",
    "ext/kafka/test_kafka_values.py",
    "spark/epoch/test_bad_input.py",
    "ext/spark_pipelines/test_changed.py",
    "ext/spark_pipelines/test_surroundings.py",
    "operations/test_operations_state.py",
    "spark/epoch/test_chains.py",
    "operations/readers/test_load_tables.py",
    "adapters/test_sql_store.py",
    "spark/sink/test_judge.py",
    "attack/test_attack.py",
    "ext/iceberg/test_iceberg_values.py",
    "ext/test_readers.py",
    "dagster/jobs/test_jobs_and_checks.py",
    "ext/upgrade_plan/test_upgrade_plan.py",
    "spark/plan/test_rules.py",
    "ext/delta/test_delta_values.py",
    "ext/spark_pipelines/test_refused.py",
    "spark/streaming/test_settings_that_act.py",
    "ext/delta/test_delta_s3.py",
    "spark/snapshot/test_capture_queries.py",
    "spark/streaming/test_chains.py",
    "operations/test_operations_pipeline.py",
    "spark/epoch/test_failing_storage.py",
    "ext/spark_pipelines/test_projects.py",
    "spark/exchange/test_exchange.py",
    "spark/epoch/test_settings_that_act.py",
    "spark/epoch/test_programs.py",
    "ext/spark_pipelines/test_exactness.py",
    "spark/exchange/test_exchange_state.py",
    "spark/plan/test_changed_rows.py",
    "spark/epoch/test_other_sinks.py",
    "spark/plan/test_state_variables.py",
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
