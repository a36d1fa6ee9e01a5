"""``pipeline_from_spark_project``: a Spark declarative pipeline as a checkpointed pipeline. Public name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.authoring.targets import SinkTarget
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.build import build_pipeline
from dagster_ckpt.ext.spark_pipelines.graph import ProjectGraph, load_graph, save_graph, why_stale
from dagster_ckpt.ext.spark_pipelines.spec import ProjectSpec, load_spec, refuse_connect
from dagster_ckpt.ext.spark_pipelines.trace import trace_project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pipeline_from_spark_project(
    spec: str | Path,
    *,
    name: str = "",
    spark: SparkSession | None = None,
    sinks: Mapping[str, SinkTarget] | None = None,
    checkpointing: Mapping[str, Any] | None = None,
    table_dir: str = "",
) -> CheckpointedPipeline:
    """Return a Spark declarative pipeline as a checkpointed pipeline; the project's files stay as they are.

    Its graph is read from the file that ``dagster-ckpt adopt-project`` keeps beside the project, so no JVM is needed.
    Where that file is missing or stale, it is made with ``spark``, or with the session that runs in this process.

    Args:
        spec: the spec file (``spark-pipeline.yml``), or its folder.
        name: pipeline id; default: the name in the spec file.
        spark: a classic session, for a project whose graph is not known yet.
        sinks: by uid of a table or sink, where its rows end; default: as format, catalog and options say.
        checkpointing: settings of ``CheckpointConfig`` that override the coordinator's.
        table_dir: overrides the coordinator's ``table_dir``.

    Raises:
        InvalidRequest: something in the project is not supported, which it names; or its graph is not known.
        NotFound: there is no such project.
    """
    project = load_spec(spec)
    settings = dict(checkpointing or {})
    CheckpointConfig.of(**settings)
    graph = load_graph(project)
    why = "has not been made" if graph is None else why_stale(project, graph)
    is_new = graph is None or bool(why)
    if is_new:
        session = spark or _active_session()
        if session is None:
            reason = why if graph is None else f"is stale: {why}"
            raise InvalidRequest(
                f"the graph of project {project.path} {reason}. Run dagster-ckpt adopt-project {project.path}"
            )
        graph = traced(project, session)
    assert graph is not None
    pipeline = build_pipeline(
        project, graph, name=name, sinks=sinks or {}, checkpointing=settings, table_dir=table_dir
    )
    if is_new:
        save_graph(project, graph)
    return pipeline


def traced(project: ProjectSpec, spark: SparkSession) -> ProjectGraph:
    """Return the graph of a project, made now. Raises InvalidRequest for what is not supported."""
    refuse_connect(spark)
    return trace_project(project, spark)


def _active_session() -> SparkSession | None:
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
