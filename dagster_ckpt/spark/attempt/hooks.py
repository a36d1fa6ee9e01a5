"""The pipeline's hooks, made for one attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.hooks import HookContext
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.runtime.driver.user_hook import UserHook
from dagster_ckpt.spark.attempt.stage_query import StageArguments

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.core.config import CheckpointConfig


def make_hooks(
    pipeline: CheckpointedPipeline, config: CheckpointConfig, *, resources: Any, warn: Callable[[str], None]
) -> dict[str, UserHook]:
    """Return an object of each hook's class. A call may take half of the checkpoint's timeout: stages need the rest."""
    context = HookContext(pipeline=pipeline.name, resources=resources)
    return {
        hook.uid: UserHook(
            hook.uid, hook.new(context), timeout=min(hook.timeout, config.timeout / 2), warn=warn
        )
        for hook in pipeline.hooks
    }


def with_hooks(
    arguments: Mapping[StageUid, StageArguments], pipeline: CheckpointedPipeline, hooks: Mapping[str, Any]
) -> dict[StageUid, StageArguments]:
    """Return the arguments of every stage, with the attempt's hooks in them."""
    return {uid: replace(arguments.get(uid, StageArguments()), hooks=hooks) for uid in pipeline.stages}
