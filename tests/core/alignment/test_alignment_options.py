"""What travels with a barrier."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.alignment.events import (
    as_unaligned,
    check_options,
    force_aligned,
    is_timeoutable,
    options_for,
    with_unaligned_supported,
)
from dagster_ckpt.core.config import CheckpointConfig, CheckpointingMode
from dagster_ckpt.core.messages import Alignment, BarrierOptions
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.errors import InvalidRequest

CHECKPOINT, SAVEPOINT = CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT


@pytest.mark.parametrize("kind", list(CheckpointKind))
def test_at_least_once_makes_at_least_once_barriers(kind: CheckpointKind) -> None:
    config = CheckpointConfig(mode=CheckpointingMode.AT_LEAST_ONCE)
    assert options_for(kind, config).alignment is Alignment.AT_LEAST_ONCE


@pytest.mark.parametrize("kind", [k for k in CheckpointKind if k.is_savepoint])
def test_a_savepoint_is_aligned_and_never_times_out(kind: CheckpointKind) -> None:
    """ALT#testSavepointHandling;
    SubtaskCheckpointCoordinatorTest#testSavepointNotResultingInPriorityEvents."""
    config = CheckpointConfig(unaligned=True, aligned_checkpoint_timeout=3)
    options = options_for(kind, config)
    assert options.alignment is Alignment.ALIGNED
    assert not is_timeoutable(options)


def test_a_checkpoint_follows_the_configuration() -> None:
    """CheckpointOptionsTest: forConfig."""
    aligned = options_for(CHECKPOINT, CheckpointConfig())
    assert (aligned.alignment, aligned.aligned_timeout_ms) == (Alignment.ALIGNED, None)
    at_once = options_for(CHECKPOINT, CheckpointConfig(unaligned=True))
    assert (at_once.alignment, at_once.aligned_timeout_ms) == (Alignment.UNALIGNED, None)
    later = options_for(CHECKPOINT, CheckpointConfig(unaligned=True, aligned_checkpoint_timeout=3))
    assert (later.alignment, later.aligned_timeout_ms) == (Alignment.ALIGNED, 3000)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (BarrierOptions(kind=SAVEPOINT, alignment=Alignment.UNALIGNED), "never unaligned"),
        (BarrierOptions(kind=SAVEPOINT, aligned_timeout_ms=5), "no aligned timeout"),
        (BarrierOptions(alignment=Alignment.UNALIGNED, aligned_timeout_ms=5), "no aligned timeout"),
        (BarrierOptions(alignment=Alignment.AT_LEAST_ONCE, aligned_timeout_ms=5), "no aligned timeout"),
        (BarrierOptions(aligned_timeout_ms=-1), "must not be negative"),
    ],
)
def test_combinations_that_no_trigger_makes_are_refused(options: BarrierOptions, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        check_options(options)


@pytest.mark.parametrize(
    "options", [BarrierOptions(alignment=Alignment.UNALIGNED), BarrierOptions(aligned_timeout_ms=100)]
)
def test_forcing_alignment_for_one_edge_is_undone_behind_it(options: BarrierOptions) -> None:
    """SubtaskCheckpointCoordinatorTest#testForceAlignedCheckpointResultingInPriorityEvents."""
    forced = force_aligned(options)
    assert forced.alignment is Alignment.FORCED_ALIGNED
    check_options(forced)
    assert with_unaligned_supported(forced) == options


def test_what_is_aligned_anyway_need_not_be_forced() -> None:
    plain = BarrierOptions()
    assert force_aligned(plain) == plain
    assert with_unaligned_supported(plain) == plain


def test_a_time_out_leaves_no_time_out_behind() -> None:
    assert as_unaligned(BarrierOptions(aligned_timeout_ms=5)) == BarrierOptions(alignment=Alignment.UNALIGNED)
