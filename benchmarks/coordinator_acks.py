"""What the coordinator costs per subtask, and how long the last acknowledgement takes to complete a checkpoint.

    python -m benchmarks.coordinator_acks [--store sqlite]

The cost per acknowledgement must not depend on how many subtasks there are. Nothing is asserted: figures of one
machine are compared with each other, not with a clock.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import StateHandle, StateScope, SubtaskAcknowledgement
from dagster_ckpt.core.model import SnapshotMetrics
from dagster_ckpt.core.request import CheckpointRequest, Completed, Triggered
from dagster_ckpt.ports import CoordinatorStore
from dagster_ckpt.runtime.attempt_setup import AttemptSetup
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.testing.coordinator.world import build_graph
from dagster_ckpt.testing.faulty import RecordingGateway
from dagster_ckpt.testing.memory import (
    ManualBackground,
    ManualClock,
    MemoryCheckpointStorage,
    MemoryCoordinatorStore,
)

SIZES = (10, 100, 1_000, 10_000)
ROUNDS = 5


def sqlite_store() -> CoordinatorStore:
    """A fresh SQLite store in a temporary folder."""
    from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore

    folder = Path(tempfile.mkdtemp(prefix="coordinator-acks-"))
    store = SqlCoordinatorStore(f"sqlite:///{folder / 'coordinator.db'}")
    store.migrate()
    return store


STORES: dict[str, Callable[[], CoordinatorStore]] = {"memory": MemoryCoordinatorStore, "sqlite": sqlite_store}


def coordinator(store: CoordinatorStore, subtasks: int) -> CheckpointCoordinator:
    """A coordinator of one stage over this store; storage in memory."""
    storage = MemoryCheckpointStorage()
    opened = CheckpointCoordinator.open(
        AttemptSetup(
            graph=build_graph("pipeline", {"task": subtasks}, [], frozenset()),
            config=CheckpointConfig(num_retained=2),
            store=store,
            storage=storage,
            open_storage=lambda uri: storage,
            gateway=RecordingGateway(),
            clock=ManualClock(),
            owner="benchmark",
            background=ManualBackground(),
        )
    )
    opened.started("/work")
    return opened


def one_checkpoint(c: CheckpointCoordinator, subtasks: int) -> tuple[float, float, float]:
    """Return microseconds per acknowledgement, milliseconds of the last one, and of the trigger (CPU time)."""
    gc.collect()
    began = time.thread_time()
    outcome = c.trigger(CheckpointRequest())
    triggered = time.thread_time() - began
    assert isinstance(outcome, Triggered)
    acks = [_ack(c, outcome.id, index) for index in range(subtasks)]
    gc.freeze()  # the messages would come over the network one by one, not all be there at once
    began = time.thread_time()
    for ack in acks[:-1]:
        c.acknowledge(ack)
    each = (time.thread_time() - began) / max(1, subtasks - 1)
    began = time.thread_time()
    c.acknowledge(acks[-1])
    last = time.thread_time() - began
    assert isinstance(c.status_of(outcome.id), Completed)
    return each * 1e6, last * 1e3, triggered * 1e3


def _ack(c: CheckpointCoordinator, number: CheckpointId, index: int) -> SubtaskAcknowledgement:
    handles = (
        StateHandle(f"pipeline/chk-{number}/task/{index}", 4096),
        StateHandle(f"pipeline/shared/task/{number}/{index}", 1 << 20, StateScope.SHARED),
    )
    metrics = SnapshotMetrics(sync_ms=1.0, async_ms=5.0, bytes_full=1 << 20, bytes_new=4096)
    return SubtaskAcknowledgement(
        checkpoint_id=number, attempt=c.attempt_of(StageUid("task"), index), handles=handles, metrics=metrics
    )


def measure(store: str) -> list[dict[str, float | int | str]]:
    """Return one row of medians per number of subtasks."""
    rows: list[dict[str, float | int | str]] = []
    for subtasks in SIZES:
        c = coordinator(STORES[store](), subtasks)
        one_checkpoint(c, subtasks)
        found = [one_checkpoint(c, subtasks) for _ in range(max(ROUNDS, 500 // subtasks))]
        each, last, triggered = (statistics.median(column) for column in zip(*found, strict=True))
        rows.append(
            {
                "store": store,
                "subtasks": subtasks,
                "us_per_ack": round(each, 2),
                "last_ack_to_complete_ms": round(last, 2),
                "trigger_ms": round(triggered, 2),
            }
        )
    return rows


def main() -> None:
    """Measure and print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=sorted(STORES), action="append")
    stores = parser.parse_args().store or ["memory", "sqlite"]
    rows = [row for store in stores for row in measure(store)]
    print(f"{'store':>8} {'subtasks':>9} {'us per ack':>11} {'last -> complete, ms':>21} {'trigger, ms':>12}")
    for row in rows:
        print(
            f"{row['store']:>8} {row['subtasks']:>9} {row['us_per_ack']:>11} "
            f"{row['last_ack_to_complete_ms']:>21} {row['trigger_ms']:>12}"
        )
    print(json.dumps({"python": sys.version.split()[0], "rows": rows}))


if __name__ == "__main__":
    main()
