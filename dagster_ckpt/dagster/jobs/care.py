"""The care job: tables maintained and snapshots verified, beside a run; of a fork, what makes it serve readers.

Annotations are evaluated: Dagster reads config classes from them.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, assert_never

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.dagster.checks.chosen_snapshot import tell_check
from dagster_ckpt.dagster.checks.snapshot_checks import verify_chosen
from dagster_ckpt.dagster.console import failure
from dagster_ckpt.dagster.jobs.blue_green import ForkConfig, compare, replay, swap
from dagster_ckpt.dagster.jobs.build import one_op_job, refuse_of_others, word_in
from dagster_ckpt.dagster.launchpad import seldom
from dagster_ckpt.dagster.names import (
    CARE_OP,
    COORDINATOR_KEY,
    SPARK_KEY,
    CareAction,
    care_job_name,
    own_resource_key,
)
from dagster_ckpt.dagster.reports.asset import VERIFIED_CHECK
from dagster_ckpt.dagster.resources.pipeline import coordinator_of

if TYPE_CHECKING:
    from dagster_ckpt.operations.care.maintain import TableUpkeep


class CareConfig(dg.Config):
    """Config of the care job: what it does, and the settings of that."""

    action: str = "maintain"
    """``maintain``: merge small files of tables, remove old ones; ``verify``: read every file of a snapshot back;
    ``requeue``: put quarantined rows through today's conditions of their stage again."""
    dry_run: bool = False
    """maintain, requeue: only say what would be done."""
    where: str = seldom("")
    """requeue: which rows, such as ``condition = 'amount > 0' AND tries < 3``; empty: all."""
    checkpoint: str = seldom("latest")
    """verify: ``latest``, ``newest savepoint`` (where there is none the latest), a key such as ``chk-31`` or
    ``savepoint-7``, or the path or URI of one."""


class ForkCareConfig(CareConfig, ForkConfig):
    """Config of a fork's care job."""

    action: str = "maintain"
    """``maintain``, ``verify``, ``requeue``; ``compare``: its tables with those that readers find; ``swap``: make
    readers find them, or those before; ``replay``: begin with a snapshot of its origin, run to the end, and compare."""


_SETTINGS: dict[CareAction, tuple[str, ...]] = {
    CareAction.MAINTAIN: ("dry_run",),
    CareAction.VERIFY: ("checkpoint",),
    CareAction.REQUEUE: ("dry_run", "where"),
    CareAction.COMPARE: ("only", "examples"),
    CareAction.SWAP: ("readers", "approved", "allow_stale", "allow_behind"),
    CareAction.REPLAY: ("since", "only", "again", "stages"),
}
_OF_ALL = (CareAction.MAINTAIN, CareAction.VERIFY, CareAction.REQUEUE)


def build_care_job(
    pipeline: CheckpointedPipeline,
    *,
    resources: Mapping[str, Any],
    named: Any = None,
    refused: Collection[str] = (),
) -> dg.JobDefinition:
    """Return the job; ``named``: of a fork, the coordinator of the pipeline readers name, where it is another.

    ``refused``: actions that are not done here.
    """
    is_fork = bool(pipeline.origins)
    allowed = [one for one in (CareAction if is_fork else _OF_ALL) if one not in refused]

    def act(context: dg.OpExecutionContext, config: CareConfig) -> None:
        action = word_in(CareAction, config.action, setting="action", op=CARE_OP, among=allowed)
        refuse_of_others(config, action, _SETTINGS, op=CARE_OP)
        match action:
            case CareAction.MAINTAIN:
                _maintain(context, pipeline, is_dry=config.dry_run)
            case CareAction.VERIFY:
                result = verify_chosen(context, pipeline.name, config.checkpoint)
                tell_check(context, pipeline.name, VERIFIED_CHECK, result)
            case CareAction.REQUEUE:
                _requeue(context, pipeline, config.where, is_dry=config.dry_run)
            case CareAction.COMPARE | CareAction.SWAP | CareAction.REPLAY:
                assert isinstance(config, ForkConfig), "only a fork's job allows them"
                _OF_FORKS[action](context, pipeline, config)
            case _:
                assert_never(action)

    def care_of_fork(context: dg.OpExecutionContext, config: ForkCareConfig) -> None:
        act(context, config)

    known, keys = dict(resources), set[str]()
    if named is not None:
        keys = {own_resource_key(pipeline.origins[-1].name, COORDINATOR_KEY)}
        known.update(dict.fromkeys(keys, named))
    return one_op_job(
        pipeline,
        care_of_fork if is_fork else act,
        resources=known,
        name=care_job_name(pipeline.name),
        op=CARE_OP,
        description=_description(pipeline),
        resource_keys={SPARK_KEY, *pipeline.resource_keys, *keys} if is_fork else (),
    )


def _description(pipeline: CheckpointedPipeline) -> str:
    does = (
        f"Look after `{pipeline.name}`, beside a run that may be alive: merge small files of its tables and remove old "
        "ones (`maintain`), read every file of a snapshot back (`verify`), put quarantined rows through their "
        "stage again (`requeue`)"
    )
    if not pipeline.origins:
        return f"{does}."
    return (
        f"{does}; compare its tables with those that readers of `{pipeline.origins[-1].name}` find (`compare`), have "
        "readers find them, all in one step, and back (`swap`), process again what came after a moment (`replay`)."
    )


_OF_FORKS = {CareAction.COMPARE: compare, CareAction.SWAP: swap, CareAction.REPLAY: replay}


def _maintain(context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, *, is_dry: bool) -> None:
    """Merge small files and remove old ones; what a retained checkpoint or savepoint goes back to stays."""
    from dagster_ckpt.operations.care.maintain import maintain_tables, plan_maintenance

    act = plan_maintenance if is_dry else maintain_tables
    found = act(pipeline, coordinator_of(context, pipeline.name))
    for line in maintenance_lines(found, is_dry=is_dry):
        context.log.info(line)
    failed = [f"{table.sink}: {table.problem}" for table in found if table.problem]
    if failed:
        raise failure("; ".join(failed))


def _requeue(
    context: dg.OpExecutionContext, pipeline: CheckpointedPipeline, where: str, *, is_dry: bool
) -> None:
    """Order quarantined rows through their stages again, or only say which."""
    from dagster_ckpt.operations.care.maintain import order_requeue, preview_requeue

    act = preview_requeue if is_dry else order_requeue
    for found in act(pipeline, coordinator_of(context, pipeline.name), where):
        named = ", ".join(f"{name!r} {number:,}" for name, number in found.conditions.items())
        left = "".join(f"; {number:,} stay: {why}" for why, number in found.others.items())
        told = f"{found.stage}: {counted(found.rows, 'row')} {'would be' if is_dry else 'are to be'} requeued"
        context.log.info(f"{told}{named and f': {named}'}{left}")


def maintenance_lines(found: "tuple[TableUpkeep, ...]", *, is_dry: bool) -> Iterator[str]:
    """Yield a line per table on its upkeep, done or planned, for people."""
    for table in found:
        for upkeep in table.done:
            would = "would be: " if is_dry else ""
            freed = f", {size(upkeep.bytes)}" if upkeep.bytes else ""
            note = f" ({upkeep.note})" if upkeep.note else ""
            yield f"{table.sink} ({table.place}): {would}{upkeep.what}: {upkeep.files}{freed}{note}"
        if table.problem:
            yield f"{table.sink} ({table.place}): {table.problem}"
