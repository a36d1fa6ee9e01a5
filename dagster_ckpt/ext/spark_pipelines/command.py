"""adopt-project: a Spark declarative pipeline becomes a checkpointed pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.cli.context import Invocation, StoreExpectation, command, label_option
from dagster_ckpt.cli.launch import savepoint_added
from dagster_ckpt.cli.spark_session import spark_options, started
from dagster_ckpt.core.model import LabelChanges, SnapshotLabel
from dagster_ckpt.core.paths import local_folder
from dagster_ckpt.core.units import counted, size
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.adoption import adopt_spark_project
from dagster_ckpt.ext.spark_pipelines.elements import Kind
from dagster_ckpt.ext.spark_pipelines.graph import (
    ProjectGraph,
    graph_file,
    load_spec,
    save_graph,
    settings_of,
)
from dagster_ckpt.ext.spark_pipelines.project import build_pipeline
from dagster_ckpt.ext.spark_pipelines.trace import trace_project
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.operations.snapshots.adopt import Adoption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@command("adopt-project", short_help="look at a Spark declarative pipeline, and adopt it")
@click.argument("spec")
@click.option(
    "--with-checkpoints",
    is_flag=True,
    help="Make what spark-pipelines run has left the first savepoint: its checkpoints and its tables.",
)
@click.option(
    "-p", "--pipeline", default="", metavar="NAME", help="Pipeline id; default: the project's name."
)
@click.option(
    "--table-dir", default="", metavar="DIR", help="Folder for the tables, as the coordinator's table_dir."
)
@click.option(
    "--spark-storage",
    default="",
    metavar="DIR",
    help="The project's storage; default: as its spec file says.",
)
@click.option(
    "--spark-warehouse",
    default="",
    metavar="DIR",
    help="Spark's warehouse; default: spark-warehouse beside the spec file.",
)
@label_option
@spark_options
def adopt_project(
    work: Invocation,
    *,
    spec: str,
    with_checkpoints: bool,
    pipeline: str,
    table_dir: str,
    spark_storage: str,
    spark_warehouse: str,
    label: LabelChanges,
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Look at a Spark declarative pipeline and keep its graph beside it, in .dagster_ckpt/graph.json.

    SPEC is its spark-pipeline.yml, or the folder of that. No flow is run and no file of the project is changed. What is
    not supported is refused by name. Definitions then load without Spark: pipeline_from_spark_project(SPEC).

    With --with-checkpoints the pipeline's first run goes on after what Spark has read, and its tables begin with the
    rows that Spark's have. Let spark-pipelines run end before.
    """
    configured = tuple(f"{key}={value}" for key, value in settings_of(load_spec(spec)).items())
    conf = (*configured, *conf)
    if with_checkpoints:
        with work.output.progress("adopting") as progress, started(master, conf) as spark:
            done = adopt_spark_project(
                spec,
                coordinator=_Places(work, table_dir),
                spark=spark,
                name=pipeline,
                checkpoints=spark_storage,
                warehouse=spark_warehouse,
                label=label.applied_to(SnapshotLabel()),
                progress=progress,
            )
        _tell(work, done)
    else:
        with work.output.progress("looking at the project"), started(master, conf) as spark:
            _look(work, spec, spark, name=pipeline)


@dataclass(frozen=True, slots=True)
class _Places:
    """Places of the pipeline, as options say."""

    work: Invocation
    table_dir: str

    @property
    def resolved_work_dir(self) -> Path:
        """Nothing is run."""
        return Path("/nonexistent")

    def resolved_table_dir(self, pipeline: CheckpointedPipeline) -> Path:
        """Return the folder of the tables."""
        if self.table_dir:
            return Path(local_folder(self.table_dir, setting="--table-dir")).absolute()
        return self.work.locations.tables(pipeline.name)

    def deployment(self, pipeline: CheckpointedPipeline | None = None) -> Deployment:
        """Return where checkpoints are."""
        return self.work.opened(StoreExpectation.MAY_BEGIN)


def _tell(work: Invocation, done: Adoption) -> None:
    savepoint_added(done.savepoint.pipeline, done.savepoint.key)
    work.output.result(done)
    work.output.say(f"{done.savepoint.key}: {done.savepoint.location.uri} ({size(done.savepoint.bytes)})")
    for one in done.stages:
        if one.query_id is not None:
            work.output.say(
                f"  {one.uid}: batch {one.batch_id} of query {one.query_id}, {counted(one.files, 'file')}"
            )
        elif one.directory:
            work.output.say(f"  {one.uid}: rows of {one.directory}")
        else:
            work.output.say(f"  {one.uid}: nothing so far")
    begins = done.kind.is_synchronous
    work.output.say(
        "the first run begins with it" if begins else f"restore it by its name: {done.savepoint.key}"
    )


def _look(work: Invocation, spec: str, spark: SparkSession, *, name: str) -> None:
    project = load_spec(spec)
    graph = trace_project(project, spark)
    save_graph(project, graph)
    work.output.result(graph)
    for line in _told(graph):
        work.output.say(line)
    try:
        build_pipeline(project, graph, name=name, sinks={})
    except InvalidRequest as error:
        work.output.say(f"not yet: {error}")
    work.output.say(f"kept in {graph_file(project)}")


def _told(graph: ProjectGraph) -> list[str]:
    lines = []
    for one in graph.datasets:
        if one.kind is Kind.MATERIALIZED_VIEW:
            comes = f"computed from {', '.join(one.reads)}" if one.reads else "computed"
        else:
            comes = "from " + ", ".join(
                f"{flow.name} (stage {flow.uid})" for flow in graph.flows_of(one.name)
            )
        lines.append(f"{one.kind} {one.uid}: {comes}")
    return [*lines, *(f"note: {note}" for note in graph.notes)]
