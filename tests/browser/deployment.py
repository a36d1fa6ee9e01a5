"""A real Dagster deployment of a small pipeline, in a folder of the test's own, and a browser in front of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.request import Request, urlopen

import dagster as dg

from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from tests import web_server
from tests.progress import Sampled, wait_until, work_of
from tests.records import stored_record
from tests.root import ROOT
from tests.warm_engine import engine_in

LOCATION = "small_deployment"
INSTANCE = """\
telemetry: {enabled: false}
nux: {enabled: false}
code_servers: {local_startup_timeout: 900}
run_coordinator:
  module: dagster.core.run_coordinator
  class: DefaultRunCoordinator
"""
DEFINITIONS = """\
from pathlib import Path

import dagster as dg

from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, build_pipeline_definitions
from tests.browser.till import next_version, pipeline_of

HERE = Path(__file__).resolve().parent
SHOP = pipeline_of(HERE / "till")
GREEN = next_version(SHOP).fork("shop_green", table_dir=str(HERE / "green"))


@dg.asset(deps=[["shop", "totals"]])
def report(): ...


again = dg.define_asset_job("report_again", selection=["report"], executor_def=dg.in_process_executor)


def built() -> dg.Definitions:
    return build_pipeline_definitions(
        SHOP,
        GREEN,
        coordinator=CheckpointCoordinatorResource(
            base_dir=str(HERE / "state"),
            table_dir=str(HERE / "tables"),
            num_retained=20,  # every test goes back to the first
        ),
        spark=SparkSessionResource(
            master="local[2,3]",
            warm_engine=str(HERE / "engine"),
            conf={
                "spark.driver.memory": "1g",
                # a JVM that lives for minutes: compiling thoroughly costs more than it brings
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.log.level": "ERROR",
            },
        ),
    )


defs = dg.Definitions.merge(dg.Definitions(assets=[report], jobs=[again]), built())
"""
LAUNCH = """
mutation Launch($params: ExecutionParams!) {
  launchRun(executionParams: $params) { ... on LaunchRunSuccess { run { runId } } }
}
"""
LOADED = """
query Loaded {
  workspaceOrError {
    ... on Workspace {
      locationEntries {
        loadStatus
        locationOrLoadError {
          ... on RepositoryLocation { repositories { pipelines { name } } }
          ... on PythonError { message }
        }
      }
    }
  }
}
"""
ANSWER_WITHIN = 300.0


@dataclass(frozen=True)
class Deployment:
    """Address and folder of a running deployment."""

    url: str
    folder: Path
    instance: dg.DagsterInstance
    server: int
    """Process id of the webserver; the runs are its descendants."""

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    @property
    def record(self) -> CoordinatorRecord:
        """The coordinator's record as stored."""
        url = f"sqlite:///{self.folder / 'state' / 'coordinator.db'}"
        with closing(SqlCoordinatorStore(url)) as store:
            return stored_record(store, "shop")

    def run(self, job: str, config: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Launch a job over GraphQL and wait for its success; return the run's id."""
        selector = {
            "repositoryLocationName": f"{LOCATION}.py",
            "repositoryName": "__repository__",
            "jobName": job,
        }
        answer = self._graphql(LAUNCH, {"params": {"selector": selector, "runConfigData": dict(config)}})
        run_id = str(answer["data"]["launchRun"]["run"]["runId"])
        self.wait(run_id)
        return run_id

    def wait_until_loaded(self, job: str) -> None:
        """Wait until the code location offers a job: the server answers before it has loaded any."""

        def loaded() -> str:
            return str(self._graphql(LOADED, {})["data"]["workspaceOrError"])

        wait_until(
            lambda: f"'name': '{job}'" in loaded(),
            f"job {job!r} is loaded",
            moves=Sampled(lambda: (work_of(self.server), loaded()), every=5.0),
            every=0.3,
        )

    def _graphql(self, query: str, variables: dict[str, Any]) -> Any:
        """Plain HTTP: Dagster's own client refuses to work beside a browser's event loop."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=ANSWER_WITHIN) as answer:
            return json.loads(answer.read())

    def wait(self, run_id: str) -> dg.DagsterRun:
        """Wait for a run to end well."""

        def ended() -> dg.DagsterRun | None:
            run = self.instance.get_run_by_id(run_id)
            return run if run is not None and run.is_finished else None

        def moves() -> object:
            return work_of(self.server), len(self.instance.all_logs(run_id))

        run = wait_until(ended, f"run {run_id} ends", moves=Sampled(moves), every=0.2)
        assert run is not None
        assert run.status is dg.DagsterRunStatus.SUCCESS, self._failures(run_id)
        return run

    def _failures(self, run_id: str) -> str:
        events = (e.get_dagster_event() for e in self.instance.all_logs(run_id) if e.is_dagster_event)
        return " | ".join(str(e.event_specific_data)[-1500:] for e in events if e.is_failure)


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """Start webserver and code server; everything they write is below ``folder``."""
    home = folder / "home"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text(INSTANCE)
    (folder / f"{LOCATION}.py").write_text(DEFINITIONS)
    port = web_server.free_port()
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", str(port)]
    command += ["-f", str(folder / f"{LOCATION}.py"), "-d", str(folder)]
    log = folder / "dagster.log"
    server_of = web_server.started(command, log, env=environment, cwd=folder)
    with engine_in(folder / "engine"), server_of as server:
        url = f"http://127.0.0.1:{port}"
        web_server.wait_until_it_answers(url, server, log)
        with dg.DagsterInstance.from_config(str(home)) as instance:
            deployment = Deployment(url, folder, instance, server.pid)
            deployment.wait_until_loaded("shop")
            yield deployment
