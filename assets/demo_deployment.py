"""A real Dagster deployment for the demonstration: webserver, code server, one process per run."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import dagster as dg
from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError

from dagster_ckpt import checkpoints_asset_key

ROOT = Path(__file__).resolve().parent.parent
LOCATION = "definitions.py"
RELOADS = 3
SETTINGS = """\
telemetry: {enabled: false}
nux: {enabled: false}
# runs start at once instead of waiting for the daemon's queue
run_coordinator:
  module: dagster.core.run_coordinator
  class: DefaultRunCoordinator
"""
RUN_TIMEOUT = 240.0


class RunFailed(Exception):
    """A run ended otherwise than it should."""


class Deployment:
    """Start it with ``with``; everything it writes is below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "dagster_home"
        self._port = _free_port()
        self._log = folder / "dagster.log"

    @property
    def url(self) -> str:
        """Address of the UI while the deployment runs."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Deployment:
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "dagster.yaml").write_text(SETTINGS)
        environment = {**os.environ, "DAGSTER_HOME": str(self.home), "DAGSTER_DISABLE_TELEMETRY": "1"}
        command = [sys.executable, "-m", "dagster_webserver", "-w", str(ROOT / "workspace.yaml")]
        with self._log.open("w") as log:
            self._server = subprocess.Popen(
                [*command, "-h", "127.0.0.1", "-p", str(self._port)],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )
        self.instance = dg.DagsterInstance.from_config(str(self.home))
        self._client = self._connected()
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._server.pid, signal.SIGINT)
        try:
            self._server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._server.pid, signal.SIGKILL)
        self.instance.dispose()

    def _connected(self) -> DagsterGraphQLClient:
        until = time.monotonic() + 120
        while not self._answers():
            if time.monotonic() > until or self._server.poll() is not None:
                raise RunFailed(f"Dagster did not come up, see {self._log}")
            time.sleep(0.3)
        return DagsterGraphQLClient("127.0.0.1", port_number=self._port)

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/server_info", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    # --- runs --------------------------------------------------------------------------------------------------

    def launch(self, job: str, config: Mapping[str, Any] | None = None) -> str:
        """Start a run and return its id."""
        for _ in range(RELOADS):
            try:
                return self._client.submit_job_execution(job, run_config=dict(config or {}))
            except DagsterGraphQLClientError as error:
                if "No jobs with the name" not in str(error):
                    raise
            # On a busy machine the code server may come up later than Dagster waits for it.
            self._client.reload_repository_location(LOCATION)
        raise RunFailed(f"the code location {LOCATION} does not load, see {self._log}")

    def wait(self, run_id: str) -> str:
        """Wait for a run's end and return its status."""
        until = time.monotonic() + RUN_TIMEOUT
        while time.monotonic() < until:
            run = self.instance.get_run_by_id(run_id)
            if run is not None and run.is_finished:
                return run.status.value
            time.sleep(0.3)
        raise RunFailed(f"run {run_id} did not end within {RUN_TIMEOUT:.0f} s, see {self._log}")

    def run(self, job: str, config: Mapping[str, Any] | None = None) -> str:
        """Start a run, wait for its end, return its id. Raises RunFailed, saying what it said."""
        run_id = self.launch(job, config)
        status = self.wait(run_id)
        if status != "SUCCESS":
            events = (entry for entry in self.instance.all_logs(run_id) if entry.is_dagster_event)
            failures = [e.user_message for e in events if e.get_dagster_event().is_failure]
            raise RunFailed(f"run {run_id} of {job} ended as {status}: {' | '.join(failures)}")
        return run_id

    def until(self, run_id: str, holds: Callable[[], bool]) -> bool:
        """Wait until something holds while the run goes on; False when it did not happen. Raises RunFailed."""
        until = time.monotonic() + RUN_TIMEOUT
        while not holds():
            run = self.instance.get_run_by_id(run_id)
            if run is not None and run.is_finished:
                raise RunFailed(f"run {run_id} ended as {run.status.value} before it was stopped")
            if time.monotonic() > until:
                return False
            time.sleep(0.3)
        return True

    def kill_when_step_runs(self, run_id: str, step: str) -> int:
        """Kill the run's process as soon as ``step`` is at work; return its process id."""
        until = time.monotonic() + RUN_TIMEOUT
        while time.monotonic() < until:
            events = self.instance.all_logs(run_id)
            if any(
                e.step_key == step and e.is_dagster_event and e.get_dagster_event().is_step_start
                for e in events
            ):
                pid = next(int(m[1]) for e in events if (m := re.search(r"\(pid: (\d+)\)", e.user_message)))
                time.sleep(1.5)
                os.kill(pid, signal.SIGKILL)
                return pid
            if (run := self.instance.get_run_by_id(run_id)) is not None and run.is_finished:
                raise RunFailed(f"run {run_id} ended before {step} began")
            time.sleep(0.1)
        raise RunFailed(f"run {run_id} never began {step}")

    # --- what runs have said -----------------------------------------------------------------------------------

    def stage_lines(self, run_id: str) -> list[str]:
        """Return the line each stage wrote to the run's event log."""
        messages = (e.user_message for e in self.instance.all_logs(run_id) if not e.is_dagster_event)
        return [text for text in messages if re.match(r"\w+: [\d,]+ rows in", text)]

    def checkpoint_of(self, run_id: str) -> dict[str, Any]:
        """Return the metadata of the checkpoint or savepoint a run has completed, and its partition."""
        run = self.instance.get_run_by_id(run_id)
        pipeline = run.tags["dagster_ckpt/pipeline"] if run is not None else ""
        found = self.instance.fetch_materializations(checkpoints_asset_key(pipeline), limit=20).records
        for record in found:
            if record.run_id == run_id and record.asset_materialization is not None:
                values = {name: value.value for name, value in record.asset_materialization.metadata.items()}
                return {**values, "partition": record.partition_key}
        raise RunFailed(f"run {run_id} completed no checkpoint")

    def checkpoints_of(self, run_id: str, pipeline: str) -> list[dict[str, Any]]:
        """Return the metadata of everything a run has completed so far, oldest first."""
        found = self.instance.fetch_materializations(checkpoints_asset_key(pipeline), limit=500).records
        mine = [r for r in found if r.run_id == run_id and r.asset_materialization is not None]
        return [
            {
                "partition": record.partition_key,
                **{name: value.value for name, value in record.asset_materialization.metadata.items()},
            }
            for record in reversed(mine)
        ]

    def seconds(self, run_id: str) -> float:
        """Return how long a run took."""
        stats = self.instance.get_run_stats(run_id)
        return (stats.end_time or 0.0) - (stats.start_time or stats.launch_time or 0.0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
