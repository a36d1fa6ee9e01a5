"""adopt: Spark's own checkpoint directories become a savepoint."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dagster_ckpt.cli.context import Invocation, command, key_values, label_option
from dagster_ckpt.cli.dagster_partitions import savepoint_added
from dagster_ckpt.cli.locations import StoreExpectation
from dagster_ckpt.core.ids import BatchId, StageUid, pipeline_id, stage_uid
from dagster_ckpt.core.model import LabelChanges, SnapshotLabel
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.operations.snapshots.adopt import adopt_checkpoint


@command("adopt")
@click.argument("pipeline")
@click.argument("stages", nargs=-1, required=True, metavar="STAGE=DIR...")
@click.option(
    "--batch", type=click.IntRange(min=0), default=None, help="Committed batch; default: the newest."
)
@click.option(
    "--target", default="", metavar="URI", help="Folder to write below; default: the savepoint folder."
)
@label_option
def adopt(
    work: Invocation,
    *,
    pipeline: str,
    stages: tuple[str, ...],
    batch: int | None,
    target: str,
    label: LabelChanges,
) -> None:
    """Make Spark's own checkpoint directories a savepoint of PIPELINE.

    DIR is the checkpointLocation of a query, as a local path; it is only read. The query is best stopped first.
    """
    directories = {
        StageUid(stage_uid(uid)): Path(folder) for uid, folder in key_values("STAGE=DIR", stages).items()
    }
    with work.output.progress("adopting") as progress:
        done = adopt_checkpoint(
            work.opened(StoreExpectation.MAY_BEGIN),
            pipeline=pipeline_id(pipeline),
            directories=directories,
            now=time.time(),
            target=target,
            batch_id=None if batch is None else BatchId(batch),
            label=label.applied_to(SnapshotLabel()),
            progress=progress,
        )
    savepoint_added(done.savepoint.pipeline, done.savepoint.key)
    work.output.result(done)
    work.output.say(f"{done.savepoint.key}: {done.savepoint.location.uri} ({size(done.savepoint.bytes)})")
    for one in done.stages:
        work.output.say(
            f"  {one.uid}: batch {one.batch_id} of query {one.query_id}, {counted(one.files, 'file')}"
        )
        if one.uncommitted_batch is not None:
            work.output.say(
                f"  {one.uid}: batch {one.uncommitted_batch} was begun and not committed; it will run again"
            )
