"""A driver in a process of its own, as tests and benchmarks hold it: told what to run, asked how it ended, killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from tests.progress import Sampled, wait_until, work_of
from tests.root import ROOT
from tests.spark.epoch.small_pipeline import Feed


class Cluster(Protocol):
    """What a driver is told of a cluster."""

    @property
    def url(self) -> str:
        """The master, as Spark is told of it."""
        ...

    @property
    def private(self) -> Path:
        """Folder that is another disk on every machine."""
        ...

    @property
    def driver_environment(self) -> dict[str, str]:
        """What a driver of this cluster has in its environment."""
        ...

    @property
    def spark_conf(self) -> dict[str, str]:
        """Spark's settings on this cluster, over the driver's own."""
        ...

    @property
    def pids(self) -> list[int]:
        """Processes that work while a driver waits."""
        ...


class Driver:
    """A process that runs pipelines on the cluster, one after the other."""

    def __init__(self, cluster: Cluster, log: Path, *, temporary: Path | None = None) -> None:
        """``temporary``: its folder for what is temporary; executors see the default one."""
        self._cluster = cluster
        own = {} if temporary is None else {"TMPDIR": str(temporary)}
        self._answers: queue.Queue[str] = queue.Queue()
        with log.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.cluster.driver"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **cluster.driver_environment, **own},
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
        step = {"stream": False, "ship": True, "probe": True, "master": self._cluster.url, **how}
        step["conf"] = {**self._cluster.spark_conf, **how.get("conf", {})}
        assert self.process.stdin is not None
        self.process.stdin.write(
            json.dumps({"feed": str(feed.folder), "lab": str(lab), "pipeline": pipeline, **step}) + "\n"
        )
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return how what it ran has ended."""

        def works() -> object:
            return [work_of(pid) for pid in (self.process.pid, *self._cluster.pids)]

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
        assert not self.has_answered, f"the run has ended: {self._answers.queue[0]}"

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
