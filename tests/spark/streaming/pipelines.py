"""Small pipelines whose truth is known without Spark: a diamond, two sources that meet, bounded sources."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dagster_ckpt import CheckpointedPipeline
from tests.checker.record import Witness
from tests.lab.pipelines import sink, source, stage, wired
from tests.tables import rows_in

SCHEMA = "n INT, key STRING"
KEYS = 7


@dataclass
class Numbers:
    """Files of numbers that a source watches, and what was put there."""

    folder: Path
    count: int = 0
    _files: int = field(default=0)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def witness(self) -> Witness:
        """Who records what arrives, and what readers see of the totals."""
        path = self.folder.with_name(f"{self.folder.name}-history.jsonl")
        return Witness(path, {"totals": "keyed"}, lambda: _as_rows(expected_totals(self.count)))

    def sees(self, tables: Path, **more: bool) -> None:
        """Insist that a reader sees nothing wrong in the totals; ``settled``: nor anything missing."""
        self.witness.sees(lambda: _as_rows(read_totals(tables)), **more)

    def put(self, rows: int) -> None:
        """Let one more file arrive."""
        witness = self.witness
        numbers = range(self.count, self.count + rows)
        self.count += rows
        witness.arrives()
        self._files += 1
        temporary = self.folder.parent / f".{self.folder.name}-{self._files}"
        temporary.write_text("\n".join(json.dumps({"n": n, "key": f"k{n % KEYS}"}) for n in numbers))
        os.utime(temporary, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
        temporary.rename(self.folder / f"{self._files:06d}.json")


def read_numbers(spark, folder: Path):  # type: ignore[no-untyped-def]
    """A batch per file."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.option("maxFileAge", "9999d").json(str(folder))


def count(rows):  # type: ignore[no-untyped-def]
    from pyspark.sql import functions as f

    return rows.groupBy("key").agg(f.sum("n").alias("total"), f.count("path").alias("times"))


def diamond(folder: Path, *, boundedness: str = "unbounded", **checkpointing: Any) -> CheckpointedPipeline:
    """One source, two paths of different speed, and where they meet: rows (append) and totals (per key)."""

    return wired(
        "diamond",
        source("numbers", lambda spark: read_numbers(spark, folder), boundedness=boundedness),
        stage("fast", lambda numbers: numbers.selectExpr("n", "key", "'fast' AS path")),
        stage(
            "slow",
            lambda numbers: numbers.selectExpr("n", "key", "'slow' AS path"),
            max_entries_per_trigger=1,
        ),
        stage("met", lambda fast, slow: slow.unionByName(fast)),
        sink("rows", lambda met: met.select("n", "path")),
        sink("totals", lambda met: count(met), key=["key"]),
        checkpointing=checkpointing,
    )


def short_diamond(folder: Path, **checkpointing: Any) -> CheckpointedPipeline:
    """One source, two paths of different speed, and a table with state (totals per key) where they meet."""

    return wired(
        "short_diamond",
        source("numbers", lambda spark: read_numbers(spark, folder)),
        stage("fast", lambda numbers: numbers.selectExpr("n", "key", "'fast' AS path")),
        stage(
            "slow",
            lambda numbers: numbers.selectExpr("n", "key", "'slow' AS path"),
            max_entries_per_trigger=1,
        ),
        sink("totals", lambda fast, slow: count(slow.unionByName(fast)), key=["key"]),
        checkpointing=checkpointing,
    )


def line(folder: Path, **checkpointing: Any) -> CheckpointedPipeline:
    """Four stages in a row, the last one a table with state: the same totals as ``short_diamond``."""

    return wired(
        "line",
        source("numbers", lambda spark: read_numbers(spark, folder)),
        stage(
            "fast", lambda numbers: numbers.selectExpr("n", "key", "explode(array('fast', 'slow')) AS path")
        ),
        stage("slow", lambda fast: fast.select("n", "key", "path"), max_entries_per_trigger=1),
        sink("totals", lambda slow: count(slow), key=["key"]),
        checkpointing=checkpointing,
    )


def straight(folder: Path, **checkpointing: Any) -> CheckpointedPipeline:
    """One source and one table of its rows."""

    return wired(
        "straight",
        source("numbers", lambda spark: read_numbers(spark, folder)),
        sink("rows", lambda numbers: numbers.selectExpr("n", "'fast' AS path")),
        checkpointing=checkpointing,
    )


def read_rows(tables: Path) -> Counter[tuple[int, str]]:
    return Counter((row["n"], row["path"]) for row in rows_in(tables / "rows"))


def read_totals(tables: Path) -> dict[str, tuple[int, int]]:
    found = rows_in(tables / "totals")
    assert len({row["key"] for row in found}) == len(found), "a key is in the table twice"
    return {row["key"]: (row["total"], row["times"]) for row in found}


def _as_rows(totals: dict[str, tuple[int, int]]) -> dict[str, Counter[Any]]:
    return {"totals": Counter((key, *values) for key, values in totals.items())}


def expected_rows(count: int) -> Counter[tuple[int, str]]:
    return Counter((n, path) for n in range(count) for path in ("fast", "slow"))


def expected_totals(count: int) -> dict[str, tuple[int, int]]:
    totals: dict[str, tuple[int, int]] = {}
    for n in range(count):
        total, times = totals.get(f"k{n % KEYS}", (0, 0))
        totals[f"k{n % KEYS}"] = (total + 2 * n, times + 2)
    return totals
