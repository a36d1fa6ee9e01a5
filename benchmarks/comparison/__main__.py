"""Flink, bare Spark and us on the same files, and how ours scales.

    python -m benchmarks.comparison [--flink .venv-flink/bin/python] [--rounds 5] [--rows 4800000] [--chart FILE]

A keyed count and sum over CSV files, ways taking turns in alternating order, every run in a process of its own that is
warmed up first; a run over one file is subtracted from one over all, so that starts do not count. Then curves of ours:
keys, stages, partitions of the state, cores (``--curves`` chooses, none: ``--curves none``). Flink takes part where
``--flink`` names a Python with ``apache-flink`` (``scripts/bootstrap flink`` makes one).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.common import median, p95, scratch, show
from benchmarks.comparison.chart import Bars, Curve, draw
from benchmarks.comparison.work import (
    BARE,
    FLINK_HEAP,
    FLINK_ROCKSDB,
    OURS,
    Measurement,
    Result,
    write_csv,
)

ROOT = Path(__file__).resolve().parents[2]
FLINK = ROOT / ".venv-flink" / "bin" / "python"
ROWS_PER_FILE = 75_000
EVERY_SECOND = 1.0
CURVES: dict[str, tuple[str, tuple[int, ...]]] = {
    "keys": ("keys", (10_000, 100_000, 1_000_000, 10_000_000)),
    "stages": ("stages", (2, 4, 8, 16)),
    "channels": ("stages", (2, 4, 8, 16)),
    "subtasks": ("subtasks", (1, 8, 40, 200)),
    "cores": ("cores", (1, 2)),
}
"""Field of a measurement that a curve varies, and its values; ``channels``: a query for each stage."""


@dataclass
class Input:
    """Files by number of keys, written once."""

    folder: Path
    rows: int
    made: set[int] = field(default_factory=set)

    def of(self, keys: int) -> tuple[Path, Path]:
        small, full = self.folder / f"small-{keys}", self.folder / f"full-{keys}"
        if keys not in self.made:
            write_csv(small, rows=ROWS_PER_FILE, files=1, keys=keys)
            write_csv(full, rows=self.rows, files=self.rows // ROWS_PER_FILE, keys=keys)
            self.made.add(keys)
        return small, full


@dataclass(frozen=True)
class Runner:
    """Runs measurements, each in a process of its own."""

    folder: Path
    data: Input
    flink: Path | None

    def run(self, wanted: Measurement) -> Result:
        small, full = self.data.of(wanted.keys)
        place = self.folder / "run"
        place.mkdir()
        told = replace(wanted, small=str(small), full=str(full), folder=str(place)).text()
        if wanted.way in (FLINK_HEAP, FLINK_ROCKSDB):
            command = [str(self.flink), str(Path(__file__).parent / "on_flink.py"), told]
        else:
            command = [sys.executable, "-m", "benchmarks.comparison.on_spark", told]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        shutil.rmtree(place)
        if ended.returncode:
            raise RuntimeError(f"{wanted.way} failed: {ended.stderr[-3000:]}")
        return Result.read(ended.stdout.strip().splitlines()[-1])

    def rows_of(self, results: Sequence[Result]) -> list[float]:
        """Return rows per second of each, without starts."""
        rows = self.data.rows - ROWS_PER_FILE
        return [rows / max(1e-3, one.full_s - one.small_s) for one in results]

    def processor_of(self, results: Sequence[Result]) -> list[float]:
        """Return processor seconds for a million rows of each, without starts."""
        millions = (self.data.rows - ROWS_PER_FILE) / 1e6
        return [(one.full_processor_s - one.small_processor_s) / millions for one in results]


def measured(wanted: Measurement, name: str, runner: Runner, results: Sequence[Result]) -> dict[str, Any]:
    rows, processor = runner.rows_of(results), runner.processor_of(results)
    flowing = [ms for one in results for ms in one.flowing_ms]
    resting = [ms for one in results for ms in one.resting_ms]
    return {
        "run": name,
        "rows_per_s": int(median(rows)),
        "least": int(min(rows)),
        "most": int(max(rows)),
        "processor_s_per_M": median(processor),
        "flowing_ms": median(flowing) if flowing else 0.0,
        "flowing_p95_ms": p95(flowing) if flowing else 0.0,
        "resting_ms": median(resting) if resting else 0.0,
        "checkpoint_kB": max((one.checkpoint_bytes for one in results), default=0) / 1e3,
        "restore_s": median([one.restore_s for one in results]),
    }


def side_by_side(runner: Runner, rounds: int, cores: int) -> list[dict[str, Any]]:
    base = Measurement(way=BARE, small="", full="", folder="", cores=cores)
    ways = {
        "bare Spark": base,
        "dagster_ckpt": replace(base, way=OURS),
        "dagster_ckpt, 1 s checkpoints": replace(base, way=OURS, interval=EVERY_SECOND),
    }
    if runner.flink is not None:
        ways["Flink, heap, 1 s checkpoints"] = replace(base, way=FLINK_HEAP, interval=EVERY_SECOND)
        ways["Flink, RocksDB, 1 s checkpoints"] = replace(base, way=FLINK_ROCKSDB, interval=EVERY_SECOND)
    found: dict[str, list[Result]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 == 0 else reversed(ways):
            found[name].append(runner.run(ways[name]))
            print(f"round {number + 1}: {measured(ways[name], name, runner, found[name][-1:])}", flush=True)
    return [measured(ways[name], name, runner, results) for name, results in found.items()]


def curve(runner: Runner, name: str, cores: int, most_keys: int) -> list[dict[str, Any]]:
    what, values = CURVES[name]
    base = Measurement(way=OURS, small="", full="", folder="", cores=cores, interval=EVERY_SECOND)
    base = replace(base, chained=name != "channels")
    rows = []
    for value in values:
        if (what == "keys" and value > most_keys) or (what == "cores" and value > cores):
            continue
        wanted = replace(base, **{what: value})
        row = measured(wanted, f"{name} {value:,}", runner, [runner.run(wanted)])
        rows.append({what: value, **row})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--flink", type=Path, default=FLINK, help="Python with apache-flink")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4_800_000)
    parser.add_argument("--curve-rows", type=int, default=2_400_000)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--curves", nargs="*", choices=[*CURVES, "none"], default=list(CURVES))
    parser.add_argument("--most-keys", type=int, default=10_000_000)
    parser.add_argument("--chart", type=Path, help="write an SVG here")
    given = parser.parse_args()
    curves: dict[str, list[dict[str, Any]]] = {}
    with scratch() as folder:
        runner = Runner(
            folder, Input(folder / "data", given.rows), given.flink if given.flink.exists() else None
        )
        if runner.flink is None:
            print(f"no Flink: there is no {given.flink} (scripts/bootstrap flink makes one)")
        table = side_by_side(runner, given.rounds, given.cores) if given.rounds else []
        scaled = Runner(folder, Input(folder / "curves", given.curve_rows), None)
        for name in given.curves:
            if given.chart is not None:  # what has been measured so far, whatever comes
                given.chart.write_text(draw(*_panels(table, curves)))
            if name != "none":
                curves[name] = curve(scaled, name, given.cores, given.most_keys)
    if table:
        show(f"keyed count and sum, 100,000 keys, {given.rows:,} rows of CSV, {given.cores} cores", table)
    for name, rows in curves.items():
        show(f"dagster_ckpt by {name}, 1 s checkpoints, {given.curve_rows:,} rows", rows)
    if given.chart is not None:
        given.chart.write_text(draw(*_panels(table, curves)))


def _panels(
    table: Sequence[dict[str, Any]], curves: dict[str, list[dict[str, Any]]]
) -> tuple[list[Bars], list[Curve]]:
    bars = []
    if table:
        bars = [
            Bars("rows per second", {row["run"]: row["rows_per_s"] for row in table}),
            Bars(
                "processor seconds per million rows", {row["run"]: row["processor_s_per_M"] for row in table}
            ),
            Bars(
                "checkpoint while rows flow, ms (median)",
                {row["run"]: row["flowing_ms"] for row in table if row["flowing_ms"]},
            ),
            Bars(
                "checkpoint at rest, ms (median)",
                {row["run"]: row["resting_ms"] for row in table if row["resting_ms"]},
            ),
            Bars(
                "restore to first rows, s (median)",
                {row["run"]: row["restore_s"] for row in table if row["restore_s"]},
            ),
        ]
    lines = [
        Curve(name, [(row[CURVES[name][0]], row["rows_per_s"], row["resting_ms"]) for row in rows])
        for name, rows in curves.items()
        if rows
    ]
    return bars, lines


if __name__ == "__main__":
    main()
