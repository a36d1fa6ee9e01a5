"""One measurement by Flink: ``<python with apache-flink> benchmarks/comparison/on_flink.py MEASUREMENT`` (JSON).

A local cluster in one process, Flink SQL, rows of the result thrown away (``blackhole``): a table that readers see
would need a connector of somebody else's. Checkpoint durations are those of Flink's own REST API.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parent))  # not the project: this Python need not have it
from work import (  # type: ignore
    FLINK_ROCKSDB,
    ONE_MORE,
    RESTING_CHECKPOINTS,
    SQL,
    Measurement,
    Result,
    processor_seconds,
)

LOOK_EVERY = 0.1


def environment(wanted: Measurement, port: int, restored_from: str = "") -> Any:
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    conf = Configuration()
    settings = {
        "parallelism.default": str(wanted.cores),
        "taskmanager.numberOfTaskSlots": str(wanted.cores),
        "taskmanager.memory.managed.size": "512 mb",
        "state.backend.type": "rocksdb" if wanted.way == FLINK_ROCKSDB else "hashmap",
        "rest.port": str(port),
        "execution.checkpointing.dir": f"file://{wanted.folder}/checkpoints",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "pipeline.max-parallelism": "128",
        "metrics.fetcher.update-interval": "50",
    }
    if wanted.interval:
        settings["execution.checkpointing.interval"] = f"{int(wanted.interval * 1000)} ms"
    if restored_from:
        settings["execution.state-recovery.path"] = restored_from
    for key, value in settings.items():
        conf.set_string(key, value)
    return TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(conf).build()
    )


class Watch:
    """Reads the checkpoints of the job that runs, by id."""

    def __init__(self, port: int) -> None:
        self._url = f"http://localhost:{port}"
        self.checkpoints: dict[int, dict[str, Any]] = {}
        self.records_read = 0

    def look(self) -> None:
        with suppress(OSError, KeyError, ValueError, IndexError):
            jobs = self._get("/jobs")["jobs"]
            running = next(job["id"] for job in jobs if job["status"] == "RUNNING")
            for one in self._get(f"/jobs/{running}/checkpoints")["history"]:
                if one["status"] == "COMPLETED":
                    self.checkpoints[one["id"]] = one
            vertices = self._get(f"/jobs/{running}")["vertices"]
            self.records_read = max(vertex["metrics"]["read-records"] for vertex in vertices)

    def durations(self, since: int = 0) -> list[float]:
        return [
            float(one["end_to_end_duration"])
            for number, one in sorted(self.checkpoints.items())
            if number > since
        ]

    def _get(self, path: str) -> Any:
        with urlopen(self._url + path, timeout=5) as answer:
            return json.load(answer)


def run(
    wanted: Measurement,
    data: str,
    watch: Watch | None,
    until: Callable[[Watch], bool] | None = None,
    restored_from: str = "",
) -> tuple[float, float]:
    """Run the job over the files of ``data``; ``until`` (an endless job) says when it may be canceled."""
    port = free_port()
    if watch is not None:
        watch._url = f"http://localhost:{port}"
    tables = environment(wanted, port, restored_from)
    endless = ", 'source.monitor-interval' = '1 s'" if until else ""
    tables.execute_sql(
        "CREATE TABLE numbers (k BIGINT, v BIGINT) WITH ("
        f"'connector' = 'filesystem', 'path' = 'file://{data}', 'format' = 'csv'{endless})"
    )
    tables.execute_sql(
        "CREATE TABLE totals (k BIGINT, times BIGINT, total BIGINT, PRIMARY KEY (k) NOT ENFORCED) "
        "WITH ('connector' = 'blackhole')"
    )
    over = threading.Event()
    looking = threading.Thread(target=_look, args=(watch, over), daemon=True)
    began, processor = time.perf_counter(), processor_seconds()
    job = tables.execute_sql(f"INSERT INTO totals {SQL}")
    if watch is not None:
        looking.start()
    if until is None:
        job.wait()
    else:
        assert watch is not None
        while not until(watch):
            time.sleep(LOOK_EVERY)
    took = time.perf_counter() - began, processor_seconds() - processor
    if until is not None:
        job.get_job_client().cancel().result()
    over.set()
    return took


def _look(watch: Watch, over: threading.Event) -> None:
    while not over.wait(LOOK_EVERY):
        watch.look()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def at_rest(wanted: Measurement, folder: Path) -> tuple[list[float], str]:
    """Return durations of checkpoints that were triggered after all rows were read, and where the last one is."""
    seen: list[int] = []

    def until(watch: Watch) -> bool:
        if not seen and watch.records_read and watch.checkpoints:
            before = watch.records_read
            time.sleep(3)
            watch.look()
            if watch.records_read == before:
                seen.append(max(watch.checkpoints))
        return bool(seen) and len(watch.durations(since=seen[0])) > RESTING_CHECKPOINTS

    watch = Watch(0)
    run(wanted, str(folder), watch, until)
    newest = watch.checkpoints[max(watch.checkpoints)]
    return watch.durations(since=seen[0] + 1)[:RESTING_CHECKPOINTS], newest["external_path"]


def restored(wanted: Measurement, folder: Path, checkpoint: str) -> float:
    """Return seconds from the order to run to the first rows that a job restored from ``checkpoint`` has read."""
    (folder / ONE_MORE).hardlink_to(sorted(Path(wanted.small).iterdir())[0])
    return run(wanted, str(folder), Watch(0), lambda watch: watch.records_read > 0, checkpoint)[0]


def main() -> None:
    wanted = Measurement.read(sys.argv[1])
    run(wanted, wanted.full, None)  # Java's compiler is done with the work
    result = Result()
    result.small_s, result.small_processor_s = run(wanted, wanted.small, None)
    watch = Watch(0)
    result.full_s, result.full_processor_s = run(wanted, wanted.full, watch)
    if wanted.interval:
        result.flowing_ms = watch.durations()
        if watch.checkpoints:
            newest = watch.checkpoints[max(watch.checkpoints)]
            result.checkpoint_bytes = int(newest["state_size"])
        folder = Path(wanted.folder) / "arriving"
        folder.mkdir()
        for path in Path(wanted.full).iterdir():
            (folder / path.name).hardlink_to(path)
        result.resting_ms, newest = at_rest(wanted, folder)
        result.restore_s = restored(wanted, folder, newest)
    print(result.text())


if __name__ == "__main__":
    main()
