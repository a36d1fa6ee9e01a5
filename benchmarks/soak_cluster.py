"""The soak on a standalone cluster: a master and two workers, PostgreSQL, S3, and a driver; all but the stores die.

orders → Delta on S3, Iceberg on S3 (one row a customer), a table of PostgreSQL. Checkpoints every second into S3, the
coordinator store in PostgreSQL, ``work_dir`` in S3: no two machines share a disk. A worker is killed with its disk, an
executor, the driver with its disk, the driver gets SIGTERM, the application is ended as in the master's UI, and once
the master is killed and comes back without its memory.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.common import scratch
from benchmarks.soak_common import Soak
from tests.adapters.servers import ServerMissing, postgres_cluster, s3_server_process, spark_s3_jars
from tests.progress import wait_until
from tests.removal import remove_tree
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.standalone import StandaloneCluster, standalone_cluster
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake.deployment import Places, truth

CUSTOMERS = ("ann", "bob", "eve", "tom")
WORKERS = ("one", "two")
AWAY = (3.0, 15.0)
"""Seconds a worker or the master is away."""
PATIENCE = 30.0
"""Seconds without an executor after which a stream begins another application; five minutes where nothing is set."""


class ClusterSoak(Soak):
    faults = ("worker", "executor", "kill", "terminate", "application")
    tables: ClassVar = {"lines": "append", "totals": "keyed", "bills": "append"}
    pauses = (1.0, 3.0)

    def __init__(
        self, folder: Path, cluster: StandaloneCluster, source: Feed, places: Places, dice: random.Random
    ) -> None:
        super().__init__(dice, folder)
        self.cluster, self.source, self.places = cluster, source, places
        self.ended: Counter[str] = Counter()
        self._is_stuck = False
        self._drivers = 0
        self._due: list[tuple[float, Callable[[], None]]] = []
        self.driver = self._started()

    def _started(self) -> Driver:
        self._drivers += 1
        self._disk.mkdir()
        driver = Driver(self.cluster, self.folder / "driver.log", temporary=self._disk)
        self._begin(driver)
        return driver

    @property
    def _disk(self) -> Path:
        """Of the driver: below a folder that is another disk on every worker."""
        return self.cluster.private / f"driver-{self._drivers}"

    def _begin(self, driver: Driver) -> None:
        how = {"stream": True, "restarts": True, "patience": PATIENCE, "places": self.places.text}
        driver.begin(self.source, self._disk, pipeline="stateful", conf=self.places.connector, **how)

    def run(self, seconds: float) -> bool:
        self._due.append((time.monotonic() + seconds / 3, lambda: self.break_something("master")))
        return super().run(seconds)

    @property
    def fed(self) -> int:
        return len(self.source.orders)

    def feed(self) -> None:
        rows = [
            (self.dice.choice(CUSTOMERS), self.dice.randint(1, 9)) for _ in range(self.dice.randint(1, 20))
        ]
        before, after = truth(self.source), truth(self.source.with_order(*rows))
        self.recorder.write({name: (after[name] - before[name]).elements() for name in after})
        self.source.order(*rows)
        self._do_what_is_due()

    # --- faults -------------------------------------------------------------------------------------------------

    def fault(self, name: str) -> None:
        match name:
            case "worker":
                self._lose_a_worker()
            case "executor":
                if there := self.cluster.executors():
                    with suppress(ProcessLookupError):
                        os.kill(self.dice.choice(there), signal.SIGKILL)
            case "kill":
                self.driver.kill()
                remove_tree(self._disk)
            case "terminate":
                self.driver.interrupt()
            case "application":
                for application in self.cluster.applications():
                    self.cluster.end_application(application)
            case _:
                self._lose_the_master()

    def _lose_a_worker(self) -> None:
        there = sorted(self.cluster.workers)
        if not there:
            return
        name = self.dice.choice(there)
        self.cluster.kill_worker(name)
        shutil.rmtree(self.cluster.folder / name, ignore_errors=True)  # with its disk
        self._later(lambda: self._bring_back(name))

    def _bring_back(self, name: str) -> None:
        if name not in self.cluster.workers:
            self.cluster.start_worker(name)

    def _lose_the_master(self) -> None:
        """Kill it and start another one, which knows of no application; then the stream has to go on by itself."""
        assert self.cluster.master is not None
        self.cluster.master.kill()
        time.sleep(self.dice.uniform(*AWAY))
        self.cluster.start_master()
        for name in WORKERS:
            self._bring_back(name)
        began = time.monotonic()
        self._is_stuck = not self._all_shown("the stream goes on with a master that has forgotten it")
        if not self._is_stuck:
            print(f"  all rows were there {time.monotonic() - began:.0f} s after the master was back")

    def _later(self, act: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + self.dice.uniform(*AWAY), act))

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        due = [act for at, act in self._due if at <= now]
        self._due = [(at, act) for at, act in self._due if at > now]
        for act in due:
            act()

    def restart_if_over(self) -> None:
        if self.driver.has_answered:
            answer = self.driver.answer()
            if "failed" in answer:
                self.ended[answer["failed"]] += 1
                print(f"  the run failed: {answer['failed']}: {answer['said'][:300]}", flush=True)
            if self.driver.process.poll() is None:
                self._begin(self.driver)
        if self.driver.process.poll() is not None:
            self.driver.kill()
            self.driver = self._started()

    # --- what must hold -----------------------------------------------------------------------------------------

    def look(self) -> bool:
        self.looks += 1
        shown, wanted = self._seen(), truth(self.source)
        wrong = (shown["lines"] - wanted["lines"]) + (shown["bills"] - wanted["bills"])
        wrong += self._wrong_totals(shown["totals"])
        if wrong:
            print(f"rows that must not be there: {sorted(map(str, wrong.elements()))[:10]}")
        return not wrong and not self._is_stuck

    def _seen(self, **more: bool) -> dict[str, Counter[tuple[Any, ...]]]:
        """Read all tables, and record what was seen."""
        began, shown = self.recorder.now(), self.places.shown()
        self.recorder.read(began, {name: rows.elements() for name, rows in shown.items()}, **more)
        return shown

    def _wrong_totals(self, totals: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
        """Return what is not one row a customer with the sum of as many of its first orders as the row has counted."""
        rows = Counter(who for who, _, _ in totals.elements())

        def is_right(who: str, count: int, amount: int) -> bool:
            first = [order["amount"] for order in self.source.orders if order["customer"] == who][:count]
            return rows[who] == 1 and len(first) == count and sum(first) == amount

        return Counter(row for row in totals.elements() if not is_right(*row))

    def settle(self) -> bool:
        self._due = [(0.0, act) for _, act in self._due]
        self._do_what_is_due()
        settled = self._all_shown("everything is in all tables")
        self._seen(settled=True)
        return settled

    def _all_shown(self, what: str) -> bool:
        """Wait until the tables show everything that was fed; nothing more is fed meanwhile."""
        wanted, well = truth(self.source), True

        def is_over() -> bool:
            nonlocal well
            self.restart_if_over()
            well = self.look()
            return not well or self.places.shown() == wanted

        def moves() -> object:
            return {name: rows.total() for name, rows in self.places.shown().items()}

        try:
            wait_until(is_over, what, moves=moves, quiet=600.0, every=1.0)
        except AssertionError as error:
            shown = self.places.shown()
            lost = {
                name: sorted(map(str, (wanted[name] - rows).elements()))[:5] for name, rows in shown.items()
            }
            print(f"{error}\nrows that are missing: {lost}")
            return False
        return well

    def said(self) -> str:
        logs = sorted(self.cluster.folder.glob("*.log"))
        return "\n".join(
            f"--- {log.name}\n{log.read_text()[-3000:]}" for log in [self.folder / "driver.log", *logs]
        )

    def end(self) -> None:
        self.driver.kill()


@contextmanager
def cluster_soak(dice: random.Random) -> Iterator[ClusterSoak]:
    """Start a cluster, the stores and a stream; stop and remove them all at the end. Raises ServerMissing."""
    if not spark_s3_jars():
        raise ServerMissing(
            "Spark's connector to S3 is not installed: scripts/bootstrap spark_s3, which needs Maven"
        )
    with ExitStack() as opened:
        folder = opened.enter_context(scratch())
        server = opened.enter_context(postgres_cluster())
        s3 = opened.enter_context(s3_server_process())
        cluster = opened.enter_context(standalone_cluster(*WORKERS))
        source = Feed(folder / "feed")
        yield ClusterSoak(
            folder, cluster, source, Places.new(source.folder, server, s3).all_in_the_bucket, dice
        )
