"""``spark-pipelines run``, played in a classic session: the same queries, files and folders, without Spark Connect.

``test_against_spark.py`` runs the real one and holds the two together.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from dagster_ckpt import adopt_spark_project
from dagster_ckpt.ext.spark_pipelines.elements import Kind
from dagster_ckpt.ext.spark_pipelines.evaluate import evaluate
from dagster_ckpt.ext.spark_pipelines.graph import DatasetNode, FlowNode, ProjectGraph, load_spec, settings_of
from dagster_ckpt.ext.spark_pipelines.rows import RunningProject
from dagster_ckpt.ext.spark_pipelines.schemas import schema_of_text
from dagster_ckpt.ext.spark_pipelines.trace import trace_project
from dagster_ckpt.operations.snapshots.adopt import Adoption
from dagster_ckpt.spark.session import session_settings
from tests.ext.spark_pipelines.conftest import Project

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SPARKS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
}
"""What a session of Spark's own has, and one of ours has not."""


def storage(project: Project) -> Path:
    return project.root / "storage"


def warehouse(project: Project) -> Path:
    return project.root / "spark-warehouse"


def runs_under_spark(project: Project, *, only: Callable[[FlowNode], bool] = lambda flow: True) -> None:
    """Run every flow of the project once, after those it reads, as Spark does."""
    spec = load_spec(project.root)
    spark = project.spark
    graph = trace_project(spec, spark)
    before = {name: spark.conf.get(name) for name in SPARKS}
    try:
        for name, value in SPARKS.items():
            spark.conf.set(name, value)
        with session_settings(spark, settings_of(spec)):
            known = RunningProject(spec, graph, spark).known()

            def read(name: str, streaming: bool, done: Mapping[Any, Any]) -> DataFrame:
                schema = schema_of_text(next(one.row_schema for one in graph.datasets if one.name == name))
                return spark.readStream.schema(schema).parquet(str(folder_of(project, name)))

            for flow in in_order(graph):
                if not only(flow):
                    continue
                key = (flow.written_target, flow.name)
                frame = evaluate(spec, spark, known, wanted=[key], read=read)[key].frame
                _run(project, graph, flow, frame)
    finally:
        for name, old in before.items():
            spark.conf.set(name, old)


@contextmanager
def once(project: Project) -> Iterator[Callable[[Project], None]]:
    """Yield what runs a project under Spark. A second time in one place, nothing runs: it is as Spark left it then."""
    root, kept = project.root, project.root.with_name(f"{project.root.name} as Spark left it")
    if kept.exists():
        yield lambda _: None
        shutil.rmtree(root)
        shutil.copytree(kept, root)
    else:
        yield runs_under_spark
        shutil.copytree(root, kept)


def adopted(project: Project, **more: Any) -> Adoption:
    """Adopt what Spark has left of the project."""
    return adopt_spark_project(
        project.root,
        coordinator=project.coordinator,
        spark=project.spark,
        checkpoints=str(storage(project)),
        **more,
    )


def folder_of(project: Project, name: str) -> Path:
    folder = warehouse(project) / name.rpartition(".")[2]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def checkpoint_of(project: Project, flow: FlowNode, version: int = 0) -> Path:
    return storage(project).joinpath("_checkpoints", *flow.target.split("."), flow.name, str(version))


def in_order(graph: ProjectGraph) -> list[FlowNode]:
    waiting, ordered = list(graph.flows), list[FlowNode]()
    while waiting:
        targets = {flow.target for flow in waiting}
        ready = [flow for flow in waiting if not targets & set(flow.streams)]
        ordered += ready
        waiting = [flow for flow in waiting if flow not in ready]
    return ordered


def _run(project: Project, graph: ProjectGraph, flow: FlowNode, frame: DataFrame) -> None:
    target = next(one for one in graph.datasets if one.name == flow.target)
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint_of(project, flow)))
    writer = writer.trigger(availableNow=True)
    if target.format == "delta":
        place = target.properties.get("path") or folder_of(project, flow.target)
        query = writer.foreachBatch(_delta_commits(Path(place), checkpoint_of(project, flow), target)).start()
    elif target.kind is Kind.SINK and target.format == "parquet":
        query = writer.format("parquet").options(**dict(target.properties)).start()
    elif target.kind is Kind.SINK:
        query = writer.format("noop").start()
    else:
        query = writer.format("parquet").start(str(folder_of(project, flow.target)))
    query.awaitTermination()


# --- Delta ----------------------------------------------------------------------------------------------------


def _delta_commits(place: Path, checkpoint: Path, table: DatasetNode) -> Callable[[DataFrame, int], None]:
    """Return what writes a batch as Delta's sink does: its rows, and its number by the query's id, in one commit."""

    def write(batch: DataFrame, number: int) -> None:
        query = json.loads((checkpoint / "metadata").read_text())["id"]
        write_deltalake(
            place,
            batch.toArrow(),
            mode="append",
            partition_by=list(table.partition_cols) or None,
            commit_properties=CommitProperties(app_transactions=[Transaction(query, number)]),
        )

    return write


def with_positions_in_delta(project: Project, flow: FlowNode) -> None:
    """Write the positions of a flow that reads one table as Delta's source has them, which was played by its files."""
    table = DeltaTable(folder_of(project, flow.streams[0]))
    at = {"sourceVersion": 1, "reservoirId": table.metadata().id, "reservoirVersion": table.version() + 1}
    for path in (checkpoint_of(project, flow) / "offsets").glob("[0-9]*"):
        head = path.read_text().splitlines()[:2]
        path.write_text("\n".join([*head, json.dumps({**at, "index": -1, "isStartingVersion": False})]))
