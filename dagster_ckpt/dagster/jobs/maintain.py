"""The job that maintains a pipeline's tables.

Annotations are evaluated: Dagster reads the config class from them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.units import size
from dagster_ckpt.dagster.console import failure
from dagster_ckpt.dagster.jobs.build import one_op_job
from dagster_ckpt.dagster.names import MAINTAIN_OP, maintain_job_name
from dagster_ckpt.dagster.resources.pipeline import coordinator_of
from dagster_ckpt.operations.care.maintain import TableUpkeep, maintain_tables, plan_maintenance


class MaintainConfig(dg.Config):
    """Config of the maintenance job."""

    dry_run: bool = False
    """Only say what would be done."""


def build_maintain_job(pipeline: CheckpointedPipeline, *, resources: Mapping[str, Any]) -> dg.JobDefinition:
    """Return the job that merges small files and removes old ones, beside a run that may be alive."""

    def maintain(context: dg.OpExecutionContext, config: MaintainConfig) -> None:
        resource = coordinator_of(context, pipeline.name)
        act = plan_maintenance if config.dry_run else maintain_tables
        found = act(pipeline, resource)
        for line in maintenance_lines(found, is_dry=config.dry_run):
            context.log.info(line)
        failed = [f"{table.sink}: {table.problem}" for table in found if table.problem]
        if failed:
            raise failure("; ".join(failed))

    return one_op_job(
        pipeline,
        maintain,
        resources=resources,
        name=maintain_job_name(pipeline.name),
        op=MAINTAIN_OP,
        description=(
            f"Merge small files of the tables of `{pipeline.name}` and remove old ones; what a retained checkpoint or "
            "savepoint goes back to stays. Safe beside a run that is alive."
        ),
    )


def maintenance_lines(found: tuple[TableUpkeep, ...], *, is_dry: bool) -> Iterator[str]:
    """Yield a line per table on its upkeep, done or planned, for people."""
    for table in found:
        for upkeep in table.done:
            would = "would be: " if is_dry else ""
            freed = f", {size(upkeep.bytes)}" if upkeep.bytes else ""
            note = f" ({upkeep.note})" if upkeep.note else ""
            yield f"{table.sink} ({table.place}): {would}{upkeep.what}: {upkeep.files}{freed}{note}"
        if table.problem:
            yield f"{table.sink} ({table.place}): {table.problem}"
