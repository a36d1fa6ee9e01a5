"""A Dagster instance whose runs launch the program of ``program.py`` in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    Launch,
    PipelineOptions,
    SparkSessionResource,
    build_pipeline_definitions,
    checkpoints_asset_key,
)
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.dagster.names import LOCATION_TAG
from tests import progress
from tests.dagster.launched.program import SESSION, coordinator
from tests.lab.lab import WITHOUT_CAPTURE
from tests.needs import needs
from tests.records import find_record
from tests.root import ROOT
from tests.spark.epoch.small_pipeline import Feed, feed, shop
from tests.warm_engine import engine_in

__all__ = ["feed"]


@dataclass
class Site:
    """Runs a pipeline's jobs, whose stages run in a launched program unless ``launch`` is None."""

    folder: Path
    feed: Feed
    instance: dg.DagsterInstance
    client: dg.PipesClient = field(default_factory=lambda: client())
    options: dict[str, Any] = field(default_factory=dict)
    program_lab: Path | None = None
    """Where the program keeps what it keeps; None: where the code location looks."""
    elsewhere: bool = True
    engine: str = ""
    """The warm engine of its programs; empty: each starts a JVM of its own."""
    runs: int = 0
    """Runs that have ended."""

    @property
    def lab(self) -> Path:
        return self.folder / "lab"

    @property
    def tables(self) -> Path:
        return self.lab / "tables"

    @property
    def coordinator(self) -> CheckpointCoordinatorResource:
        return coordinator(self.lab)

    def command(self) -> list[str]:
        lab = self.program_lab or self.lab
        program = [sys.executable, "-m", "tests.dagster.launched.program"]
        return [*program, str(self.feed.folder), str(lab), self.engine]

    def definitions(self) -> dg.Definitions:
        launch = Launch(client=self.client, arguments=lambda _: {"command": self.command()})
        return build_pipeline_definitions(
            shop(self.feed.folder),
            coordinator=self.coordinator,
            spark=SparkSessionResource(master="local[2,3]", conf=SESSION),
            options=PipelineOptions(launch=launch if self.elsewhere else None, **self.options),
        )

    def run(self, job: str = "shop", **ops: Any) -> Ran:
        """Run a job to its end; ``ops`` is the config of its ops."""
        definition = self.definitions().resolve_job_def(job)
        config = {"ops": {op: {"config": given} for op, given in ops.items()}}
        run = self.instance.create_run_for_job(definition, run_config=config, tags={LOCATION_TAG: "here"})
        list(execute_run_iterator(InMemoryJob(definition), run, self.instance))
        self.runs += 1
        return Ran(self.instance, run.run_id)

    def terminate(self) -> None:
        """Terminate the run that this process executes, as Dagster's launcher does."""
        [run] = self.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        self.instance.report_run_canceling(run)
        os.kill(os.getpid(), signal.SIGINT)

    def during(self, holds: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
        """Start a thread that does something as soon as something holds, unless the next run has ended before."""
        runs = self.runs

        def wait() -> None:
            progress.wait_until(
                lambda: self.runs > runs or holds(),
                progress.source_of(holds),
                moves=progress.Sampled(self.moves, every=5.0),
                every=0.1,
            )
            if self.runs == runs:
                act()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    def moves(self) -> object:
        pid = self.pid()
        return (self.newest(), 0 if pid is None else progress.work_of(pid))

    def pid(self) -> int | None:
        file = self.lab / "pid"
        text = file.read_text() if file.exists() else ""
        return int(text) if text else None

    def record(self) -> CoordinatorRecord | None:
        with closing(self.coordinator.store()) as store:
            return find_record(store, shop(self.feed.folder).name)

    def newest(self) -> int:
        record = self.record() if self.lab.exists() else None
        return 0 if record is None else record.latest_completed or 0

    def partitions(self) -> list[str]:
        return sorted(self.instance.get_dynamic_partitions("shop/checkpoints"))

    def materializations(self) -> list[dg.AssetMaterialization]:
        """Newest first."""
        records = self.instance.fetch_materializations(
            checkpoints_asset_key(shop(self.feed.folder).name), limit=50
        ).records
        return [r.asset_materialization for r in records if r.asset_materialization is not None]


@dataclass
class Ran:
    """A run that has ended."""

    instance: dg.DagsterInstance
    run_id: str

    @property
    def status(self) -> dg.DagsterRunStatus:
        run = self.instance.get_run_by_id(self.run_id)
        assert run is not None
        return run.status

    @property
    def lines(self) -> list[str]:
        return [entry.user_message for entry in self.instance.all_logs(self.run_id)]

    @property
    def failure(self) -> str:
        logs = self.instance.all_logs(self.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        found = [entry.dagster_event.step_failure_data for entry in logs if entry.dagster_event is not None]
        return " | ".join(
            str(one.user_failure_data.description if one.user_failure_data else one.error) for one in found
        )

    def events(self) -> Counter[tuple[str, str, str, frozenset[str]]]:
        """Return what was told of assets: kind, asset, partition, and the names of the metadata."""
        found: Counter[tuple[str, str, str, frozenset[str]]] = Counter()
        for entry in self.instance.all_logs(self.run_id):
            event = entry.dagster_event
            if event is None or event.event_type_value not in TOLD:
                continue
            data: Any = event.event_specific_data
            told = getattr(data, "materialization", None) or getattr(data, "asset_observation", None) or data
            key = told.asset_key.to_user_string()
            partition = getattr(told, "partition", None) or ""
            found[event.event_type_value, key, partition, frozenset(told.metadata)] += 1
        return found


TOLD = {"ASSET_MATERIALIZATION", "ASSET_OBSERVATION", "ASSET_CHECK_EVALUATION"}


def client(**settings: Any) -> dg.PipesSubprocessClient:
    return dg.PipesSubprocessClient(
        env={"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=str(ROOT),
        termination_timeout_seconds=300,
        **settings,
    )


@pytest.fixture(scope="module")
@needs("spark")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A warm engine for the programs of a module that end by themselves."""
    with engine_in(tmp_path_factory.mktemp("warm") / "engine") as started:
        yield started


@pytest.fixture
def site(tmp_path: Path, feed: Feed) -> Iterator[Site]:
    with dg.instance_for_test(overrides=WITHOUT_CAPTURE) as instance:
        yield Site(tmp_path, feed, instance)


@pytest.fixture
def warm_site(site: Site, engine: str) -> Site:
    """One whose programs use a JVM that has run before, where one has."""
    site.engine = engine
    return site
