"""A standalone cluster of Spark: master and workers as real processes, each worker a machine of its own."""

from __future__ import annotations

import json
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.adapters.servers import free_port
from tests.spark.cluster.machines import Machine, Machines, machine_room, spark_home
from tests.spark_session import SPARK_JVM

_HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)"')


@dataclass
class StandaloneCluster(Machines):
    """A master and its workers."""

    port: int = field(default_factory=free_port)
    ui_port: int = field(default_factory=free_port)
    workers: dict[str, Machine] = field(default_factory=dict)
    master: Machine | None = None
    spark_conf: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        """Processes that work while a driver waits."""
        return [worker.process.pid for worker in self.workers.values()]

    def start_master(self) -> None:
        """Start a master that knows of no application, and wait until it leads."""
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.ui_port)]
        self.master = self._start("master", ["master.Master", *where], masked=())
        self.master.wait_for("I have been elected leader")

    def start_worker(self, name: str, *, masked: Sequence[Path] = ()) -> None:
        """Start a worker; its executors find an empty disk of their own at ``private`` and at ``masked``."""
        work = str(self.folder / name / "work")
        command = ["worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory"]
        command += ["1g", "--work-dir", work, self.url]
        worker = self.workers[name] = self._start(name, command, masked=(self.private, *masked))
        worker.wait_for("Successfully registered with master")

    def kill_worker(self, name: str) -> None:
        self.workers.pop(name).kill()

    def applications(self) -> list[str]:
        """Return the ids of the applications that the master knows and that run."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ui_port}/json/") as answer:
            told: dict[str, Any] = json.load(answer)
        return [app["id"] for app in told["activeapps"]]

    def end_application(self, app: str) -> None:
        """End an application as a person does in the master's UI."""
        page = f"http://127.0.0.1:{self.ui_port}/"
        with urllib.request.urlopen(page) as answer:
            hidden = _HIDDEN.findall(answer.read().decode())
        form = {"id": app, "terminate": "true", **{name: value for name, value in hidden if name != "id"}}
        with urllib.request.urlopen(f"{page}app/kill/", data=urllib.parse.urlencode(form).encode()) as answer:
            answer.read()

    def stop(self) -> None:
        for machine in (*self.workers.values(), *([self.master] if self.master else [])):
            machine.kill()
        self.workers.clear()

    def _start(self, name: str, command: Sequence[str], *, masked: Sequence[Path]) -> Machine:
        program = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{command[0]}"]
        environment = {
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_DIRS": str(self.folder / name / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SPARK_JVM,
            "SPARK_LAUNCHER_OPTS": os.environ["SPARK_LAUNCHER_OPTS"],
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        }
        return self.boot(name, [*program, *command[1:]], masked=masked, environment=environment)


@contextmanager
def standalone_cluster(*workers: str) -> Iterator[StandaloneCluster]:
    """Start a master and workers in a temporary folder. Raises ServerMissing where mounts cannot be made private."""
    with machine_room() as (folder, unshare):
        cluster = StandaloneCluster(folder, unshare)
        try:
            cluster.private.mkdir()
            cluster.install_python()
            cluster.start_master()
            for name in workers:
                cluster.start_worker(name)
            yield cluster
        finally:
            cluster.stop()
