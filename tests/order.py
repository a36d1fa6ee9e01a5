"""The files that take longest begin first: what begins last keeps one process busy while the others have nothing to do.

With ``--dist loadfile`` pytest-xdist hands out whole files; by itself it begins with those of the most tests.
"""

from __future__ import annotations

import pytest

LONGEST = (
    "spark/cluster/test_kills.py",
    "spark/streaming/test_crash_at_every_barrier.py",
    "spark_project/test_against_spark.py",
    "spark_project/test_adoption.py",
    "spark/epoch/test_kill.py",
    "spark/epoch/test_in_store.py",
    "docs/test_tutorial.py",
    "spark/cluster/test_standalone.py",
    "browser/test_restore_from_the_ui.py",
    "spark/snapshot/test_every_operator.py",
    "spark/epoch/test_multiprocess.py",
    "spark_project/test_operated.py",
    "dagster/launched/test_epochs.py",
    "spark/epoch/test_hooks.py",
    "spark/epoch/test_epoch_runs.py",
    "spark_project/test_projects.py",
    "spark/streaming/test_failures.py",
    "spark/streaming/test_streaming_job.py",
    "spark/snapshot/test_capture_queries.py",
    "dagster/launched/test_streams.py",
    "spark/lake/test_empty_disk.py",
    "docs/test_spark_declarative_pipelines.py",
    "contract/test_kafka_sink.py",
    "spark/streaming/test_chains.py",
    "spark/warm/test_warm_engine.py",
    "dagster/jobs/test_jobs_and_checks.py",
    "spark/epoch/test_chains.py",
    "spark/epoch/test_blue_green_runs.py",
    "spark/epoch/test_bad_input.py",
    "spark_project/test_exactness.py",
    "spark/epoch/test_failing_storage.py",
    "spark/streaming/test_aligned.py",
    "operations/test_operations_state.py",
    "dagster/jobs/test_checkpoint_job.py",
    "spark/streaming/test_signals.py",
    "spark_project/test_changed.py",
    "spark/epoch/test_changed_query.py",
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
