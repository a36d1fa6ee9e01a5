"""adopt-project: a Spark declarative pipeline becomes a checkpointed pipeline."""

from __future__ import annotations

import click

from dagster_ckpt.cli.context import Work, command
from dagster_ckpt.cli.spark_session import spark_options, started
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark_project.build import build_pipeline
from dagster_ckpt.spark_project.elements import Kind
from dagster_ckpt.spark_project.graph import ProjectGraph, graph_file, save_graph
from dagster_ckpt.spark_project.project import traced
from dagster_ckpt.spark_project.spec import load_spec


@command("adopt-project")
@click.argument("spec")
@spark_options
def adopt_project(work: Work, *, spec: str, master: str, conf: tuple[str, ...]) -> None:
    """Look at a Spark declarative pipeline and keep its graph beside it, in .dagster_ckpt/graph.json.

    SPEC is its spark-pipeline.yml, or the folder of that. No flow is run and no file of the project is changed. What is
    not supported is refused by name. Definitions then load without Spark: pipeline_from_spark_project(SPEC).
    """
    project = load_spec(spec)
    with work.output.progress("looking at the project"), started(master, conf) as spark:
        graph = traced(project, spark)
    save_graph(project, graph)
    work.output.result(graph)
    for line in _told(graph):
        work.output.say(line)
    try:
        build_pipeline(project, graph, name="", sinks={})
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
