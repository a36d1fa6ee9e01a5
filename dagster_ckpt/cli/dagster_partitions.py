"""Keeps the checkpoints asset's partitions true where this machine has a Dagster instance (``DAGSTER_HOME``)."""

from __future__ import annotations

import os

import click

from dagster_ckpt.core.ids import PipelineId


def savepoint_added(pipeline: PipelineId, key: str) -> None:
    """Add the partition of a savepoint."""
    _change(pipeline, key, is_there=True)


def savepoint_removed(pipeline: PipelineId, key: str) -> None:
    """Remove the partition of a savepoint."""
    _change(pipeline, key, is_there=False)


def _change(pipeline: PipelineId, key: str, *, is_there: bool) -> None:
    if not os.environ.get("DAGSTER_HOME"):
        return
    import dagster as dg

    from dagster_ckpt.dagster.reports.asset import checkpoints_partitions

    name = checkpoints_partitions(pipeline).name or ""
    try:
        with dg.DagsterInstance.get() as instance:
            if is_there:
                instance.add_dynamic_partitions(name, [key])
            else:
                instance.delete_dynamic_partition(name, key)
    except Exception as error:  # the store is what counts; the list in the UI can be repaired by the next run
        click.echo(f"note: the partitions in Dagster were not changed: {error}", err=True)
