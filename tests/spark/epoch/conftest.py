"""A Dagster instance and a coordinator in a temporary folder, for pipelines run in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
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
from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.paths import metadata as metadata_key
from dagster_ckpt.ports import AuditRow
from tests.records import find_record, stored_record
from tests.spark.epoch.small_pipeline import Feed

CHAINING = os.environ.get("DAGSTER_CKPT_TEST_CHAINING") != "0"
"""``0``: every test without ``operator_chaining``; in CI streaming runs have a query for each stage, epochs chains."""
WITHOUT_CAPTURE = {
    "compute_logs": {
        "module": "dagster._core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
    }
}
"""Of a Dagster instance whose runs share a process: capturing redirects the output of the whole process."""


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """Two customers and an order of each."""
    made = Feed(tmp_path / "feed")
    made.customer("ann", "fr")
    made.customer("bob", "de")
    made.order(("ann", 5), ("bob", 7))
    return made


@pytest.fixture
def small_feed(tmp_path: Path) -> Feed:
    """One customer and her order."""
    made = Feed(tmp_path / "feed")
    made.customer("ann", "fr")
    made.order(("ann", 5))
    return made


@dataclass
class Lab:
    """Runs jobs of pipelines as Dagster does, in this process, and looks at what they left."""

    folder: Path
    instance: dg.DagsterInstance
    settings: dict[str, Any]

    kind: type[CheckpointCoordinatorResource] = CheckpointCoordinatorResource
    spark_conf: dict[str, str] = field(default_factory=dict)

    @property
    def coordinator(self) -> CheckpointCoordinatorResource:
        given = {"operator_chaining": CHAINING, **self.settings}
        return self.kind(
            base_dir=str(self.folder), table_dir=str(self.tables), snapshot_retry_delay=0.1, **given
        )

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    def run(
        self, pipeline: CheckpointedPipeline, job: str = "", ops: dict[str, Any] | None = None, **restore: Any
    ) -> dg.ExecuteInProcessResult:
        """Run a job (the epoch job when none is named); ``restore`` is the config of its first op."""
        definitions = build_pipeline_definitions(
            pipeline,
            coordinator=self.coordinator,
            spark=SparkSessionResource(master="local[2,3]", conf=self.spark_conf),
        )
        config = dict(ops or {})
        if restore:
            config["restore"] = {"config": restore}
        return definitions.resolve_job_def(job or pipeline.name).execute_in_process(
            instance=self.instance, run_config={"ops": config}, raise_on_error=False
        )

    def record(self, pipeline: CheckpointedPipeline) -> CoordinatorRecord:
        """The coordinator's record as stored."""
        with closing(self.coordinator.model_copy().store()) as store:
            return stored_record(store, pipeline.name)

    def has_run(self, pipeline: CheckpointedPipeline) -> bool:
        """Return whether any attempt has claimed the pipeline."""
        with closing(self.coordinator.model_copy().store()) as store:
            return find_record(store, pipeline.name) is not None

    def metadata(self, pipeline: CheckpointedPipeline, checkpoint: int) -> CheckpointMetadata:
        """What the storage holds of a retained checkpoint."""
        known = next(c for c in self.record(pipeline).completed if c.checkpoint_id == checkpoint)
        key = metadata_key(known.location.folder)
        return decode_metadata(open_storage(known.location.base_uri).read(key), name=key)

    def partitions(self, pipeline: CheckpointedPipeline) -> list[str]:
        return sorted(self.instance.get_dynamic_partitions(f"{pipeline.name}/checkpoints"))

    def audited(self, pipeline: CheckpointedPipeline) -> list[AuditRow]:
        with closing(self.coordinator.model_copy().store()) as store:
            return store.audited(pipeline.name, limit=10)

    def materializations(self, pipeline: CheckpointedPipeline) -> list[dg.AssetMaterialization]:
        """Newest first."""
        records = self.instance.fetch_materializations(checkpoints_asset_key(pipeline.name), limit=50).records
        return [r.asset_materialization for r in records if r.asset_materialization is not None]


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Parametrise indirectly with a dict of coordinator settings."""
    with dg.instance_for_test(overrides=WITHOUT_CAPTURE) as instance:
        yield Lab(tmp_path / "lab", instance, getattr(request, "param", {}))


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    """What a failed run said, causes included."""
    told = []
    for event in result.get_step_failure_events():
        error = event.step_failure_data.error
        while error is not None:
            told.append(error.to_string())
            error = error.cause
    return " | ".join(told)
