"""One cluster for all tests of a module, and a driver in a process of its own: this one may have a session already."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.servers import ServerMissing
from tests.progress import Sampled, wait_until, work_of
from tests.root import ROOT
from tests.spark.cluster.standalone import StandaloneCluster, standalone_cluster
from tests.spark.epoch.small_pipeline import Feed


class Driver:
    """A process that runs pipelines on the cluster, one after the other."""

    def __init__(self, cluster: StandaloneCluster, log: Path, *, temporary: Path | None = None) -> None:
        """``temporary``: its folder for what is temporary; executors see the default one."""
        self.cluster = cluster
        self._answers: queue.Queue[str] = queue.Queue()
        with log.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.cluster.driver"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(temporary or cluster.folder)},
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as answers:
            for line in answers:
                self._answers.put(line)

    def begin(self, feed: Feed, lab: Path, *, pipeline: str = "shop", **how: Any) -> None:
        """Let it run a pipeline."""
        step = {"stream": False, "ship": True, "probe": True, "master": self.cluster.url, **how}
        assert self.process.stdin is not None
        self.process.stdin.write(
            json.dumps({"feed": str(feed.folder), "lab": str(lab), "pipeline": pipeline, **step}) + "\n"
        )
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return how what it ran has ended."""

        def works() -> object:
            running = [self.process.pid, *(one.process.pid for one in self.cluster.workers.values())]
            return [work_of(pid) for pid in running]

        def check() -> None:
            assert self.has_answered or self.process.poll() is None, "the driver has ended"

        wait_until(
            lambda: self.has_answered, "the driver answers", moves=Sampled(works), check=check, every=0.1
        )
        return dict(json.loads(self._answers.get()))

    def run(self, feed: Feed, lab: Path, **how: Any) -> dict[str, Any]:
        self.begin(feed, lab, **how)
        return self.answer()

    @property
    def has_answered(self) -> bool:
        """What it ran has ended."""
        return not self._answers.empty()

    def refuse_if_over(self) -> None:
        """Raise AssertionError where what it ran has ended."""
        assert self.process.poll() is None, "the driver has ended"
        assert not self.has_answered, "the run has ended"

    def interrupt(self) -> None:
        """Ask what it runs to stop."""
        self.process.terminate()

    def kill(self) -> None:
        """End it and its JVM at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneCluster]:
    """A master and two workers, for all tests of a module."""
    try:
        with standalone_cluster("one", "two") as started:
            yield started
    except ServerMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def driver(cluster: StandaloneCluster) -> Iterator[Driver]:
    """A driver that starts one JVM for all tests of a module."""
    started = Driver(cluster, cluster.folder / "driver.log")
    yield started
    started.kill()


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    """Customers and orders where all machines see them."""
    made = Feed(tmp_path / "feed")
    made.customer("ann", "fr")
    made.customer("bob", "de")
    made.order(("ann", 5), ("bob", 7))
    return made
