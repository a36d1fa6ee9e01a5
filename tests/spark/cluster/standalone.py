"""A standalone cluster of Spark: master and workers as real processes, each worker a machine of its own as far as one
kernel can play it.

A worker has its own environment (a Python with pyarrow, without this package), its own local disk, its own working
directory, and its own mounts: below ``private`` everyone, the driver too, finds another disk under the same path.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.adapters.servers import BRIEF, ServerMissing, free_port
from tests.progress import Sampled, wait_until, work_of
from tests.root import ROOT

NEEDED_BY_SPARK = ("pyarrow", "pyarrow.libs", "numpy", "numpy.libs")
UNSHARE = (("unshare", "--mount"), ("unshare", "--map-root-user", "--mount"))


@dataclass
class Machine:
    """A process of Spark's, and what it and its children say."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """End it and all it has started at once, as a machine that loses power."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class StandaloneCluster:
    """A master and its workers, in a folder."""

    folder: Path
    unshare: Sequence[str]
    port: int = field(default_factory=free_port)
    workers: dict[str, Machine] = field(default_factory=dict)
    master: Machine | None = None

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def private(self) -> Path:
        """Folder that is another disk on every machine."""
        return self.folder / "private"

    @property
    def site_packages(self) -> Path:
        """Of the Python that executors run."""
        return next((self.folder / "python" / "lib").glob("python*/site-packages"))

    def install_python(self) -> None:
        """Make the executors' Python: what Spark needs, and nothing of ours."""
        python = self.folder / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", python], check=True)
        found = find_spec("pyarrow")
        assert found is not None
        assert found.origin is not None
        ours = Path(found.origin).parent.parent
        for name in NEEDED_BY_SPARK:
            if (ours / name).exists():
                (self.site_packages / name).symlink_to(ours / name)

    def start_master(self) -> None:
        command = ["master.Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        self.master = self._start("master", command, masked=())
        self._wait_for(self.master, "I have been elected leader")

    def start_worker(self, name: str, *, masked: Sequence[Path] = ()) -> None:
        """Start a worker; its executors find an empty disk of their own at ``private`` and at ``masked``."""
        home = self.folder / name
        command = ["worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory"]
        command += ["1g", "--work-dir", str(home / "work"), self.url]
        worker = self.workers[name] = self._start(name, command, masked=(self.private, *masked))
        self._wait_for(worker, "Successfully registered with master")

    def kill_worker(self, name: str) -> None:
        self.workers.pop(name).kill()

    def stop(self) -> None:
        for machine in (*self.workers.values(), *([self.master] if self.master else [])):
            machine.kill()
        self.workers.clear()

    def _start(self, name: str, command: Sequence[str], *, masked: Sequence[Path]) -> Machine:
        home, log = self.folder / name, self.folder / f"{name}.log"
        (home / "local").mkdir(parents=True, exist_ok=True)
        log.write_text("")
        mounts = "".join(f"mount -t tmpfs none '{path}' && " for path in masked)
        program = [str(_spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{command[0]}"]
        script = f'{mounts} cd "{home}" && exec "$@"'
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*self.unshare, "sh", "-c", script, "sh", *program, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=self._environment(home),
            )
        return Machine(process, log)

    def _environment(self, home: Path) -> dict[str, str]:
        return {
            "HOME": str(home),
            "PATH": f"{self.folder / 'python' / 'bin'}:/usr/bin:/bin",
            "JAVA_HOME": _java_home(),
            "SPARK_HOME": str(_spark_home()),
            "SPARK_LOCAL_DIRS": str(home / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(BRIEF),
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        }

    def _wait_for(self, machine: Machine, line: str) -> None:
        def check() -> None:
            assert machine.process.poll() is None, machine.log.read_text()

        wait_until(
            lambda: line in machine.log.read_text(),
            f"{machine.log.name} says {line!r}",
            moves=Sampled(lambda: work_of(machine.process.pid)),
            check=check,
        )


@contextmanager
def standalone_cluster(*workers: str) -> Iterator[StandaloneCluster]:
    """Start a master and workers in a temporary folder. Raises ServerMissing where mounts cannot be made private."""
    folder = Path(tempfile.mkdtemp(prefix="dagster-ckpt-cluster-"))
    cluster = StandaloneCluster(folder, _unshare(folder))
    try:
        cluster.private.mkdir()
        cluster.install_python()
        cluster.start_master()
        for name in workers:
            cluster.start_worker(name)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _unshare(folder: Path) -> Sequence[str]:
    probe = ["sh", "-c", f"mount -t tmpfs none '{folder}'"]
    for command in UNSHARE:
        with suppress(OSError):
            if subprocess.run([*command, *probe], capture_output=True, check=False).returncode == 0:
                return command
    raise ServerMissing(
        "mounts of one process alone cannot be made here: run as root, or allow user namespaces"
    )


def _spark_home() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _java_home() -> str:
    java = subprocess.run([ROOT / "scripts" / "java-home"], capture_output=True, text=True, check=False)
    if java.returncode:
        raise ServerMissing("Java is not installed: scripts/bootstrap java")
    return java.stdout.strip()
