"""Settings of a stage for running in one query with others."""

from __future__ import annotations

from dagster_ckpt.authoring.stages import Boundedness, StageDefinition
from dagster_ckpt.core.graph import Chaining


def chaining_of(stage: StageDefinition) -> Chaining:
    """Return a stage's chaining; a setting that would not act within a chain keeps the stage out of one."""
    limit = stage.max_entries_per_trigger
    apart = (
        (not stage.chain, "has chain=False"),
        (stage.barrier_after is not None, "has barrier_after"),
        (stage.is_backlog is not None, "has is_backlog"),
        (stage.partitions is not None, f"has partitions={stage.partitions}"),
    )
    alone = (
        (not stage.chain, "has chain=False"),
        (bool(limit), f"has max_entries_per_trigger={limit}"),
    )
    return Chaining(
        leaves_reader=next((why for is_so, why in apart if is_so), ""),
        leaves_inputs=next((why for is_so, why in alone if is_so), ""),
        bounded=stage.boundedness is Boundedness.BOUNDED,
        reads=stage.reads,
    )
