"""Choice of the barrier handler a configuration needs.

Source: flink-runtime InputProcessorUtil#createCheckpointBarrierHandler.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import assert_never

from dagster_ckpt.core.alignment.events import BarrierHandler, Channel
from dagster_ckpt.core.alignment.progress import AlignmentCount
from dagster_ckpt.core.alignment.single import AfterEnd, SingleCheckpointHandler, Switching
from dagster_ckpt.core.alignment.tracker import CheckpointTracker
from dagster_ckpt.core.config import CheckpointConfig, CheckpointingMode
from dagster_ckpt.errors import InvalidRequest


def handler_for(config: CheckpointConfig, channels: Collection[Channel]) -> BarrierHandler:
    """Return the handler of a stage with these input channels.

    Raises InvalidRequest without a channel, and for unaligned checkpoints with at-least-once, which hold no
    channel and so have no alignment to shorten.
    """
    if not channels:
        raise InvalidRequest("a stage without input channels is triggered directly, it aligns nothing")
    names = frozenset(channels)
    after_end = AfterEnd.COUNTS_AS_BARRIER if config.checkpoints_after_tasks_finish else AfterEnd.ABORTS
    match config.mode:
        case CheckpointingMode.AT_LEAST_ONCE:
            if config.unaligned:
                raise InvalidRequest("unaligned checkpoints need mode = exactly_once")
            return CheckpointTracker(open_channels=names, after_end=after_end)
        case CheckpointingMode.EXACTLY_ONCE:
            switching = Switching.ALTERNATING if config.unaligned else Switching.ALIGNED_ONLY
            return SingleCheckpointHandler(
                progress=AlignmentCount(open_channels=names), switching=switching, after_end=after_end
            )
    assert_never(config.mode)
