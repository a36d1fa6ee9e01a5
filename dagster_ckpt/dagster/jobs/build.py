"""Builder of jobs: of one op, and of an epoch; config of their runs, and errors as step failures.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, TypeVar

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.settings import our_name
from dagster_ckpt.core.units import size
from dagster_ckpt.dagster.console import failure
from dagster_ckpt.dagster.launchpad import quiet_resources, seldom
from dagster_ckpt.dagster.names import (
    CONCURRENCY_TAG,
    COORDINATOR_KEY,
    JOB_TAG,
    PIPELINE_TAG,
    RESTORE_OP,
    RETRY_STRATEGY_TAG,
    STREAM_OP,
    RestoreMode,
    epoch_job_name,
    op_name,
)
from dagster_ckpt.dagster.resources.pipeline import coordinator_of
from dagster_ckpt.errors import CheckpointError, Fenced, InvalidRequest, NotFound

E = TypeVar("E", bound=StrEnum)


class RestoreConfig(dg.Config):
    """Config of a run: what it starts from."""

    restore_from: str = "latest"
    """``latest``, ``none``, a key such as ``chk-31`` or ``savepoint-7``, or the path or URI of one."""
    claim_mode: str = seldom("no_claim")
    """``no_claim``, ``claim`` or ``legacy``: who owns the snapshot afterwards."""
    allow_non_restored_state: bool = seldom(False)
    """Go on although the snapshot holds state of a stage the pipeline no longer has."""
    roll_back_tables: bool = seldom(True)
    """Set aside rows that tables received after the restore point."""
    keep_rows_of: list[str] = seldom([])
    """Sinks, by uid, whose rows after the restore point stay all the same: those that cannot go back."""
    fork: bool = seldom(False)
    """The snapshot is another pipeline's: begin with new query ids and tables of our own."""
    adopt_history: bool = seldom(False)
    """Go on although the coordinator store is behind what storage, working directory or sinks have seen, or these are
    another history's."""
    allow_missing_files: bool = seldom(False)
    """Go on although files are gone that a file source has read after the restore point: their rows are left out."""
    without_channel_state_of: int | None = None
    """Leave out the in-flight data of exactly this checkpoint."""

    def options(self) -> RestoreOptions:
        """Return the checked options. Raises InvalidRequest."""
        return self._options({})

    def _options(self, further: Mapping[str, Any]) -> RestoreOptions:
        given = {name: getattr(self, name) for name in RestoreOptions.model_fields if is_given(self, name)}
        try:
            return RestoreOptions.of(**{**given, **further})
        except InvalidRequest as error:
            raise InvalidRequest(f"Run config of op {RESTORE_OP!r}: {error}") from error


class RunConfig(RestoreConfig):
    """Config of a run: what it starts from, and settings for this run only."""

    mode: str = seldom("restore")
    """``restore``; ``preview``: only say what that would do; ``gate``: the same, with an approval that a second launch
    carries; ``dry_run``: try the restore in a scratch directory, for the check ``checkpoint_restorable``."""
    approved: str = seldom("")
    """Approval that a preview with ``mode: gate`` gave: refused when something has happened since."""
    try_queries: bool = seldom(True)
    """A preview also starts every stage's query on a copy, with Spark, into a null sink: that finds a query which
    cannot go on from the snapshot's state. False: it answers at once, from files alone."""
    concurrent_runs: str = seldom("")
    """``queue``, ``skip`` or ``take_over``, where another run of the pipeline is alive; empty: as the pipeline says."""
    checkpointing: dict[str, Any] = seldom({})
    """Settings that override the pipeline's and the resource's, under our names or Flink's."""

    def options(self) -> RestoreOptions:
        """Return the checked options, those given under Flink's keys as well. Raises InvalidRequest."""
        return self._options({k: v for k, v in self.checkpointing.items() if _is_restore_option(k)})

    def settings(self) -> dict[str, Any]:
        """Return how this run's checkpoints are taken, unchecked."""
        return without_restore_options(self.checkpointing)


def looks_only(run_config: Mapping[str, Any]) -> bool:
    """Tell whether a run with this config of op ``restore`` or ``stream`` restores nothing, and only says something."""
    ops: Any = run_config.get("ops") or {}
    for op in (RESTORE_OP, STREAM_OP):
        config: Any = (ops.get(op) or {}).get("config") or {}
        mode = str(config.get("mode", "")).strip().lower()
        if mode in (RestoreMode.PREVIEW, RestoreMode.DRY_RUN) or (
            mode == RestoreMode.GATE and not config.get("approved")
        ):
            return True
    return False


def word_in(words: type[E], given: str, *, setting: str, op: str, among: Collection[E] = ()) -> E:
    """Return the word that a run config's setting names, ``among`` those allowed. Raises InvalidRequest."""
    allowed = tuple(among or words)
    for word in allowed:
        if given.strip().lower() == word:
            return word
    raise InvalidRequest(
        f"Run config of op {op!r}: {setting} must be one of {', '.join(allowed)}, got {given!r}"
    )


def is_given(config: dg.Config, name: str) -> bool:
    """Tell whether a setting is another than its default."""
    field = type(config).model_fields[name]
    return bool(getattr(config, name) != field.get_default(call_default_factory=True))


def refuse_of_others(config: dg.Config, chosen: E, own: Mapping[E, Collection[str]], *, op: str) -> None:
    """Raise InvalidRequest for a setting that says nothing to the action ``chosen``; ``own``: the settings of each."""
    for name in type(config).model_fields:
        users = [action for action, names in own.items() if name in names]
        if users and chosen not in users and is_given(config, name):
            raise InvalidRequest(
                f"Run config of op {op!r}: {name} is for action {' and '.join(users)}, and says nothing to {chosen}: "
                "leave it out"
            )


def without_restore_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that say how checkpoints are taken, not what the run starts from."""
    return {k: v for k, v in settings.items() if not _is_restore_option(k)}


def _is_restore_option(key: str) -> bool:
    return our_name(key) in RestoreOptions.model_fields


BARRIER = "barrier"
"""Output of an op of an epoch's job: ops that come after it wait for that."""


def one_op_job(
    pipeline: CheckpointedPipeline,
    run: Callable[..., None],
    *,
    resources: Mapping[str, Any],
    name: str,
    op: str,
    description: str,
    resource_keys: Iterable[str] = (),
    op_tags: dict[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    executor: dg.ExecutorDefinition = dg.in_process_executor,
) -> dg.JobDefinition:
    """Return the job ``name`` whose only op calls ``run(context, config)``; the library's errors become clear failures.

    ``run`` is annotated with its config class, evaluated: Dagster reads it. Run configs name the op ``op``.
    ``resources``: the pipeline's own, bound to the job: another pipeline of the location may have others.
    """
    taken = op in pipeline.stages  # by the op of that stage, in the epoch job
    made = dg.op(
        name=f"{name}__{op}" if taken else op_name(pipeline.name, op),
        description=description,
        required_resource_keys={COORDINATOR_KEY, *resource_keys},
        out={"done": dg.Out(dg.Nothing)},
        tags=op_tags,
    )(clear_errors()(run))
    graph = dg.GraphDefinition(
        name=f"{name}__graph", node_defs=[made], dependencies={dg.NodeInvocation(made.name, alias=op): {}}
    )
    return job_with(
        graph,
        resources,
        name=name,
        description=description,
        executor_def=executor,
        # a retried run begins with its only step
        tags={PIPELINE_TAG: pipeline.name, JOB_TAG: op, RETRY_STRATEGY_TAG: "ALL_STEPS", **(tags or {})},
    )


def epoch_job(
    pipeline: CheckpointedPipeline,
    ops: Mapping[str, dg.OpDefinition],
    *,
    resources: Mapping[str, Any],
    description: str,
    executor: dg.ExecutorDefinition = dg.in_process_executor,
    publish_facts: str = "",
) -> dg.JobDefinition:
    """Return the job of a pipeline's epochs; each op by its name in the job, its inputs are the ops it comes after.

    ``publish_facts``: the file that gets the facts of the newest checkpoint when the last op has succeeded; also in the
    job that restores, which has the same ops.
    """
    name = epoch_job_name(pipeline.name)
    last = [*ops][-1]
    hooks = {last: {_publishing_facts(pipeline, publish_facts)}} if publish_facts else {}
    graph = dg.GraphDefinition(
        name=f"{name}__epoch",
        description=pipeline.description,
        node_defs=list(ops.values()),
        dependencies={
            dg.NodeInvocation(op.name, alias=alias, hook_defs=hooks.get(alias)): {
                before: dg.DependencyDefinition(before, BARRIER) for before in op.ins
            }
            for alias, op in ops.items()
        },
    )
    return job_with(
        graph,
        resources,
        name=name,
        description=f"{description} {pipeline.description}".strip(),
        executor_def=executor,
        tags={
            PIPELINE_TAG: pipeline.name,
            JOB_TAG: "epoch",
            CONCURRENCY_TAG: pipeline.name,
            # a retried run continues from the latest checkpoint; its first step has to restore it
            RETRY_STRATEGY_TAG: "ALL_STEPS",
        },
    )


def _publishing_facts(pipeline: CheckpointedPipeline, target: str) -> dg.HookDefinition:
    """Return the hook that writes the facts; what fails there is told, and the run stays what it is."""

    @dg.success_hook(
        name=f"{epoch_job_name(pipeline.name)}__publish_facts", required_resource_keys={COORDINATOR_KEY}
    )
    def publish_facts(context: dg.HookContext) -> None:
        from dagster_ckpt.operations.snapshots.catalog import find_snapshot
        from dagster_ckpt.operations.snapshots.export import write_facts

        deployment = coordinator_of(context, pipeline.name).deployment()
        try:
            found = find_snapshot(deployment, "latest", pipeline.name)
            written = write_facts(deployment, found, target)
        except CheckpointError as error:
            context.log.warning(f"publish_facts: {target} was not written: {error}")
        else:
            context.log.info(f"facts of {found.key} written to {target} ({size(written)})")

    return publish_facts


def after(names: Iterable[str]) -> dict[str, dg.In]:
    """Return the inputs of an op of an epoch's job that comes after other ops."""
    return {str(name): dg.In(dg.Nothing) for name in names}


def job_with(graph: dg.GraphDefinition, resources: Mapping[str, Any], **settings: Any) -> dg.JobDefinition:
    """Return a job of a graph, bound to the pipeline's own resources.

    Resources that stages and hooks name besides come from the definitions of the location: Dagster adds them to a job
    that lacks some. Given ours when it is made, a job would insist on having all of them at once.
    """
    return graph.to_job(**settings)._copy(
        resource_defs=quiet_resources(resources), _was_explicitly_provided_resources=False
    )


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn the library's errors into step failures that say one clear sentence and are not retried in vain."""
    try:
        yield
    except (InvalidRequest, NotFound, Fenced) as error:
        raise failure(str(error), error, allow_retries=False) from error
    except CheckpointError as error:
        raise failure(str(error), error) from error
