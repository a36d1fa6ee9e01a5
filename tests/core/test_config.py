"""Settings that are refused, and why (CheckpointConfigTest, CheckpointCoordinatorConfigurationTest)."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_ckpt.core.config import CheckpointConfig, ClaimMode, RestoreOptions
from dagster_ckpt.errors import InvalidRequest


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"interval": 0.009}, "interval must be at least 0.01 s, got 0.009"),
        ({"interval": float("nan")}, "interval: Input should be a finite number"),
        ({"interval": "1 min"}, "interval: Input should be a valid number"),
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
        ({"intervall": 3}, "there is no intervall, did you mean interval\\?"),
        ({"colour": 3}, "there is no colour$"),
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
    with pytest.raises(InvalidRequest, match="there is no claimmode, did you mean claim_mode"):
        RestoreOptions.of(claimmode="claim")
