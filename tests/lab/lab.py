"""One pipeline's world in a folder: its store, its checkpoints, its tables, and runs of it in this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    SparkSessionResource,
    build_pipeline_definitions,
    checkpoints_asset_key,
)
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions, StorageKind
from dagster_ckpt.core.coordinator.effects import CoordinatorEvent
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.paths import CHECKPOINTS_IN_STORE
from dagster_ckpt.core.paths import metadata as metadata_key
from dagster_ckpt.ports import AuditRow, CheckpointStorage
from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup
from dagster_ckpt.spark.streaming.restart import FixedDelay, RestartStrategy
from dagster_ckpt.spark.streaming.service import ServiceEnd, StreamingService
from tests import progress
from tests.lab.lines import Lines
from tests.lab.streams import SETTINGS, Running
from tests.records import find_record, stored_record

CHAINED_EPOCHS = os.environ.get("DAGSTER_CKPT_TEST_CHAINING") != "0"
"""``0``: every test without ``operator_chaining``; in CI streaming runs have a query for each stage, epochs chains."""
OF_STREAMS = {
    "incremental": True,
    "num_retained": 3,
    "tolerable_failed_checkpoints": 1000,
    "externalized_checkpoint_retention": "retain_on_cancellation",
    "operator_chaining": os.environ.get("DAGSTER_CKPT_TEST_CHAINING")
    == "1",  # tests of single stages cannot pass
    "instant_cuts": os.environ.get("DAGSTER_CKPT_TEST_INSTANT")
    == "1",  # tests that look at barriers cannot pass
}
"""Settings of streams, unless a test says otherwise."""
WITHOUT_CAPTURE = {
    "compute_logs": {
        "module": "dagster._core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
    }
}
"""Of a Dagster instance whose runs share a process: capturing redirects the output of the whole process."""
OneOrMore = CheckpointedPipeline | Sequence[CheckpointedPipeline]


@dataclass
class Lab:
    """Runs pipelines, as Dagster's jobs or as plain streams, and looks at what they left."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the coordinator."""
    spark: SparkSession | None = None
    """The session of plain streams."""
    given_instance: dg.DagsterInstance | None = None
    kind: type[CheckpointCoordinatorResource] = CheckpointCoordinatorResource
    spark_conf: dict[str, str] = field(default_factory=dict)
    wrap_storage: Callable[[CheckpointStorage], CheckpointStorage] = lambda storage: storage
    streams: list[Running] = field(default_factory=list)
    _ends: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        for running in self.streams:
            running.service.stopping.set()
            running.thread.join(progress.QUIET)
        self._ends.close()

    @cached_property
    def instance(self) -> dg.DagsterInstance:
        """The Dagster instance of its jobs; made when a test first needs one."""
        if self.given_instance is not None:
            return self.given_instance
        return self._ends.enter_context(dg.instance_for_test(overrides=WITHOUT_CAPTURE))

    @property
    def coordinator(self) -> CheckpointCoordinatorResource:
        given = {"operator_chaining": CHAINED_EPOCHS, **self.settings}
        return self.kind(
            base_dir=str(self.folder), table_dir=str(self.tables), snapshot_retry_delay=0.1, **given
        )

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    # --- jobs ---------------------------------------------------------------------------------------------------

    def definitions(self, pipelines: OneOrMore) -> dg.Definitions:
        spark = SparkSessionResource(master="local[2,3]", conf=self.spark_conf)
        return build_pipeline_definitions(pipelines, coordinator=self.coordinator, spark=spark)

    def run(
        self,
        pipelines: OneOrMore,
        job: str = "",
        ops: Mapping[str, Any] | None = None,
        *,
        partition: str | None = None,
        tags: Mapping[str, str] | None = None,
        **restore: Any,
    ) -> dg.ExecuteInProcessResult:
        """Run a job (the epoch job when none is named); ``ops``: config by op, ``restore`` that of its first op."""
        config = {op: {"config": given} for op, given in (ops or {}).items()}
        if restore:
            config["restore"] = {"config": restore}
        name = job or (pipelines if isinstance(pipelines, CheckpointedPipeline) else pipelines[0]).name
        return (
            self.definitions(pipelines)
            .resolve_job_def(name)
            .execute_in_process(
                instance=self.instance,
                run_config={"ops": config}
                if config or partition is None
                else None,  # None: the partition's own
                raise_on_error=False,
                partition_key=partition,
                tags=dict(tags or {}),
            )
        )

    def succeeds(
        self,
        pipelines: OneOrMore,
        job: str = "",
        ops: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> dg.ExecuteInProcessResult:
        """Run a job, which must succeed; ``options`` as for ``run``."""
        result = self.run(pipelines, job, ops, **options)
        assert result.success, failure_text(result)
        return result

    def fails(self, pipelines: OneOrMore, *said: str, **options: Any) -> str:
        """Run a job, which must fail and say all of this; return all that it said."""
        result = self.run(pipelines, **options)
        assert not result.success
        text = failure_text(result)
        for part in said:
            assert part in text, text
        return text

    # --- plain streams ------------------------------------------------------------------------------------------

    def config(self, pipeline: CheckpointedPipeline, **settings: Any) -> CheckpointConfig:
        places = {"savepoint_dir": str(self.folder / "savepoints")}
        return CheckpointConfig.of(**{**OF_STREAMS, **places, **settings, **pipeline.checkpointing})

    def service(
        self,
        pipeline: CheckpointedPipeline,
        *,
        restore: RestoreOptions | None = None,
        strategy: RestartStrategy | None = None,
        root: str = "",
        **settings: Any,
    ) -> tuple[StreamingService, list[CoordinatorEvent]]:
        self.folder.mkdir(parents=True, exist_ok=True)
        resource, config = self.coordinator, self.config(pipeline, **settings)
        in_store = config.checkpoint_storage is StorageKind.STORE
        uri = CHECKPOINTS_IN_STORE if in_store else resource.resolved_checkpoint_dir
        events: list[CoordinatorEvent] = []
        session = self.spark
        assert session is not None, "a stream needs the session"
        setup = PipelineSetup(
            pipeline=pipeline,
            config=config,
            store=resource.store(),
            storage=self.wrap_storage(resource.open_storage(uri)),
            open_storage=resource.open_storage,
            spark=lambda: session,
            work_dir=self.folder / "work",
            table_dir=self.tables,
            owner=f"run-{len(self.streams) + 1}",
            root=root,
            reporter=Lines(),
            restore=restore or RestoreOptions(),
            listeners=[events.append],
        )
        strategy = strategy or FixedDelay(attempts=3, delay=0.5)
        return StreamingService(setup=setup, strategy=strategy, settings=SETTINGS), events

    def start(self, pipeline: CheckpointedPipeline, **options: Any) -> Running:
        """Start a stream and wait until its stages run."""
        running = self.launch(pipeline, **options)
        running.wait_until_running()
        return running

    def launch(self, pipeline: CheckpointedPipeline, **options: Any) -> Running:
        service, events = self.service(pipeline, **options)
        ends: list[ServiceEnd | BaseException] = []

        def run() -> None:
            try:
                ends.append(service.run())
            except BaseException as error:
                ends.append(error)

        running = Running(service, threading.Thread(target=run, daemon=True), events, ends)
        self.streams.append(running)
        running.thread.start()
        return running

    # --- what is left -------------------------------------------------------------------------------------------

    def store(self) -> SqlCoordinatorStore:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.coordinator.store()

    def record(self, pipeline: CheckpointedPipeline) -> CoordinatorRecord:
        """The coordinator's record as stored."""
        with closing(self.store()) as store:
            return stored_record(store, pipeline.name)

    def has_run(self, pipeline: CheckpointedPipeline) -> bool:
        """Return whether any attempt has claimed the pipeline."""
        with closing(self.store()) as store:
            return find_record(store, pipeline.name) is not None

    def metadata(self, pipeline: CheckpointedPipeline, checkpoint: int) -> CheckpointMetadata:
        """What the storage holds of a retained checkpoint."""
        known = next(c for c in self.record(pipeline).completed if c.checkpoint_id == checkpoint)
        key = metadata_key(known.location.folder)
        options = {name: given for name, given in self.settings.items() if name == "storage_options"}
        resource = CheckpointCoordinatorResource(base_dir=str(self.folder), **options)
        return decode_metadata(resource.open_storage(known.location.base_uri).read(key), name=key)

    def partitions(self, pipeline: CheckpointedPipeline) -> list[str]:
        return sorted(self.instance.get_dynamic_partitions(f"{pipeline.name}/checkpoints"))

    def audited(self, pipeline: CheckpointedPipeline) -> list[AuditRow]:
        with closing(self.store()) as store:
            return store.audited(pipeline.name, limit=10)

    def materializations(self, pipeline: CheckpointedPipeline) -> list[dg.AssetMaterialization]:
        """Of its checkpoints, newest first."""
        key = checkpoints_asset_key(pipeline.name)
        records = self.instance.fetch_materializations(key, limit=1000).records
        return [r.asset_materialization for r in records if r.asset_materialization is not None]

    def observed(self, pipeline: CheckpointedPipeline) -> dg.AssetObservation:
        """The newest observation of its checkpoints."""
        [record] = self.instance.fetch_observations(checkpoints_asset_key(pipeline.name), limit=1).records
        found = record.asset_observation
        assert found is not None
        return found


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Parametrise indirectly with a dict of coordinator settings."""
    with Lab(tmp_path / "lab", getattr(request, "param", {}), spark) as made:
        yield made


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    """What a failed run said, causes included."""
    told = []
    for event in result.get_step_failure_events():
        error = event.step_failure_data.error
        while error is not None:
            told.append(error.to_string())
            error = error.cause
    return " | ".join(told)
