"""``@pipeline_hook``: what is refused where it is written, and how a pipeline takes hooks."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_ckpt import (
    HookContext,
    InvalidRequest,
    checkpointed_pipeline,
    pipeline_hook,
    spark_sink,
    spark_source,
)
from dagster_ckpt.authoring.own_objects import HookDefinition
from dagster_ckpt.core.ids import PipelineId


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def trigger(self, checkpoint_id: int, timestamp: float) -> int:
        return self.count

    def restore(self, checkpoint_id: int, state: int) -> None:
        self.count = state


def pipeline_with(*hooks: Any) -> Any:
    @spark_source
    def numbers(spark: Any) -> Any:
        return spark

    @spark_sink
    def rows(numbers: Any) -> Any:
        return numbers

    @checkpointed_pipeline(hooks=hooks)
    def pipeline() -> None:
        rows(numbers())

    return pipeline


def test_a_hook_is_named_after_its_class_and_every_attempt_makes_its_own_object() -> None:
    hook = pipeline_hook(Counter)
    context = HookContext(pipeline=PipelineId("p"))
    assert isinstance(hook, HookDefinition)
    assert hook.uid == "Counter"
    first, second = hook.new(context), hook.new(context)
    assert isinstance(first, Counter)
    assert first is not second
    assert isinstance(hook(), Counter), "a unit test gets the plain class"


def test_a_constructor_that_names_context_gets_it() -> None:
    class Named(Counter):
        def __init__(self, context: HookContext) -> None:
            super().__init__()
            self.pipeline = context.pipeline

    hook = pipeline_hook(uid="named", required_resource_keys=["api"])(Named)
    assert hook.new(HookContext(pipeline=PipelineId("p"))).pipeline == "p"
    pipeline = pipeline_with(hook, pipeline_hook(uid="other")(Counter))
    assert pipeline.hook_uids == ("named", "other")
    assert pipeline.hook_resource_keys == {"api"}
    assert pipeline.fork("other_name", table_dir="/t").hooks == pipeline.hooks


class NoMethod:
    pass


class OnlyTrigger:
    def trigger(self, checkpoint_id: int, timestamp: float) -> None: ...


class OnlyRestore:
    def restore(self, checkpoint_id: int, state: int) -> None: ...

    def complete(self, checkpoint_id: int) -> None: ...


class AsFlinkHasIt:
    def snapshot_state(self) -> None: ...

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...


@pytest.mark.parametrize(
    ("wrapped", "settings", "said"),
    [
        (NoMethod, {}, "'NoMethod' hears of no checkpoint: give it trigger, complete"),
        (OnlyTrigger, {}, "never given back. Add restore"),
        (OnlyRestore, {}, "there would never be a state to restore"),
        (AsFlinkHasIt, {}, "has snapshot_state: call it trigger"),
        (
            type("Initialized", (Counter,), {"initializeState": None}),
            {},
            "has initializeState: call it restore",
        ),
        (Counter, {"timeout": 0}, "timeout=0"),
        (Counter, {"uid": "a b"}, "'a b' is not a valid hook id"),
        (Counter, {"required_resource_keys": "api"}, "give a list"),
        (lambda: None, {}, "decorates a class"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_written(
    wrapped: Any, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        pipeline_hook(**settings)(wrapped)


def test_a_pipeline_takes_each_hook_once_and_nothing_else() -> None:
    hook = pipeline_hook(Counter)
    with pytest.raises(InvalidRequest, match="two hooks have uid 'Counter'"):
        pipeline_with(hook, hook)
    with pytest.raises(InvalidRequest, match="decorate its class with @pipeline_hook"):
        pipeline_with(Counter)
    with pytest.raises(InvalidRequest, match="decorate its class with @pipeline_hook"):
        pipeline_with(Counter())
