"""Sweeps over points at which something ends: ``make test`` tries a fixed third of each, ``make nightly`` all of it.

A third is the first point and every third one after it; a sweep in several histories begins with another point in
each, so that ``make test`` has all histories, and every point in one of them. Cases of one test on Spark (operators,
state formats, modes) are a sweep too. A test of Spark is marked ``nightly`` when ``make test`` runs another one of its
room that goes the same way (a restore, a kill, a refusal), or when it ends machines of a cluster; variants that a
contract or a list of parameters makes stand in ``AT_NIGHT``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")

IS_WHOLE = os.environ.get("SWEEP") == "all"


def third(points: Iterable[T], history: int = 0) -> list[T]:
    """Return the points that this run tries, in the ``history``-th history of the sweep."""
    every = list(points)
    return every if IS_WHOLE else every[history % 3 :: 3]


AT_NIGHT: dict[str, tuple[str, ...]] = {
    "adapters/test_fsspec_storage.py": ("test_a_killed_writer_never_leaves_a_visible_partial_key[named]",),
    "adapters/test_sql_store.py": (
        "test_a_killed_writer_leaves_record_and_history_of_the_same_write[sqlite]",
        "test_eight_processes_increment_one_record_and_no_update_is_lost[sqlite]",
    ),
    "attack/test_attack.py": (
        "test_no_attack_and_no_change_ends_in_success_with_wrong_rows[3]",
        "test_no_attack_and_no_change_ends_in_success_with_wrong_rows[6]",
    ),
    "browser/test_restore_from_the_ui.py": ("test_the_launchpad_of_a_job_shows_the_settings",),
    "cli/test_launch.py": ("test_the_webserver_is_not_waited_for",),
    "contract/test_kafka_sink.py": (
        "TestKafka::test_nothing_of_an_older_attempt_appears_after_a_newer_one_took_over[1]",
    ),
    "contract/test_sql_sink.py": (
        "TestPostgres::",
        "TestPostgresWithBeforeImages::test_a_process_that_ends_anywhere_in_a_publish",
    ),
    "crash/test_crash_sweep.py": ("test_a_crash_while_recovering_from_a_crash_loses_nothing[after]",),
    "dagster/components/test_component.py": ("test_what_is_scaffolded_runs_and_goes_back",),
    "dagster/jobs/test_jobs_and_checks.py": (
        "test_scheduled_savepoints_beyond_their_bounds",
        "test_the_restore_job_runs_from_the_partition_chosen",
    ),
    "dagster/reports/test_stream_reports.py": (
        "test_a_day_of_a_stream_is_at_most_2000_events_and_10_megabytes[busy]",
    ),
    "docs/test_tutorial.py": ("test_whoever_follows_the_tutorial",),
    "e2e/test_truth.py": ("test_the_days_join_apart_as_they_join_together",),
    "ext/attach/test_attach.py": ("test_a_program_that_starts_no_query_ends_as_it_ends[raise",),
    "ext/attach/test_rewriting.py": ("test_the_program_goes_on_where_the_plain_one_stopped",),
    "ext/delta/test_delta_others.py": ("test_a_restore_beside_others_is_exact_or_refused_by_name[key0]",),
    "ext/delta/test_delta_s3.py": (
        "TestDeltaSinkInAnObjectStore::test_a_checkpoint_asks_for_the_log_as_often_however_many_were_before[key0]",
    ),
    "ext/delta/test_delta_spark.py": ("test_a_streams_rows_are_a_delta_table",),
    "ext/delta/test_delta_values.py": (
        "TestDeltaValues::test_a_value_is_shown_as_it_is_or_refused_by_its_column[key0]",
        "TestDeltaValues::test_a_value_of_a_partition_is_shown_as_it_is_or_refused_by_its_column[key1]",
    ),
    "ext/iceberg/test_iceberg_others.py": ("test_a_restore_beside_others_is_exact_or_refused_by_name[key0]",),
    "ext/iceberg/test_iceberg_rest.py": (
        "TestIcebergSinkOfARestCatalog::test_nothing_of_an_older_attempt_appears_after_a_newer_one_took_over[1]",
    ),
    "ext/iceberg/test_iceberg_values.py": (
        "TestIcebergValues::test_a_value_is_shown_as_it_is_or_refused_by_its_column[key1]",
        "TestIcebergValues::test_a_value_of_a_partition_is_shown_as_it_is_or_refused_by_its_column[key0]",
    ),
    "ext/upgrade_plan/test_rebuild.py": (
        "test_at_any_kill_one_of_the_two_serves_and_the_next_try_ends_well",
        "test_a_branch_of_any_kind_is_that_of_a_run_from_scratch[stages]",
        "test_a_branch_of_any_kind_is_that_of_a_run_from_scratch[shared]",
        "test_each_snapshot_around_a_take_over_is_restored_and_forked_with_its_own_code",
        "test_the_plan_offers_the_command_that_rebuilds",
    ),
    "ext/upgrade_plan/test_rebuild_places.py": (
        "test_at_any_kill_one_of_the_two_serves_in_its_place",
        "test_it_begins_where_its_start_mode_says",
    ),
    "ext/quarantine/test_bad_rows.py": ("test_a_function_that_fits_no_row",),
    "ext/spark_pipelines/test_adoption_changed.py": ("test_a_dataset_that_is_removed_after_the_adoption",),
    "ext/spark_pipelines/test_as_published.py": (
        "test_however_a_function_comes_to_its_session_it_reads_the_project_and_has_its_settings[active]",
    ),
    "ext/spark_pipelines/test_changed.py": (
        "test_a_table_of_changes_with_other_keys_is_refused_and_begins_from_nothing",
        "test_changes_that_are_put_in_order_by_another_column_are_refused[2]",
    ),
    "ext/spark_pipelines/test_exactness.py": ("test_flows_with_other_columns_fill_one_table_by_name",),
    "ext/spark_pipelines/test_history.py": ("test_a_declared_schema_of_a_table_of_versions",),
    "ext/spark_pipelines/test_lake_targets.py": (
        "test_delta_tables_and_sinks_of_a_project_are_exact_and_go_back",
    ),
    "ext/spark_pipelines/test_operated.py": ("test_its_tables_are_assets_of_dagster_and_load",),
    "ext/spark_pipelines/test_projects.py": ("test_changes_are_applied_in_the_order",),
    "ext/sql/test_sql_values.py": (
        "TestPostgresValues::test_a_value_is_shown_as_it_is_or_refused_by_its_column[key1]",
        "TestSqliteValues::test_a_value_is_shown_as_it_is_or_refused_by_its_column[key0]",
    ),
    "ext/warm/test_warm_engine.py": ("test_an_engine_nobody_uses_ends",),
    "operations/test_operations_state.py": (
        "test_keys_added_and_changed_are_those_the_input_says",
        "test_saved_state_is_read_whatever_the_session_is_set_to[stream-join",
    ),
    "sim/test_model_of_spark.py": ("test_",),
    "spark/channel/test_channel_spark.py": (
        "test_a_query_that_takes_what_is_available_ends_exactly",
        "test_rows_that_wait_under_another_name_of_a_column",
    ),
    "spark/cluster/test_standalone.py": (
        "test_rows_on_another_disk_fail_the_run_without_a_probe_too[shop",
        "test_state_on_another_disk_is_in_no_checkpoint_without_a_probe_too",
        "test_without_the_package_executors_are_refused",
    ),
    "spark/epoch/test_bad_input.py": (
        "test_a_damaged_checkpoint_is_named",
        "test_a_key_that_is_no_plain_value_is_refused_before_a_row_is_read[Iceberg]",
    ),
    "spark/epoch/test_changed_query.py": (
        "test_a_query_that_cannot_go_on",
        "test_rows_that_come_once_are_counted_whatever_the_output_mode",
    ),
    "spark/epoch/test_copied_deployment.py": ("test_a_moved_deployment_goes_on",),
    "spark/epoch/test_epoch_runs.py": ("test_starting_without_state_empties_the_tables_first",),
    "spark/epoch/test_failing_storage.py": (
        "test_a_run_without_its_checkpoint_fails_unless_told_else_and_the_next_epoch_makes_it_good[lab0]",
        "test_metadata_that_cannot_be_written",
    ),
    "spark/epoch/test_hooks.py": ("test_a_hook_that_fails_or_hangs",),
    "spark/epoch/test_in_store.py": ("test_a_pipeline_lives_from_its_store_alone",),
    "spark/epoch/test_kafka_source.py": ("test_a_topic_that_was_made_again",),
    "spark/epoch/test_lake_pipelines.py": (
        "test_the_first_checkpoint_is_not_restored_into_another_table[iceberg]",
        "test_the_first_checkpoint_is_not_restored_into_another_table[its own]",
    ),
    "spark/epoch/test_lineage.py": ("test_a_deployment_of_which_parts",),
    "spark/epoch/test_local_disk.py": ("test_a_damaged_working_directory",),
    "spark/epoch/test_ordinary_pipelines.py": ("test_ordinary_pipelines_run_as_a_stream",),
    "spark/epoch/test_programs.py": (
        "test_a_second_run_under_the_name_of_one_that_ended_well",
        "test_a_stream_in_a_plain_program",
    ),
    "spark/epoch/test_rescaling.py": ("test_state_that_spark_cannot_spread",),
    "spark/epoch/test_settings_that_act.py": ("test_a_run_ends_with_the_latest_checkpoints",),
    "spark/epoch/test_side_by_side.py": (
        "test_one_that_fails_fails_the_run_and_the_next_run_is_exact[right]",
    ),
    "spark/exchange/test_exchange_state.py": ("test_state_goes_on_from_a_capture_in_another_place[folder]",),
    "spark/snapshot/test_capture_queries.py": (
        "test_a_query_captured_while_it_runs_on_continues_elsewhere_row_for_row[aggregation-hdfs]",
        "test_a_query_captured_while_it_runs_on_continues_elsewhere_row_for_row[global-aggregation",
        "test_a_query_captured_while_it_runs_on_continues_elsewhere_row_for_row[stream-join-hdfs]",
    ),
    "spark/snapshot/test_every_operator.py": (
        "test_operators_restored_and_spread_go_on_as_if_nothing_had_happened[duplicates",
    ),
    "spark/snapshot/test_restore_rescale.py": (
        "test_a_rescaled_stage_has_its_state_and_goes_on_row_for_row[aggregation]",
        "test_a_rescaled_stage_has_its_state_and_goes_on_row_for_row[drop-duplicates",
    ),
    "spark/streaming/test_barriers_played.py": (
        "test_a_graph_at_rest_takes_checkpoints_almost_without_batches_and_its_logs_stay_short[at_least_once]",
    ),
    "spark/streaming/test_chains.py": (
        "test_a_chain_of_bounded_sources_ends_with_its_data",
        "test_a_chain_that_reads_channels_restores_exactly_wherever_it_dies[aligned]",
    ),
    "spark/streaming/test_crash_at_every_barrier.py": (
        "test_a_run_that_dies_at_any_barrier_restores_exactly[aligned_with_timeout]",
        "test_a_run_that_dies_at_any_barrier_restores_exactly[instant_unaligned]",
        "test_a_run_that_dies_at_any_barrier_restores_exactly[unaligned]",
        "test_a_run_that_reads_at_least_once",
    ),
    "spark/streaming/test_hooks.py": ("test_a_hook_that_hangs",),
    "spark/streaming/test_settings_that_act.py": (
        "test_the_in_flight_data_of_one_checkpoint_is_left_out_of_a_restore[False]",
        "test_without_checkpoints_after_the_end_one_ended_source",
    ),
    "spark/streaming/test_sources_and_ends.py": (
        "test_a_source_that_replays_by_offset",
        "test_stop_with_savepoint_ends_exactly_at_it_and_the_savepoint_restores[sync_savepoint_terminate",
    ),
}
"""Per file below ``tests`` the beginnings of the names of tests that ``make nightly`` alone runs."""


def mark_nightly(items: Iterable[pytest.Item]) -> None:
    """Give the tests of ``AT_NIGHT`` their marker."""
    for item in items:
        file, _, name = item.nodeid.partition("::")
        if name.startswith(AT_NIGHT.get(file.removeprefix("tests/"), ("\0",))):
            item.add_marker("nightly")
