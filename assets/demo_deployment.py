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
code_servers: {local_startup_timeout: 900}
# runs start at once instead of waiting for the daemon's queue
run_coordinator:
  module: dagster.core.run_coordinator
  class: DefaultRunCoordinator
"""
QUIET = 600.0
"""Seconds in which nothing has moved, after which a run is given up: a busy machine takes its time."""
LOOK_EVERY = 5.0
ANSWER_WITHIN = 60.0


class RunFailed(Exception):
    """A run ended otherwise than it should."""


class StandsStill(RunFailed):
    """The run stands still: the state that was waited for has not come, and nothing moves any more."""


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
        # before the server starts: two processes that make the same database at once fail
        self.instance = dg.DagsterInstance.from_config(str(self.home))
        environment = {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "DAGSTER_GRPC_TIMEOUT_SECONDS": "600",
        }
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
        def check() -> None:
            if self._server.poll() is not None:
                raise RunFailed(f"Dagster has ended, see {self._log}")

        self._wait(self._answers, f"Dagster comes up, see {self._log}", moves=self._written, check=check)
        return DagsterGraphQLClient("127.0.0.1", port_number=self._port)

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/server_info", timeout=ANSWER_WITHIN) as answer:
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
        self._wait(
            lambda: self._end_of(run_id), f"run {run_id} ends, see {self._log}", moves=self._work_of(run_id)
        )
        return self._end_of(run_id)

    def run(self, job: str, config: Mapping[str, Any] | None = None) -> str:
        """Start a run, wait for its end, return its id. Raises RunFailed, saying what it said."""
        run_id = self.launch(job, config)
        status = self.wait(run_id)
        if status != "SUCCESS":
            events = (entry for entry in self.instance.all_logs(run_id) if entry.is_dagster_event)
            failures = [e.user_message for e in events if e.get_dagster_event().is_failure]
            raise RunFailed(f"run {run_id} of {job} ended as {status}: {' | '.join(failures)}")
        return run_id

    def until(self, run_id: str, what: str, holds: Callable[[], bool], moves: Callable[[], object]) -> None:
        """Wait until something holds while the run goes on and ``moves`` changes. Raises RunFailed, StandsStill."""

        def check() -> None:
            if status := self._end_of(run_id):
                raise RunFailed(f"run {run_id} ended as {status} before it was stopped")

        self._wait(holds, what, moves=moves, check=check)

    def kill_when_step_runs(self, run_id: str, step: str) -> int:
        """Kill the run's process as soon as ``step`` is at work; return its process id."""

        def check() -> None:
            if self._end_of(run_id):
                raise RunFailed(f"run {run_id} ended before {step} began")

        def begun() -> bool:
            events = (e.get_dagster_event() for e in self.instance.all_logs(run_id) if e.is_dagster_event)
            return any(event.step_key == step and event.is_step_start for event in events)

        self._wait(begun, f"run {run_id} begins {step}", moves=self._work_of(run_id), check=check, every=0.1)
        pid = self._process_of(run_id)
        time.sleep(1.5)
        os.kill(pid, signal.SIGKILL)
        return pid

    # --- waiting -----------------------------------------------------------------------------------------------

    def _wait(
        self,
        holds: Callable[[], object],
        what: str,
        *,
        moves: Callable[[], object],
        check: Callable[[], None] = lambda: None,
        every: float = 0.3,
    ) -> None:
        """Wait as long as ``moves`` changes now and then. Raises StandsStill, saying what was seen last."""
        seen, looked_at = moves(), time.monotonic()
        moved_at = looked_at
        while not holds():
            check()
            time.sleep(every)
            if time.monotonic() - looked_at < LOOK_EVERY:
                continue
            now_seen, looked_at = moves(), time.monotonic()
            if now_seen != seen:
                seen, moved_at = now_seen, looked_at
            elif looked_at - moved_at > QUIET:
                raise StandsStill(
                    f"waited until {what}: nothing has moved for {QUIET:.0f} s; seen last: {seen}"
                )

    def _written(self) -> int:
        return self._log.stat().st_size

    def _end_of(self, run_id: str) -> str:
        """Return the status of a run that is over, else nothing."""
        run = self.instance.get_run_by_id(run_id)
        return run.status.value if run is not None and run.is_finished else ""

    def _process_of(self, run_id: str) -> int:
        """Return the process id of a run that has begun."""
        events = self.instance.all_logs(run_id)
        return next(int(m[1]) for e in events if (m := re.search(r"\(pid: (\d+)\)", e.user_message)))

    def _work_of(self, run_id: str) -> Callable[[], object]:
        """Return the signs that a run gets on: its events, and the files it has stored."""

        def moves() -> object:
            return len(self.instance.all_logs(run_id)), sum(1 for _ in self.home.parent.rglob("*"))

        return moves

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
