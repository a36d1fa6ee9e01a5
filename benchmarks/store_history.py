"""Does a long history slow the coordinator store down? ``python -m benchmarks.store_history [--rows 10000]``

Measures compare-and-set (with one history row) and the newest page of history, on SQLite and PostgreSQL, with an
empty history and with 10,000 checkpoints of it, interleaved in the same run. A ratio near 1 is what is wanted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.ports import Committed, HistoryRow
from tests.adapters.servers import ServerMissing, postgres_cluster

PAGE = 25
BODY = json.dumps(
    {"duration": 1.5, "bytes_full": 10**9, "stages": [{"uid": f"s{i}", "ms": 12.5} for i in range(8)]}
)
RECORD = json.dumps({"retained": [{"id": i, "location": f"s3://bucket/flights/chk-{i}"} for i in range(40)]})


class Pipeline:
    """One pipeline of the benchmark: its store, its version, its next checkpoint."""

    def __init__(self, store: SqlCoordinatorStore, name: str, rows: int) -> None:
        self.store = store
        self.name = PipelineId(name)
        self.version = 0
        self.next_id = 1
        while rows > 0:
            batch = min(rows, 500)
            self._write(batch)
            rows -= batch

    def commit_one(self) -> None:
        self._write(1)

    def newest_page(self) -> None:
        assert self.store.history(self.name, limit=PAGE)

    def _write(self, rows: int) -> None:
        history = [self._row(self.next_id + offset) for offset in range(rows)]
        answer = self.store.compare_and_set(self.name, self.version, RECORD, history)
        assert isinstance(answer, Committed)
        self.version, self.next_id = answer.version, self.next_id + rows

    def _row(self, number: int) -> HistoryRow:
        return HistoryRow(
            pipeline=self.name,
            checkpoint_id=CheckpointId(number),
            epoch=CoordinatorEpoch(1),
            kind="checkpoint",
            status="completed",
            triggered_at=1_790_000_000.0 + number,
            ended_at=1_790_000_001.0 + number,
            body=BODY,
        )


def milliseconds(call: Callable[[], None]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1000


def measure(url_empty: str, url_full: str, rows: int, repeats: int) -> dict[str, dict[str, float]]:
    empty_store, full_store = SqlCoordinatorStore(url_empty), SqlCoordinatorStore(url_full)
    full = Pipeline(full_store, "full", rows)
    times: dict[str, dict[str, list[float]]] = {
        "compare_and_set": {"empty": [], "full": []},
        "history_page": {"empty": [], "full": []},
    }
    for turn in range(repeats + 5):
        # A pipeline of its own each turn: its history is one page long.
        empty = Pipeline(empty_store, f"empty-{turn}", PAGE)
        for kind, pipeline in (("empty", empty), ("full", full)):
            found = {
                "compare_and_set": milliseconds(pipeline.commit_one),
                "history_page": milliseconds(pipeline.newest_page),
            }
            if turn >= 5:
                for operation, value in found.items():
                    times[operation][kind].append(value)
    for store in (empty_store, full_store):
        store.close()
    return {operation: summary(found["empty"], found["full"]) for operation, found in times.items()}


def summary(empty: list[float], full: list[float]) -> dict[str, float]:
    return {
        "empty_ms": round(statistics.median(empty), 3),
        "full_ms": round(statistics.median(full), 3),
        "full_p99_ms": round(sorted(full)[int(len(full) * 0.99)], 3),
        "ratio": round(statistics.median(full) / statistics.median(empty), 2),
    }


@contextmanager
def databases() -> Iterator[dict[str, tuple[str, str]]]:
    """Two fresh databases of each kind: one stays nearly empty."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        found = {"sqlite": (f"sqlite:///{folder}/empty.db", f"sqlite:///{folder}/full.db")}
        try:
            cluster = stack.enter_context(postgres_cluster())
            found["postgresql"] = (cluster.new_database(), cluster.new_database())
        except ServerMissing as missing:
            print(f"PostgreSQL is left out: {missing}")
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()
    with databases() as found:
        results = {
            name: measure(empty, full, arguments.rows, arguments.repeats)
            for name, (empty, full) in found.items()
        }
    print(f"{'database':<12}{'operation':<18}{'empty ms':>10}{'full ms':>10}{'p99 ms':>10}{'ratio':>8}")
    for name, operations in results.items():
        for operation, figures in operations.items():
            print(
                f"{name:<12}{operation:<18}" + "".join(f"{v:>10}" for v in list(figures.values())[:3]), end=""
            )
            print(f"{figures['ratio']:>8}")
    print(json.dumps({"rows": arguments.rows, "repeats": arguments.repeats, "results": results}))


if __name__ == "__main__":
    main()
