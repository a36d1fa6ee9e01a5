"""Settings that are refused, and why (CheckpointConfigTest, CheckpointCoordinatorConfigurationTest)."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_ckpt.core.config import (
    CheckpointConfig,
    CheckpointingMode,
    ClaimMode,
    ExternalizedCheckpointRetention,
    RestoreOptions,
)
from dagster_ckpt.core.flink_options import FORMER
from dagster_ckpt.core.paths import StorageKind
from dagster_ckpt.errors import InvalidRequest


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"interval": 0.009}, "interval must be at least 0.01 s, got 0.009"),
        ({"interval": float("nan")}, "interval: Input should be a finite number"),
        (
            {"interval": "1 fortnight"},
            "interval: should be a duration: give seconds, or a number with ms, s, min",
        ),
        ({"timeout": "soon"}, "timeout: should be a duration: .*, got 'soon'"),
        (
            {"execution.checkpointing.mode": "MAYBE"},
            "execution.checkpointing.mode: Input should be 'exactly_once'",
        ),
        (
            {"interval_during_backlog": -1},
            "interval_during_backlog: Input should be greater than or equal to 0",
        ),
        ({"interval": 10, "interval_during_backlog": 5}, "interval_during_backlog must be 0"),
        ({"timeout": 0.009}, "timeout must be at least 0.01 s"),
        ({"timeout": float("inf")}, "timeout: Input should be a finite number"),
        ({"min_pause": -1}, "min_pause: Input should be greater than or equal to 0, got -1"),
        ({"max_concurrent_checkpoints": 0}, "max_concurrent_checkpoints: "),
        ({"tolerable_failed_checkpoints": -1}, "tolerable_failed_checkpoints: "),
        ({"num_retained": 0}, "num_retained: "),
        ({"mode": "maybe"}, "mode: Input should be 'exactly_once' or 'at_least_once'"),
        (
            {"unaligned": True, "max_concurrent_checkpoints": 2},
            "unaligned checkpoints allow max_concurrent_checkpoints = 1 only",
        ),
        ({"unaligned": True, "mode": "at_least_once"}, "unaligned checkpoints need mode = exactly_once"),
        ({"retention": {"weekly": 3}}, "retention: `weekly` is none of keep_last, hourly, daily, got"),
        ({"retention": {"keep_last": 0}}, "retention: `keep_last` must be a whole number, at least 1, got"),
        ({"retention": {"daily": 1.5}}, "retention: `daily` must be a whole number, at least 0, got"),
        ({"retention": {"hourly": True}}, "retention: `hourly` must be a whole number, at least 0, got"),
        ({"num_retaned": 3}, "`num_retaned`: did you mean `num_retained`\\?$"),
        ({"min-pause": 3}, "`min-pause`: did you mean `min_pause`\\?$"),
        (
            {"execution.checkpointing.intervall": 3},
            "`execution.checkpointing.intervall` is none of the settings",
        ),
        ({"color": 3}, "`color` is none of the settings here: aligned_checkpoint_timeout, "),
        ({"unaligned_forced": True}, "`unaligned_forced` is not supported: for loops in the graph"),
        (
            {"execution.checkpointing.unaligned.forced": True},
            "`execution.checkpointing.unaligned.forced` is not sup",
        ),
        (
            {"data_inline_threshold": 0},
            "`data_inline_threshold` is not supported: files of up to 20 kb are kept",
        ),
        (
            {"web.checkpoints.history": 5},
            "`web.checkpoints.history` is not supported: runs show the latest 10",
        ),
        ({"unaligned_enabled": True}, "`unaligned_enabled`: did you mean `unaligned`\\?$"),
        (
            {"without_channel_state_of": 3},
            "`without_channel_state_of` says what a run starts from: give it in the run",
        ),
        ({"state.checkpoints.dir": "s3://b"}, "`state.checkpoints.dir` says where checkpoints live: give"),
        ({"state.backend": "rocksdb"}, "`state.backend` is not supported: Spark's stateStore.providerClass"),
        (
            {"failTaskOnCheckpointError": False},
            "`failTaskOnCheckpointError`: did you mean `tolerable_failed_checkpoints`\\?$",
        ),
        ({"forceCheckpointing": True}, "`forceCheckpointing` is not supported: for loops in the graph"),
        (
            {"max_parallelism": 128},
            "`max_parallelism` is not supported: state is divided into a stage's `part",
        ),
        ({"maxParallelism": 128}, "`maxParallelism` is not supported: state is divided into a stage's `part"),
        ({"force-unaligned": True}, "`force-unaligned` is not supported: for .* none: `unaligned` suffices$"),
        ({"checkpoint_timeout": 3}, "`checkpoint_timeout`: did you mean `timeout`\\?$"),
        ({"enableUnalignedCheckpoints": True}, "`enableUnalignedCheckpoints`: did you mean `unaligned`\\?$"),
        (
            {"state_checkpoints_dir": "s3://b"},
            "`state_checkpoints_dir`: did you mean `checkpoint_dir`\\? It s",
        ),
        ({"savepointPath": "s3://b"}, "`savepointPath`: did you mean `restore_from`\\? It says what a run"),
        ({"local_recovery": True}, "`local_recovery`: did you mean `local_backup`\\?$"),
        (
            {"restart-strategy.type": "none"},
            "`restart-strategy.type` is not supported: `restart` of the pipe",
        ),
        (
            {"execution.checkpointing.dir": "s3://b"},
            "`execution.checkpointing.dir` says where checkpoints live: give",
        ),
    ],
)
def test_a_bad_setting_is_refused_in_a_sentence(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^Checkpoint configuration is not valid: {why}") as refused:
        CheckpointConfig.of(**settings)
    assert "Value error" not in str(refused.value)


def test_every_bad_setting_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"min_pause: .*; num_retained: "):
        CheckpointConfig.of(min_pause=-1, num_retained=0)


def test_bad_restore_options_are_refused_in_a_sentence() -> None:
    assert RestoreOptions.of(claim_mode="claim").claim_mode is ClaimMode.CLAIM
    with pytest.raises(InvalidRequest, match="is not valid: claim_mode: Input should be 'claim', 'no_claim'"):
        RestoreOptions.of(claim_mode="keep")
    with pytest.raises(InvalidRequest, match="`claimmode`: did you mean `claim_mode`"):
        RestoreOptions.of(claimmode="claim")
    with pytest.raises(
        InvalidRequest, match="`interval` says how checkpoints are taken: give it in `checkpoi"
    ):
        RestoreOptions.of(interval=3)


@pytest.mark.parametrize(
    ("key", "value", "name", "expected"),
    [
        ("execution.checkpointing.interval", "10 min", "interval", 600.0),
        ("execution.checkpointing.interval", "500ms", "interval", 0.5),
        ("execution.checkpointing.timeout", "1 h", "timeout", 3600.0),
        ("execution.checkpointing.min-pause", "1.5 s", "min_pause", 1.5),
        ("execution.checkpointing.min-pause", 0, "min_pause", 0.0),
        ("execution.checkpointing.mode", "AT_LEAST_ONCE", "mode", CheckpointingMode.AT_LEAST_ONCE),
        (
            "execution.checkpointing.externalized-checkpoint-retention",
            "DELETE_ON_CANCELLATION",
            "externalized_checkpoint_retention",
            ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION,
        ),
        ("execution.checkpointing.storage", "jobmanager", "checkpoint_storage", StorageKind.STORE),
        ("execution.checkpointing.storage", "FILESYSTEM", "checkpoint_storage", StorageKind.FILESYSTEM),
        ("execution.checkpointing.incremental", "true", "incremental", True),
        ("interval", "2 Days", "interval", 172800.0),
        ("interval", "10", "interval", 10.0),
        ("interval", 10, "interval", 10.0),
        ("initial_delay", "20 sec", "initial_delay", 20.0),
        ("mode", "at-least-once", "mode", CheckpointingMode.AT_LEAST_ONCE),
    ],
)
def test_settings_are_read_as_flink_writes_them(key: str, value: Any, name: str, expected: object) -> None:
    assert getattr(CheckpointConfig.of(**{key: value}), name) == expected


@pytest.mark.parametrize(
    ("former", "value", "name", "expected"),
    [
        ("state.backend.local-recovery", "true", "local_backup", True),
        ("state.checkpoints.num-retained", 5, "num_retained", 5),
        ("state.checkpoint-storage", "jobmanager", "checkpoint_storage", StorageKind.STORE),
        ("execution.checkpointing.unaligned", True, "unaligned", True),
        (
            "execution.checkpointing.checkpoints-after-tasks-finish.enabled",
            False,
            "checkpoints_after_tasks_finish",
            False,
        ),
        ("state.backend.incremental", False, "incremental", False),
        ("state.savepoints.dir", "s3://b", "savepoint_dir", "s3://b"),
    ],
)
def test_a_key_that_flink_has_replaced_is_read_and_told(
    former: str, value: Any, name: str, expected: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert getattr(CheckpointConfig.of(**{former: value}), name) == expected
    assert f"deprecated key '{former}' of Flink: its key is '{FORMER[former]}' now" in caplog.messages


def test_restore_options_are_read_as_flink_writes_them() -> None:
    options = RestoreOptions.of(
        **{
            "execution.state-recovery.path": "s3://bucket/savepoint-7",
            "execution.state-recovery.claim-mode": "CLAIM",
            "execution.state-recovery.ignore-unclaimed-state": "true",
            "execution.state-recovery.without-channel-state.checkpoint-id": 7,
        }
    )
    assert options == RestoreOptions(
        restore_from="s3://bucket/savepoint-7",
        claim_mode=ClaimMode.CLAIM,
        allow_non_restored_state=True,
        without_channel_state_of=7,
    )


def test_a_bare_number_under_flinks_key_would_be_milliseconds_there_and_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match=r"= 10000 has no unit, and Flink .* write `10000 ms` or `10000 s`"
    ):
        CheckpointConfig.of(**{"execution.checkpointing.interval": 10000})


def test_the_run_config_beats_the_pipeline_and_the_pipeline_the_resource() -> None:
    resource = {"timeout": 1, "min_pause": 1, "num_retained": 1, "interval": 60}
    pipeline = {"execution.checkpointing.timeout": "2 s", "min_pause": 2, "interval": None}
    run = {"timeout": "3 s"}
    config = CheckpointConfig.layered(resource, pipeline, run)
    assert (config.timeout, config.min_pause, config.num_retained, config.interval) == (3, 2, 1, None)


def test_one_setting_under_two_names_in_one_place_is_refused_where_they_differ() -> None:
    key = "execution.checkpointing.timeout"
    assert CheckpointConfig.of(**{"timeout": "5 s", key: "5 s"}).timeout == 5
    with pytest.raises(InvalidRequest, match="`timeout` is given twice: as `timeout` = 5 and as `exec"):
        CheckpointConfig.of(**{"timeout": 5, key: "6 s"})
