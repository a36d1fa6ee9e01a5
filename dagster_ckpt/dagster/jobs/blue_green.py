"""The jobs of a fork: compare it with what readers find, swap readers to it and back, replay with it.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.restore.decision import Restore
from dagster_ckpt.core.restore.facts import RestorePurpose
from dagster_ckpt.core.restore_point import At
from dagster_ckpt.core.units import moment
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.jobs.gate import refuse_backfill
from dagster_ckpt.dagster.launchpad import launchpad_link, seldom
from dagster_ckpt.dagster.names import (
    COMPARE_OP,
    CONCURRENCY_TAG,
    COORDINATOR_KEY,
    LOCATION_TAG,
    REPLAY_OP,
    RESTORE_OP,
    ROOT_RUN_TAG,
    SPARK_KEY,
    SWAP_OP,
    compare_job_name,
    gated_restore_job_name,
    own_resource_key,
    replay_job_name,
    swap_job_name,
    who_of,
)
from dagster_ckpt.dagster.reports.asset import checkpoints_asset_key
from dagster_ckpt.dagster.reports.tables import swapped_events
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, resources_of
from dagster_ckpt.dagster.runs.attempt import PipelineAttempt
from dagster_ckpt.dagster.runs.turn import OpTurn, Skipped
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.operations.readers.blue_green import (
    Swapped,
    compare_readers,
    name_of,
    swap_back,
    swap_readers,
)
from dagster_ckpt.operations.readers.comparison import ReadersComparison
from dagster_ckpt.operations.readers.replay import (
    ReplayStart,
    admits_replay,
    plan_replay,
    set_side_tables_aside,
)
from dagster_ckpt.operations.readers.served import readers_sentence
from dagster_ckpt.running import stage_arguments
from dagster_ckpt.runtime.attempt_setup import Admit, Ownership
from dagster_ckpt.runtime.audit import Operator

_BETWEEN = "; "
"""Between the lines of a comparison in its description."""
_SAME = "same"
_COUNTS = ("same", "added", "missing", "changed")


class CompareConfig(dg.Config):
    """Config of the job that compares."""

    only: dict[str, str] = seldom({})
    """Columns and what they hold as text, such as ``day: 2026-11-17``: other rows are left out."""
    examples: int = seldom(5)
    """Rows of each kind that are told."""


class SwapConfig(dg.Config):
    """Config of the job that swaps readers."""

    readers: str = "to_fork"
    """``to_fork``, or ``back`` to what served before it."""
    approved: str = ""
    """Approval that a comparison gave; without one, tables are compared now and swapped when they are the same."""
    allow_stale: bool = seldom(False)
    """Swap although tables have changed since the comparison."""
    allow_behind: bool = seldom(False)
    """Swap although the fork has read less of its topics."""


class ReplayConfig(dg.Config):
    """Config of the replay job."""

    since: str
    """A moment (``2026-11-17``, ``2026-11-17 14:00+01:00``; UTC where it does not say), for the nearest snapshot before
    it; or a snapshot: ``savepoint-7``, a path or URI."""
    only: dict[str, str] = seldom({})
    """Compare only rows whose columns hold this text, such as ``day: 2026-11-17``."""
    again: bool = False
    """Set the side tables of an earlier replay aside first."""
    stages: dict[str, Any] = seldom({})
    """Config of single stages by uid."""


def build_fork_jobs(
    fork: CheckpointedPipeline, *, resources: Mapping[str, Any], named: Any = None
) -> tuple[dg.JobDefinition, ...]:
    """Return the jobs of a fork; ``named``: coordinator resource of the pipeline readers name, where it is another."""
    root = name_of(fork)
    key = own_resource_key(root.name, COORDINATOR_KEY)
    known = {**resources, **({} if named is None else {key: named})}
    keys = () if named is None else (key,)
    return (_compare_job(fork, known, keys), _swap_job(fork, known, keys), _replay_job(fork, known, keys))


def _compare_job(
    fork: CheckpointedPipeline, resources: Mapping[str, Any], keys: tuple[str, ...]
) -> dg.JobDefinition:
    def compare(context: dg.OpExecutionContext, config: CompareConfig) -> None:
        coordinator, named = coordinator_of(context, fork.name), _named(context, fork)
        found = compare_readers(fork, coordinator, named=named, only=config.only, examples=config.examples)
        tell_comparison(context, fork, found)

    return one_op_job(
        fork,
        compare,
        resources=resources,
        name=compare_job_name(fork.name),
        op=COMPARE_OP,
        description=f"Compare the tables of `{fork.name}` with those that readers of `{name_of(fork).name}` find: "
        "rows added, missing, changed. Nothing is changed; the link it gives swaps readers.",
        resource_keys=keys,
    )


def _swap_job(
    fork: CheckpointedPipeline, resources: Mapping[str, Any], keys: tuple[str, ...]
) -> dg.JobDefinition:
    def swap(context: dg.OpExecutionContext, config: SwapConfig) -> None:
        refuse_backfill(context)
        coordinator, named = coordinator_of(context, fork.name), _named(context, fork)
        operator = Operator(who=who_of(context.run.tags))
        match config.readers.strip().lower():
            case "to_fork":
                done = swap_readers(
                    fork,
                    coordinator,
                    named=named,
                    approved=config.approved,
                    allow_stale=config.allow_stale,
                    allow_behind=config.allow_behind,
                    operator=operator,
                    run_id=context.run_id,
                    tries=_tries(context),
                )
            case "back":
                done = swap_back(fork, coordinator, named=named, operator=operator, run_id=context.run_id)
            case _:
                raise InvalidRequest(f"readers must be to_fork or back, got {config.readers!r}")
        context.log.info(
            f"readers of {done.name} find the tables of {done.serving}, and no longer of {done.before}"
        )
        for uid, place in done.places.items():
            context.log.info(f"{done.name}/{uid}: {place}")
        for event in swapped_events(name_of(fork), done, version=context.run_id):
            context.log_event(event)
        for observed in _observed(done):
            context.log_event(observed)

    return one_op_job(
        fork,
        swap,
        resources=resources,
        name=swap_job_name(fork.name),
        op=SWAP_OP,
        description=f"Make readers of `{name_of(fork).name}` find the tables of `{fork.name}`, all in one step; with "
        "`readers: back` those that served before it.",
        resource_keys=keys,
    )


def _observed(done: Swapped) -> Iterator[dg.AssetObservation]:
    """Yield that readers find other tables, for the checkpoints of all pipelines that it concerns."""
    for name in dict.fromkeys((done.name, done.serving, done.before)):
        said = readers_sentence(name, name=done.name, serving=done.serving)
        yield dg.AssetObservation(
            checkpoints_asset_key(name), description=said, metadata={"readers": said, "before": done.before}
        )


def _replay_job(
    fork: CheckpointedPipeline, resources: Mapping[str, Any], keys: tuple[str, ...]
) -> dg.JobDefinition:
    def replay(context: dg.OpExecutionContext, config: ReplayConfig) -> None:
        refuse_backfill(context)
        coordinator, named = coordinator_of(context, fork.name), _named(context, fork)
        arguments = stage_arguments(fork, config.stages, resources_of(context, fork.name))
        root = context.run.tags.get(ROOT_RUN_TAG, context.run_id)
        start = plan_replay(fork, config.since, coordinator, named=named, again=config.again, root=root)
        said = f"replaying from {start.key} of {start.origin}, taken {moment(start.taken_at)}, at {start.uri}"
        context.log.info(said)
        options = RestoreOptions(restore_from=At(start.uri), fork=True)
        operator = Operator(who=who_of(context.run.tags), shown=(said,))

        def begin(admit: Admit) -> PipelineAttempt:
            admits = admits_replay(fork, admit, named=named, again=config.again, root=root)
            return PipelineAttempt.of(
                context,
                fork,
                admit=admits,
                # All stages run in this call: another try takes no part in what this one left.
                ownership=Ownership.NEW_ATTEMPT,
                arguments=arguments.__getitem__,
                restore=options,
                operator=operator,
            )

        attempt = OpTurn.chosen(context, fork).take(begin)
        if isinstance(attempt, Skipped):
            return
        restored = attempt.coordinator.restored
        if isinstance(restored, Restore) and restored.purpose is RestorePurpose.FORK:
            for place in set_side_tables_aside(fork, coordinator, label=context.run_id[:8], named=named):
                context.log.info(f"side table of an earlier replay set aside: {place}")
        attempt.restore()
        attempt.run_all()
        attempt.complete(tell=lambda _: None)
        found = compare_readers(fork, coordinator, named=named, only=config.only)
        tell_comparison(context, fork, found, start=start)

    return one_op_job(
        fork,
        replay,
        resources=resources,
        name=replay_job_name(fork.name),
        op=REPLAY_OP,
        description=(
            f"Process again what came after a moment: begin `{fork.name}` with the nearest checkpoint or savepoint of "
            f"`{(fork.forked_from or fork).name}` before it, run to the end of what has arrived, and compare."
        ),
        resource_keys=(SPARK_KEY, *fork.resource_keys, *keys),
        tags={CONCURRENCY_TAG: fork.name},
    )


def tell_comparison(
    context: dg.OpExecutionContext,
    fork: CheckpointedPipeline,
    found: ReadersComparison,
    *,
    start: ReplayStart | None = None,
) -> None:
    """Log a comparison, and observe the fork's checkpoints with it and the link that swaps."""
    for line in found.lines:
        context.log.info(line)
    location, url = context.run.tags.get(LOCATION_TAG, ""), coordinator_of(context, fork.name).ui_base_url
    links: dict[str, Any] = {}
    if found.serving != found.candidate:
        swap = launchpad_link(
            job_name=swap_job_name(fork.name),
            location=location,
            op=SWAP_OP,
            config={"approved": found.approval},
            ui_base_url=url,
        )
        links["swap"] = dg.MetadataValue.md(
            f"[Swap readers of {found.name} to {fork.name} as compared →]({swap})"
        )
        links["approved"] = dg.MetadataValue.text(found.approval)
        context.log.info(
            f"to swap readers, launch {swap_job_name(fork.name)} with approved: {found.approval}"
        )
    if start is not None:
        restore = launchpad_link(
            job_name=gated_restore_job_name(start.origin),
            location=location,
            op=RESTORE_OP,
            config={"restore_from": start.uri},
            ui_base_url=url,
        )
        links["restore"] = dg.MetadataValue.md(
            f"[Restore {start.origin} itself from {start.key} →]({restore})"
        )
    key, metadata = checkpoints_asset_key(fork.name), {**links, **comparison_metadata(found)}
    context.log_event(dg.AssetObservation(key, description=_BETWEEN.join(found.lines), metadata=metadata))


def told_comparison(events: Iterable[dg.DagsterEvent]) -> tuple[tuple[str, ...], str]:
    """Return the comparison that a run's events tell, line by line, and the approval it gave; empty: none was made."""
    for event in events:
        if event.is_asset_observation:
            told = event.asset_observation_data.asset_observation
            if _SAME in told.metadata:
                approved = told.metadata.get("approved")
                return tuple((told.description or "").split(_BETWEEN)), str(
                    approved.value if approved else ""
                )
    return (), ""


def comparison_metadata(found: ReadersComparison) -> dict[str, Any]:
    """Return a comparison as tables."""
    tables, examples = [], []
    for table in found.tables:
        diff = table.diff
        counts = {} if diff is None else {name: getattr(diff, name) for name in _COUNTS}
        row = {"table": table.sink, **dict.fromkeys(_COUNTS, "-"), **counts}
        tables.append(dg.TableRecord({**row, "problem": table.problem}))
        for one in () if diff is None else diff.examples:
            shown = {"before": one.before, "after": one.after}
            examples.append(
                dg.TableRecord(
                    {"table": table.sink, "row": one.kind, **{k: _cells(v) for k, v in shown.items()}}
                )
            )
    metadata: dict[str, Any] = {
        _SAME: dg.MetadataValue.bool(found.is_same),
        "tables": dg.MetadataValue.table(tables),
    }
    if examples:
        metadata["examples"] = dg.MetadataValue.table(examples)
    if found.behind:
        metadata["behind"] = dg.MetadataValue.text("; ".join(found.behind))
    return metadata


def _cells(row: Mapping[str, str] | None) -> str:
    return "-" if row is None else ", ".join(f"{name}={value}" for name, value in row.items())


def _named(context: dg.OpExecutionContext, fork: CheckpointedPipeline) -> Any:
    return coordinator_of(context, name_of(fork).name)


def _tries(context: dg.OpExecutionContext) -> list[str]:
    """Return the runs of which this one may be another try."""
    return [run for run in (context.run_id, context.run.parent_run_id, context.run.root_run_id) if run]
