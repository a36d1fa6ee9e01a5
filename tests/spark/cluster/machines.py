"""Processes that are machines of their own, as far as one kernel can play them.

A machine has its own environment (a Python with pyarrow, without this package), its own local disk, its own working
directory, and its own mounts: below ``private`` everyone, the driver too, finds another disk under the same path.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.adapters.servers import ServerMissing
from tests.progress import Sampled, wait_until, work_of
from tests.root import ROOT

NEEDED_BY_SPARK = ("pyarrow", "pyarrow.libs", "numpy", "numpy.libs")
OWN_PROCESSES = ("--pid", "--fork", "--kill-child", "--mount-proc")
"""Whatever a machine has started ends with it, also what has left its process group."""
UNSHARE = (
    ("unshare", "--mount", *OWN_PROCESSES),
    ("unshare", "--map-root-user", "--mount", *OWN_PROCESSES),
)


@dataclass
class Machine:
    """A process, and what it and its children say."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """End it and all it has started at once, as a machine that loses power."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_for(self, line: str) -> None:
        """Wait until it says something."""

        def check() -> None:
            assert self.process.poll() is None, self.log.read_text()

        wait_until(
            lambda: line in self.log.read_text(),
            f"{self.log.name} says {line!r}",
            moves=Sampled(lambda: work_of(self.process.pid)),
            check=check,
        )


@dataclass
class Machines:
    """Machines in a folder."""

    folder: Path
    unshare: Sequence[str]

    @property
    def driver_environment(self) -> dict[str, str]:
        """What a driver of this cluster has in its environment."""
        return {"TMPDIR": str(self.folder)}

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

    def executors(self) -> list[int]:
        """Return the processes of executors that run now."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes() and (
                    process / "cwd"
                ).readlink().is_relative_to(self.folder):
                    found.append(int(process.name))
        return sorted(found)

    def boot(
        self, name: str, program: Sequence[str], *, masked: Sequence[Path], environment: Mapping[str, str]
    ) -> Machine:
        """Start a machine; it finds an empty disk of its own at ``masked``."""
        home, log = self.folder / name, self.folder / f"{name}.log"
        (home / "local").mkdir(parents=True, exist_ok=True)
        log.write_text("")
        mounts = "".join(f"mount -t tmpfs none '{path}' && " for path in masked)
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*self.unshare, "sh", "-c", f'{mounts} cd "{home}" && exec "$@"', "sh", *program],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={
                    "HOME": str(home),
                    "PATH": f"{self.folder / 'python' / 'bin'}:/usr/bin:/bin",
                    "JAVA_HOME": java_home(),
                    **environment,
                },
            )
        return Machine(process, log)


@contextmanager
def machine_room() -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield a folder, and the command that gives a process mounts of its own. Raises ServerMissing."""
    folder = Path(tempfile.mkdtemp(prefix="dagster-ckpt-cluster-"))
    try:
        yield folder, _unshare(folder)
    finally:
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


def spark_home() -> Path:
    """Return the folder of the installed PySpark."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def java_home() -> str:
    """Return the Java that Spark runs on. Raises ServerMissing."""
    java = subprocess.run([ROOT / "scripts" / "java-home"], capture_output=True, text=True, check=False)
    if java.returncode:
        raise ServerMissing("Java is not installed: scripts/bootstrap java")
    return java.stdout.strip()
