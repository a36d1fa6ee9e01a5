"""``adopt_spark_project``: what ``spark-pipelines run`` has left becomes the first savepoint. Public name.

Nothing of Spark's is changed: its checkpoints and tables are read. The savepoint in the coordinator's store is the
only commit; before it, rows wait in the new tables' folders where nobody sees them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.authoring.targets import SinkTarget
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import SnapshotLabel, TableSnapshot
from dagster_ckpt.errors import InvalidRequest, OutcomeUnknown
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.ext.spark_pipelines.elements import Kind
from dagster_ckpt.ext.spark_pipelines.graph import (
    DatasetNode,
    ProjectGraph,
    ProjectSpec,
    load_spec,
    save_graph,
    settings_of,
)
from dagster_ckpt.ext.spark_pipelines.left.delta_left import ParquetLeft
from dagster_ckpt.ext.spark_pipelines.left.flow_checkpoints import (
    FlowCheckpoint,
    checkpoint_root,
    find_checkpoint,
    flows_with_batches,
    rebuilt_query,
)
from dagster_ckpt.ext.spark_pipelines.left.source_order import source_orders
from dagster_ckpt.ext.spark_pipelines.left.table_rows import (
    ADOPTED_BATCH,
    TableLeft,
    TableStaging,
    find_table,
    refuse_same_place,
    refuse_unadoptable,
    sink_folder,
)
from dagster_ckpt.ext.spark_pipelines.project import build_pipeline
from dagster_ckpt.ext.spark_pipelines.rows import RunningProject
from dagster_ckpt.ext.spark_pipelines.trace import trace_project
from dagster_ckpt.operations.deployment import ProgressCallback, silent
from dagster_ckpt.operations.readers.open_sink import Coordinator, open_sink
from dagster_ckpt.operations.snapshots.adopt import Adoption, StageToAdopt, adopt_stages, kind_of_beginning
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.session import session_settings
from dagster_ckpt.spark.sink.committables import write_committable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def adopt_spark_project(
    spec: str | Path,
    *,
    coordinator: Coordinator,
    spark: SparkSession,
    name: str = "",
    sinks: Mapping[str, SinkTarget] | None = None,
    table_dir: str = "",
    checkpoints: str = "",
    warehouse: str = "",
    label: SnapshotLabel = SnapshotLabel(),
    progress: ProgressCallback = silent,
) -> Adoption:
    """Make the checkpoints and tables that ``spark-pipelines run`` has left the first savepoint of the pipeline.

    The project's last run under Spark came to its end. What cannot be taken over exactly is refused.

    Args:
        spec: as of ``pipeline_from_spark_project``, as are ``name``, ``sinks`` and ``table_dir``.
        coordinator: where the pipeline's checkpoints and tables are to be.
        spark: a classic session; one that has Spark's catalog finds tables that are not in the default place.
        checkpoints: the project's storage, where it is a copy of it; default: as the spec file says.
        warehouse: Spark's warehouse folder; default: ``spark-warehouse`` in the project's folder.
        label: name, note and labels of the savepoint.
        progress: told how far the copying is.

    Raises:
        InvalidRequest: something cannot be adopted, which it names; nothing was changed.
        NotFound: there is no project, or it has no checkpoints.
        Declined: a checkpoint is damaged.
        Corrupt: a file of a table is missing or damaged.
    """
    project = load_spec(spec)
    root = checkpoint_root(checkpoints or project.storage, below=Path.cwd() if checkpoints else project.root)
    graph = trace_project(project, spark)
    pipeline = build_pipeline(project, graph, name=name, sinks=sinks or {}, table_dir=table_dir)
    with session_settings(spark, settings_of(project)), tempfile.TemporaryDirectory() as scratch:
        work = _Work(
            spec=project,
            graph=graph,
            pipeline=pipeline,
            spark=spark,
            coordinator=coordinator,
            root=root,
            warehouse=warehouse,
            scratch=Path(scratch),
        )
        return work.adopt(label, progress)


@dataclass(kw_only=True)
class _Work:
    """One adoption while it is prepared; ``staged``: what to remove if it fails."""

    spec: ProjectSpec
    graph: ProjectGraph
    pipeline: CheckpointedPipeline
    spark: SparkSession
    coordinator: Coordinator
    root: Path
    warehouse: str
    scratch: Path
    staged: list[Path] = field(default_factory=list)

    def adopt(self, label: SnapshotLabel, progress: ProgressCallback) -> Adoption:
        """Stage the rows, write the savepoint."""
        deployment = self.coordinator.deployment(self.pipeline)
        with self.removed_if_it_fails():
            stages = self.stages()
            save_graph(self.spec, self.graph)
            return adopt_stages(
                deployment,
                pipeline=self.pipeline.name,
                stages=stages,
                kind=kind_of_beginning(deployment, self.pipeline.name),
                now=time.time(),
                label=label,
                progress=progress,
            )

    @contextmanager
    def removed_if_it_fails(self) -> Iterator[None]:
        """Remove the rows that were staged, unless a savepoint may name them.

        It may where nobody knows whether it was entered, and where the process is interrupted: rows that no
        savepoint names are seen by nobody.
        """
        try:
            yield
        except OutcomeUnknown:
            raise
        except Exception:
            for folder in self.staged:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def stages(self) -> list[StageToAdopt]:
        """Return all stages as their working directories would be. Raises InvalidRequest, NotFound, Declined."""
        stored = self.graph.stored
        for table in stored:
            written_by = flows_with_batches(self.root, table.name)
            flows_now = self.graph.flows_of(table.name)
            refuse_unadoptable(table, flows_now, self._target(table), written_by)
            if table.kind is Kind.SINK and written_by and table.format.lower() != "kafka":
                self._refuse_same_place(table, sink_folder(table))
        flows = [find_checkpoint(self.root, flow) for flow in self.graph.flows]
        tables = {one.name: self._found(one, flows) for one in stored}
        queries = self._queries(flows, tables)
        return [*queries, *(self._sink(one, tables[one.name]) for one in stored)]

    def _target(self, table: DatasetNode) -> SinkTarget | None:
        return self.pipeline.stages[StageUid(table.uid)].to

    def _found(self, table: DatasetNode, flows: list[FlowCheckpoint]) -> TableLeft | None:
        mine = [flow for flow in flows if flow.flow.target == table.name]
        found = find_table(self.spec, self.spark, table, mine, self.warehouse)
        if found is None or found.is_empty:
            return found
        if not isinstance(self._target(table), DeltaTable):
            raise InvalidRequest(
                f"{table.kind} {table.name!r} ({table.where}) has rows in {found.folder}, which can begin a Delta "
                "table only: begin without the checkpoints"
            )
        self._refuse_same_place(table, found.folder)
        return found

    def _refuse_same_place(self, table: DatasetNode, folder: Path) -> None:
        refuse_same_place(
            table, folder, open_sink(self.pipeline, StageUid(table.uid), self.coordinator).place
        )

    def _queries(
        self, flows: list[FlowCheckpoint], tables: Mapping[str, TableLeft | None]
    ) -> list[StageToAdopt]:
        orders = source_orders(RunningProject(self.spec, self.graph, self.spark), self.graph)
        read = {
            name: found or ParquetLeft(table=self.graph.dataset(name), folder=Path(), files=frozenset())
            for name, found in tables.items()
        }
        found = []
        for flow in flows:
            uid = StageUid(flow.flow.uid)
            directory = StageDirectory(self.scratch / uid)
            directory.root.mkdir()
            rebuilt_query(flow, orders[flow.flow.target, flow.flow.name], read, directory.query)
            found.append(
                StageToAdopt(
                    uid=uid,
                    root=directory.root,
                    origin=str(flow.directory),
                    input_positions=dict.fromkeys(self.pipeline.upstream[uid], 0),
                )
            )
        return found

    def _sink(self, table: DatasetNode, left: TableLeft | None) -> StageToAdopt:
        uid = StageUid(table.uid)
        directory = StageDirectory(self.scratch / uid)
        directory.root.mkdir()
        snapshot = None
        sink = open_sink(self.pipeline, uid, self.coordinator)
        if isinstance(sink, DeltaSink):
            prepared: tuple[int, ...] = ()
            if left is not None and not left.is_empty:
                staging = TableStaging(sink=sink, written=self.staged.append)
                write_committable(directory.root, staging.rows_of(left, self.spark))
                prepared = (ADOPTED_BATCH,)
            snapshot = TableSnapshot(uri=sink.place, prepared=prepared, sink=sink.kind)
        return StageToAdopt(
            uid=uid,
            root=directory.root,
            origin="" if left is None else str(left.folder),
            input_positions=dict.fromkeys(self.pipeline.upstream[uid], 0),
            table=snapshot,
        )
