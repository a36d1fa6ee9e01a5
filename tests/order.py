"""The files that take longest begin first: what begins last keeps one process busy while the others have nothing to do.

With ``--dist loadfile`` pytest-xdist hands out whole files; by itself it begins with those of the most tests.
"""

from __future__ import annotations

import pytest

LONGEST = (
    "ext/quarantine/test_bad_rows.py",
    "ext/spark_pipelines/test_adoption.py",
    "spark/streaming/test_crash_at_every_barrier.py",
    "ext/spark_pipelines/test_catalog_views.py",
    "ext/spark_pipelines/test_adoption_delta.py",
    "docs/test_tutorial.py",
    "ext/attach/test_attach.py",
    "spark/cluster/test_standalone.py",
    "ext/spark_pipelines/test_history.py",
    "ext/spark_pipelines/test_operated.py",
    "spark/epoch/test_kill.py",
    "spark/epoch/test_multiprocess.py",
    "spark/snapshot/test_every_operator.py",
    "spark/epoch/test_copied_deployment.py",
    "dagster/launched/test_epochs.py",
    "spark/epoch/test_epoch_runs.py",
    "ext/warm/test_warm_engine.py",
    "dagster/launched/test_streams.py",
    "spark/snapshot/test_capture_queries.py",
    "browser/test_restore_from_the_ui.py",
    "spark/lake/test_empty_disk.py",
    "ext/spark_pipelines/test_changed.py",
    "operations/test_operations_state.py",
    "ext/spark_pipelines/test_projects.py",
    "spark/epoch/test_side_by_side.py",
    "ext/upgrade_plan/test_upgrade_plan.py",
    "contract/test_kafka_sink.py",
    "ext/spark_pipelines/test_exactness.py",
    "spark/streaming/test_signals.py",
    "ext/spark_pipelines/test_as_published.py",
    "spark/epoch/test_bad_input.py",
    "ext/spark_pipelines/test_adoption_changed.py",
    "spark/epoch/test_other_sinks.py",
    "attack/test_attack.py",
    "spark/epoch/test_settings_that_act.py",
    "spark/epoch/test_lake_pipelines.py",
    "spark/streaming/test_failures.py",
    "docs/test_spark_declarative_pipelines.py",
    "spark/epoch/test_failing_storage.py",
    "spark/epoch/test_in_store.py",
    "adapters/test_sql_store.py",
    "spark/epoch/test_ordinary_pipelines.py",
    "spark/epoch/test_hooks.py",
    "spark/epoch/test_lineage.py",
    "spark/epoch/test_programs.py",
    "spark/streaming/test_streaming_job.py",
)
"""Files below ``tests`` that took fifty seconds and more, the longest first; any other begins after them."""


def keep_the_order(config: pytest.Config) -> None:
    """Let pytest-xdist, where it is installed, hand out files as they are collected."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def longest_first(items: list[pytest.Item]) -> None:
    """Sort the tests by file, the longest files first; all others stay as they are."""
    place = {f"tests/{name}": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))
