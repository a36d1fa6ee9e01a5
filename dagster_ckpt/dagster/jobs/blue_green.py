"""Care of a fork: it is compared with what readers find, readers are swapped to it and back, it replays.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.restore.choice import Restore
from dagster_ckpt.core.restore.facts import RestorePurpose
from dagster_ckpt.core.restore_point import At
from dagster_ckpt.core.units import moment
from dagster_ckpt.dagster.launchpad import launchpad_link, seldom
from dagster_ckpt.dagster.names import (
    CARE_OP,
    RESTORE_OP,
    ROOT_RUN_TAG,
    CareAction,
    RestoreMode,
    care_job_name,
    restore_job_name,
    who_of,
)
from dagster_ckpt.dagster.reports.asset import checkpoints_asset_key
from dagster_ckpt.dagster.reports.op_log import location_of
from dagster_ckpt.dagster.reports.tables import swapped_events
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, resources_of
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.runtime.record_store import Operator

if TYPE_CHECKING:
    from dagster_ckpt.dagster.runs.attempt import PipelineAttempt
    from dagster_ckpt.operations.readers.blue_green import Swapped
    from dagster_ckpt.operations.readers.diff_tables import ReadersComparison
    from dagster_ckpt.operations.readers.replay import ReplayStart
    from dagster_ckpt.runtime.attempt_setup import Admit

_BETWEEN = "; "
"""Between the lines of a comparison in its description."""
_SAME = "same"
_COUNTS = ("same", "added", "missing", "changed")


class ForkConfig(dg.Config):
    """Config of what is done with a fork."""

    only: dict[str, str] = seldom({})
    """compare, replay: columns and what they hold as text, such as ``day: 2026-11-17``: other rows are left out."""
    examples: int = seldom(5)
    """compare: rows of each kind that are told."""
    readers: str = seldom("to_fork")
    """swap: ``to_fork``, or ``back`` to what served before it."""
    approved: str = seldom("")
    """swap: approval that a comparison gave; without one, tables are compared now and swapped when they are equal."""
    allow_stale: bool = seldom(False)
    """swap: although tables have changed since the comparison."""
    allow_behind: bool = seldom(False)
    """swap: although the fork has read less of its topics."""
    since: str = seldom("")
    """replay: a moment (``2026-11-17``, ``2026-11-17 14:00+01:00``; UTC where it does not say), for the nearest
    snapshot before it; or a snapshot: ``savepoint-7``, a path or URI."""
    again: bool = seldom(False)
    """replay: set the side tables of an earlier replay aside first."""
    stages: dict[str, Any] = seldom({})
    """replay: config of single stages by uid."""


def compare(context: dg.OpExecutionContext, fork: CheckpointedPipeline, config: ForkConfig) -> None:
    """Compare a fork's tables with those that readers find; nothing is changed, and the link it gives swaps readers."""
    from dagster_ckpt.operations.readers.blue_green import compare_readers

    coordinator, named = coordinator_of(context, fork.name), _named(context, fork)
    found = compare_readers(fork, coordinator, named=named, only=config.only, examples=config.examples)
    tell_comparison(context, fork, found)


def swap(context: dg.OpExecutionContext, fork: CheckpointedPipeline, config: ForkConfig) -> None:
    """Make readers find the tables of a fork, all in one step; with ``readers: back`` those that served before it."""
    from dagster_ckpt.dagster.jobs.gate import refuse_backfill
    from dagster_ckpt.operations.readers.blue_green import name_of, swap_back, swap_readers

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


def _observed(done: "Swapped") -> Iterator[dg.AssetObservation]:
    """Yield that readers find other tables, for the checkpoints of all pipelines that it concerns."""
    from dagster_ckpt.operations.deployment import readers_sentence

    for name in dict.fromkeys((done.name, done.serving, done.before)):
        said = readers_sentence(name, name=done.name, serving=done.serving)
        yield dg.AssetObservation(
            checkpoints_asset_key(name), description=said, metadata={"readers": said, "before": done.before}
        )


def replay(context: dg.OpExecutionContext, fork: CheckpointedPipeline, config: ForkConfig) -> None:
    """Process again what came after a moment: from the nearest snapshot of the origin, to the end, and compare."""
    from dagster_ckpt.dagster.jobs.gate import refuse_backfill
    from dagster_ckpt.dagster.runs.turn import OpTurn, Skipped
    from dagster_ckpt.operations.readers.blue_green import compare_readers
    from dagster_ckpt.operations.readers.replay import plan_replay, set_side_tables_aside

    refuse_backfill(context)
    if not config.since:
        raise InvalidRequest(
            f"Run config of op {CARE_OP!r}: action: replay needs the moment, such as since: '2026-11-17 14:00+01:00'"
        )
    coordinator, named = coordinator_of(context, fork.name), _named(context, fork)
    root = context.run.tags.get(ROOT_RUN_TAG, context.run_id)
    start = plan_replay(fork, config.since, coordinator, named=named, again=config.again, root=root)
    attempt = OpTurn.chosen(context, fork).take(_replaying(context, fork, config, start, root))
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


def _replaying(
    context: dg.OpExecutionContext,
    fork: CheckpointedPipeline,
    config: ForkConfig,
    start: "ReplayStart",
    root: str,
) -> "Callable[[Admit], PipelineAttempt]":
    """Return the call that opens the attempt of a replay, in its turn."""
    from dagster_ckpt.running import stage_arguments

    said = f"replaying from {start.key} of {start.origin}, taken {moment(start.taken_at)}, at {start.uri}"
    context.log.info(said)
    arguments = stage_arguments(fork, config.stages, resources_of(context, fork.name))

    def begin(admit: "Admit") -> "PipelineAttempt":
        from dagster_ckpt.dagster.runs.attempt import PipelineAttempt
        from dagster_ckpt.operations.readers.replay import admits_replay
        from dagster_ckpt.runtime.attempt_setup import Ownership

        named = _named(context, fork)
        return PipelineAttempt.of(
            context,
            fork,
            admit=admits_replay(fork, admit, named=named, again=config.again, root=root),
            # All stages run in this call: another try takes no part in what this one left.
            ownership=Ownership.NEW_ATTEMPT,
            arguments=arguments.__getitem__,
            restore=RestoreOptions(restore_from=At(start.uri), fork=True),
            operator=Operator(who=who_of(context.run.tags), shown=(said,)),
        )

    return begin


def tell_comparison(
    context: dg.OpExecutionContext,
    fork: CheckpointedPipeline,
    found: "ReadersComparison",
    *,
    start: "ReplayStart | None" = None,
) -> None:
    """Log a comparison, and observe the fork's checkpoints with it and the link that swaps."""
    for line in found.lines:
        context.log.info(line)
    location, url = location_of(context.instance, context.run), coordinator_of(context, fork.name).ui_base_url
    links: dict[str, Any] = {}
    if found.serving != found.candidate:
        swap = launchpad_link(
            job_name=care_job_name(fork.name),
            location=location,
            op=CARE_OP,
            config={"action": CareAction.SWAP.value, "approved": found.approval},
            ui_base_url=url,
        )
        links["swap"] = dg.MetadataValue.md(
            f"[Swap readers of {found.name} to {fork.name} as compared →]({swap})"
        )
        links["approved"] = dg.MetadataValue.text(found.approval)
        context.log.info(
            f"to swap readers, launch {care_job_name(fork.name)} with action: {CareAction.SWAP} and approved: "
            f"{found.approval}"
        )
    if start is not None:
        restore = launchpad_link(
            job_name=restore_job_name(start.origin),
            location=location,
            op=RESTORE_OP,
            config={"restore_from": start.uri, "mode": RestoreMode.GATE.value},
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


def comparison_metadata(found: "ReadersComparison") -> dict[str, Any]:
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
    from dagster_ckpt.operations.readers.blue_green import name_of

    return coordinator_of(context, name_of(fork).name)


def _tries(context: dg.OpExecutionContext) -> list[str]:
    """Return the runs of which this one may be another try."""
    return [run for run in (context.run_id, context.run.parent_run_id, context.run.root_run_id) if run]
