"""What a publish costs once a table has many versions: ``python -m benchmarks.table_growth --versions 20000``

Two tables of each kind, a young one of ``--young`` publishes and an old one of ``--versions``, then take turns, each
publish of a hundred rows followed by the clean-up that a stream's checkpoint brings; by key they come back to fifty
hundreds of keys. Rows are staged without Spark. Processor milliseconds of this process, all its threads, so that others
on the machine do not count: median of a publish, and mean of it with its clean-up, which has work now and then.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.common import median, scratch, show
from benchmarks.sinks import ATTEMPT, opened, permit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.sinks import DeltaTable, IcebergTable, SinkTarget
from dagster_ckpt.spark.sink.port import Sink
from dagster_ckpt.testing import Staging
from dagster_ckpt.testing.sinks.run import stage

KINDS: dict[str, tuple[SinkTarget, tuple[str, ...]]] = {
    "Delta, append": (DeltaTable("table"), ()),
    "Delta, key": (DeltaTable("table"), ("k",)),
    "Iceberg, append": (IcebergTable("db.table"), ()),
    "Iceberg, key": (IcebergTable("db.table"), ("k",)),
}
_RETAINED = 3


@dataclass
class Stream:
    """A table that is published to again and again."""

    sink: Sink
    is_keyed: bool
    folder: Path
    published: int = 0
    retained: deque[TableSnapshot] = field(default_factory=lambda: deque(maxlen=_RETAINED))

    def publish(self) -> tuple[float, float]:
        """Publish once, as a checkpoint does; return what that took, and the clean-up behind it."""
        first = self.published % 50 * 100 if self.is_keyed else self.published * 100
        files: Any = self.sink.staged  # type: ignore[attr-defined]
        staging = Staging(files.root, files.folder(ATTEMPT.epoch))
        rows = pa.table({"k": range(first, first + 100), "v": [self.published] * 100})
        batch = stage(staging, ATTEMPT, self.published, [rows])
        self.sink.flush([batch])
        self.published += 1
        began = time.process_time()
        self.sink.publish([batch], permit(self.published))
        done = time.process_time()
        self.retained.append(TableSnapshot(uri=self.sink.place, head=self.published))
        self.sink.collect_garbage(list(self.retained), [])
        return 1000 * (done - began), 1000 * (time.process_time() - done)


def measure(kind: str, folder: Path, *, young: int, versions: int, turns: int) -> list[dict[str, Any]]:
    """Return what a publish costs a young table and an old one, in turns."""
    target, key = KINDS[kind]
    streams = []
    for age in (young, versions):
        root = folder / f"{kind} {age}".replace(", ", "_").replace(" ", "_")
        streams.append(Stream(opened(target, key, root), bool(key), root))
        for _ in range(age):
            streams[-1].publish()
    took: list[list[tuple[float, float]]] = [[], []]
    for turn in range(turns):
        for which in (0, 1) if turn % 2 else (1, 0):
            took[which].append(streams[which].publish())
    return [
        {
            "table": kind,
            "versions": age,
            "publish_ms": median([published for published, _ in found]),
            "with_clean_up_ms": sum(map(sum, found)) / turns,
            "files_shown": int(stream.sink.describe().details["files"]),
            "files_on_disk": sum(path.is_file() for path in stream.folder.rglob("*")),
        }
        for age, stream, found in zip((young, versions), streams, took, strict=True)
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", type=int, default=20_000)
    parser.add_argument("--young", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=128)
    parser.add_argument("--only", nargs="*", default=list(KINDS))
    given = parser.parse_args()
    for kind in given.only:
        with scratch() as folder:
            rows = measure(kind, folder, young=given.young, versions=given.versions, turns=given.turns)
        show(f"a publish of 100 rows after so many: {kind}", rows)


if __name__ == "__main__":
    main()
