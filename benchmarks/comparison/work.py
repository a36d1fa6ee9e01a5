"""The input, and what one measurement is told and answers. Standard library only: Flink's Python imports it too."""

from __future__ import annotations

import json
import os
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path

SQL = "SELECT k, COUNT(*) AS times, SUM(v) AS total FROM numbers GROUP BY k"
"""The work, as everybody does it."""
BARE, OURS, FLINK_HEAP, FLINK_ROCKSDB = "bare Spark", "dagster_ckpt", "Flink, heap", "Flink, RocksDB"
RESTING_CHECKPOINTS = 10
ONE_MORE = "one-more.csv"
"""The file that a restored run reads first."""


@dataclass(frozen=True)
class Measurement:
    """One run of one way: rows of ``small`` first, then rows of ``full``, both from an empty start."""

    way: str
    small: str
    full: str
    folder: str
    """Where it may write."""
    keys: int = 100_000
    stages: int = 2
    """Source, projections, keyed count. Ours alone."""
    chained: bool = True
    subtasks: int = 0
    """Partitions of the state; 0: as many as cores."""
    cores: int = 2
    interval: float = 0.0
    """Seconds between checkpoints; 0: none."""
    files_per_batch: int = 16
    """Of 75,000 rows: a batch takes about as long as the time between checkpoints."""

    @classmethod
    def read(cls, text: str) -> Measurement:
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Result:
    """What it took. Seconds and processor seconds of both runs: their difference is that of the rows alone."""

    small_s: float = 0.0
    full_s: float = 0.0
    small_processor_s: float = 0.0
    full_processor_s: float = 0.0
    flowing_ms: list[float] = field(default_factory=list)
    """Checkpoints while rows flow, from trigger to completion."""
    resting_ms: list[float] = field(default_factory=list)
    """The same with nothing to read."""
    checkpoint_bytes: int = 0
    """Size of the last one, whole."""
    restore_s: float = 0.0
    """From the order to restore to the first rows that are read and counted, in a process that is warm."""

    @classmethod
    def read(cls, text: str) -> Result:
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(asdict(self))


def write_csv(folder: Path, *, rows: int, files: int, keys: int) -> None:
    """Write files of ``k,v``; keys in random order, the same every time."""
    folder.mkdir(parents=True)
    drawn = random.Random(7)
    each = rows // files
    for number in range(files):
        lines = (f"{drawn.randrange(keys)},{row}\n" for row in range(number * each, (number + 1) * each))
        (folder / f"{number:05d}.csv").write_text("".join(lines))


def processor_seconds() -> float:
    """Return the processor time of this process and everything below it so far (Linux)."""
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        times[int(place.name)] = sum(int(ticks) for ticks in fields[11:15])
        children.setdefault(int(fields[1]), []).append(int(place.name))
    total, todo = 0.0, [os.getpid()]
    while todo:
        number = todo.pop()
        total += times.get(number, 0.0)
        todo += children.get(number, [])
    return total / os.sysconf("SC_CLK_TCK")
