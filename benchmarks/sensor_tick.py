"""What does a tick of each sensor cost with a long history? ``python -m benchmarks.sensor_tick [--checkpoints 10000]``

A tick as Dagster evaluates it, without the daemon's own gRPC call. Once for a young pipeline and once after 10,000
checkpoints: so many rows of history, so many materializations of the asset, and 1,000 runs. The bar is 20 ms.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dagster as dg

from benchmarks.common import scratch, show
from dagster_ckpt import (
    CheckpointCoordinatorResource,
    PipelineOptions,
    RestartPolicy,
    build_pipeline_definitions,
    build_savepoint_sensor,
    checkpoints_asset_key,
)
from dagster_ckpt.core.checkpoint.record import (
    OPERATIONS_REMEMBERED,
    OperationRecord,
    TriggerRecord,
    parse_record,
)
from dagster_ckpt.core.checkpoint.statistics import (
    CheckpointStatistics,
    CheckpointStatus,
    StageStatistics,
    SubtaskStatistics,
)
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.model import CheckpointKind, SnapshotMetrics
from dagster_ckpt.dagster.sensors.runs import after_checkpoints
from dagster_ckpt.ports import Committed
from dagster_ckpt.runtime.record_store import history_row
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from tests.spark.epoch.small_pipeline import shop

RUNS = 1000
SUBTASKS = 8


class Site:
    """A pipeline that runs, with so many checkpoints behind it."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.pipeline = shop(folder / "feed")
        self.resource = CheckpointCoordinatorResource(base_dir=str(folder / "state"))
        self.definitions = build_pipeline_definitions(
            self.pipeline, coordinator=self.resource, options=PipelineOptions(restart=RestartPolicy())
        )
        self.sensors = {
            name: self.definitions.resolve_sensor_def(name)
            for name in ("shop_safety_net", "shop_failure_alarm", "shop_restart")
        }
        self.sensors["shop_savepoint_sensor"] = build_savepoint_sensor(
            self.pipeline, after_checkpoints(10**9), coordinator=self.resource
        )

    def live(self, checkpoints: int) -> None:
        """Give the pipeline its past."""
        self._runs(RUNS if checkpoints > 10 else 1)
        self._checkpoints(checkpoints)
        for number in range(1, checkpoints + 1):
            self.instance.report_runless_asset_event(
                dg.AssetMaterialization(
                    checkpoints_asset_key(self.pipeline.name), partition=f"chk-{number:06d}"
                )
            )

    def _runs(self, count: int) -> None:
        job = self.definitions.resolve_job_def("shop")
        for number in range(count):
            last = number == count - 1
            status = dg.DagsterRunStatus.STARTED if last else dg.DagsterRunStatus.SUCCESS
            self.run = self.instance.create_run_for_job(
                job, status=status, tags={"dagster_ckpt/pipeline": "shop"}
            )

    def _checkpoints(self, count: int) -> None:
        attempt = CoordinatorHarness(
            stages=self.pipeline.graph.stages,
            edges=self.pipeline.graph.edges,
            pipeline="shop",
            owner=self.run.run_id,
            store=self.resource.store(),
            storage=self.resource.storage(),
            num_retained=3,
        )
        for _ in range(3):
            attempt.completed_checkpoint()
        store = self.resource.store()
        stored = store.load(self.pipeline.name)
        assert stored is not None
        operations = tuple(
            OperationRecord(request_id=f"run-{n:032d}", checkpoint_id=n + 1)
            for n in range(min(count, OPERATIONS_REMEMBERED))
        )
        body = parse_record(stored.body).model_copy(update={"operations": operations}).model_dump_json()
        version = stored.version
        for start in range(4, count + 1, 500):
            rows = [
                history_row(self.pipeline.name, CoordinatorEpoch(1), self._numbers(n))
                for n in range(start, min(start + 500, count + 1))
            ]
            assert isinstance(store.compare_and_set(self.pipeline.name, version, body, rows), Committed)
            version += 1

    def _numbers(self, number: int) -> CheckpointStatistics:
        details = tuple(SubtaskStatistics(index=i, acknowledged_at=1.0) for i in range(SUBTASKS))
        return CheckpointStatistics(
            checkpoint_id=CheckpointId(number),
            kind=CheckpointKind.CHECKPOINT,
            status=CheckpointStatus.SUBSUMED,
            trigger=TriggerRecord(periodic=True),
            triggered_at=float(number),
            ended_at=number + 0.5,
            stages=tuple(
                StageStatistics(
                    uid=uid,
                    subtasks=SUBTASKS,
                    acknowledged=SUBTASKS,
                    metrics=SnapshotMetrics(bytes_full=10**9, bytes_new=10**6),
                    details=details,
                )
                for uid in self.pipeline.stages
            ),
        )

    def tick(self, name: str, cursor: str | None) -> tuple[float, float, str | None]:
        """Evaluate a sensor; return milliseconds by the clock, milliseconds of CPU, and its cursor."""
        began, worked = time.perf_counter(), time.process_time()
        with dg.build_sensor_context(instance=self.instance, cursor=cursor) as context:
            data = self.sensors[name].evaluate_tick(context)
        took, cost = (time.perf_counter() - began) * 1e3, (time.process_time() - worked) * 1e3
        for request in data.dynamic_partitions_requests or ():
            if isinstance(request, dg.AddDynamicPartitionsRequest):
                self.instance.add_dynamic_partitions(
                    request.partitions_def_name, list(request.partition_keys)
                )
        return took, cost, data.cursor


@contextmanager
def site(folder: Path, checkpoints: int) -> Iterator[Site]:
    folder.mkdir()
    with dg.instance_for_test(temp_dir=str(folder)) as instance:
        made = Site(folder, instance)
        made.live(checkpoints)
        yield made


Times = dict[str, list[tuple[float, float]]]


def measure(sites: dict[int, Site], ticks: int) -> dict[int, Times]:
    """Wall and CPU milliseconds of every sensor's ticks, all interleaved; the first of each is warm-up."""
    cursors: dict[tuple[int, str], str | None] = {}
    times: dict[int, Times] = {n: {name: [] for name in site.sensors} for n, site in sites.items()}
    for _ in range(ticks + 1):
        for checkpoints, of in sites.items():
            for name in of.sensors:
                key = (checkpoints, name)
                took, cost, cursors[key] = of.tick(name, cursors.get(key))
                times[checkpoints][name].append((took, cost))
    return {n: {name: values[1:] for name, values in found.items()} for n, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=int, default=10_000)
    parser.add_argument("--ticks", type=int, default=50)
    arguments = parser.parse_args()
    with scratch() as folder, ExitStack() as stack:
        sites = {n: stack.enter_context(site(folder / str(n), n)) for n in (10, arguments.checkpoints)}
        results = measure(sites, arguments.ticks)
    rows = [
        {
            "sensor": name,
            "checkpoints": checkpoints,
            "median_ms": statistics.median(took for took, _ in values),
            "p90_ms": statistics.quantiles([took for took, _ in values], n=10)[-1],
            "cpu_ms": statistics.median(cost for _, cost in values),
        }
        for checkpoints, times in results.items()
        for name, values in times.items()
    ]
    show("sensor tick", sorted(rows, key=lambda row: (str(row["sensor"]), row["checkpoints"])))


if __name__ == "__main__":
    main()
