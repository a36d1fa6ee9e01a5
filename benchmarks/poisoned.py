"""Rows of which some are bad in eight ways, under kills, a restore and a fork; then every row is looked for.

    python -m benchmarks.poisoned [--rows 50000] [--bad 200] [--kills 5] [--seed N] [--stream]

Good, quarantined and counted drops have to be the input, row for row; rows that are put through again, ordered twice,
go through once. The process of an epoch is killed (SIGKILL) at any moment of it, and run again.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.common import scratch
from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    SparkSessionResource,
    checkpointed_pipeline,
    run_epoch,
    run_stream,
    spark_sink,
    spark_source,
    spark_stage,
)
from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.paths import metadata as metadata_key
from dagster_ckpt.operations.care.requeue import order_requeue
from tests.records import stored_record
from tests.tables import rows_in

COLUMNS = "id INT, k INT, name STRING, amount INT, at INT"
AVRO = json.dumps(
    {
        "type": "record",
        "name": "row",
        "fields": [{"name": n, "type": kind.lower()} for n, kind in (c.split() for c in COLUMNS.split(", "))],
    }
)
KINDS = ("json", "avro", "exception", "overflow", "text", "key", "late", "oversized")
SPARK = SparkSessionResource(
    master="local[2]",
    conf={
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.jars.packages": "org.apache.spark:spark-avro_2.13:4.2.0",  # there is none of Spark 4.3
    },
)
SHORT, KEYED = "length(name) <= 1000", "k IS NOT NULL"
AT_ONCE = 5
"""Files, each a batch, of an epoch; it is killed as often."""
_ID = re.compile(r"id\W+(\d+)|avro:(\d+)")


def shop(folder: Path, *, is_mended: bool = False) -> CheckpointedPipeline:
    """Texts → parsed → by_key, every good row, and → hourly, which counts them by their time."""

    @spark_source
    def lines(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "feed"))

    @spark_stage(on_error="quarantine", expect={SHORT: "drop", KEYED: "quarantine"})
    def parsed(lines):  # type: ignore[no-untyped-def]
        from pyspark.sql import functions as f
        from pyspark.sql.avro.functions import from_avro

        @f.udf("string", useArrow=False)
        def called(name):  # type: ignore[no-untyped-def]
            if name == "boom" and not is_mended:
                raise LookupError(name)
            return name

        strict = {"mode": "FAILFAST"}
        avro = from_avro(f.expr("try_to_binary(split_part(value, ':', 3), 'hex')"), AVRO, strict)
        is_avro = f.col("value").startswith("avro:")
        json_ = f.from_json(f.when(~is_avro, f.col("value")), COLUMNS, strict)
        row = lines.select(f.when(is_avro, avro).otherwise(json_).alias("row"))
        row = row.select("row.*")
        raw = f.expr("CAST(unhex('C3') AS STRING)")
        name = f.when(row["name"] == "raw", raw).otherwise(called("name"))
        return row.select("id", "k", name.alias("name"), (row["amount"] * 2).alias("amount"), "at")

    @spark_stage(late="keep", output_mode="update")
    def hourly(parsed):  # type: ignore[no-untyped-def]
        from pyspark.sql import functions as f

        timed = parsed.selectExpr("id", "timestamp_seconds(at) AS at").withWatermark("at", "0 seconds")
        return (
            timed.groupBy(f.window("at", "1 hour").alias("w")).count().selectExpr("w.start AS hour", "count")
        )

    @spark_sink(key=["k"])
    def by_key(parsed):  # type: ignore[no-untyped-def]
        return parsed

    @spark_sink(key=["hour"])
    def totals(hourly):  # type: ignore[no-untyped-def]
        return hourly

    @checkpointed_pipeline(name="shop")
    def pipeline() -> None:
        rows = parsed(lines())
        by_key(rows)
        totals(hourly(rows))

    return pipeline  # type: ignore[no-any-return]


def line(number: int, kind: str) -> str:
    """Return a record of a kind; ``good``: a good one."""
    row: dict[str, Any] = {"id": number, "k": number, "name": "ann", "amount": 5, "at": 10_000_000 + number}
    match kind:
        case "json":
            return f'{{"id": {number}, "name"'
        case "avro":
            return f"avro:{number}:{_avro(row)[:-2]}"  # its last byte is missing
        case "exception":
            row["name"] = "boom"
        case "overflow":
            row["amount"] = 2_000_000_000
        case "text":
            row["name"] = "raw"
        case "key":
            row["k"] = None
        case "late":
            row["at"] = 0
        case "oversized":
            row["name"] = "x" * 5000
    return json.dumps(row) if kind != "good" or number % 2 else f"avro:{number}:{_avro(row)}"


def _avro(row: Mapping[str, Any]) -> str:
    """Return a row in Avro's binary form, in hexadecimal digits."""

    def number(value: int) -> bytes:
        found, left = bytearray(), value << 1
        while left > 127:
            found.append(left & 127 | 128)
            left >>= 7
        return bytes([*found, left])

    parts = (number(v) if isinstance(v, int) else number(len(v)) + v.encode() for v in row.values())
    return b"".join(parts).hex()


def coordinator_in(folder: Path) -> CheckpointCoordinatorResource:
    return CheckpointCoordinatorResource(base_dir=str(folder / "state"), num_retained=1000)


def child(folder: Path, given: dict[str, Any]) -> int:
    pipeline = shop(folder, is_mended=given.get("is_mended", False))
    if given.get("fork"):
        pipeline = pipeline.fork("other", table_dir=str(folder / "other"))
    if given.get("stream"):
        run_stream(pipeline, coordinator=coordinator_in(folder), spark=SPARK, settings={"interval": "1 s"})
    else:
        run_epoch(pipeline, coordinator=coordinator_in(folder), spark=SPARK, restore=given.get("restore"))
    return 0


class Poisoned:
    """What was fed, and what is looked for."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder, self.dice = folder, dice
        self.kinds: dict[int, str] = {}
        self.kills = 0
        self.took = 0.0
        (folder / "feed").mkdir(parents=True)

    def feed(self, rows: int, bad: int) -> None:
        first, number = len(self.kinds), len([*(self.folder / "feed").glob("*.txt")])
        before = sum(kind != "good" for kind in self.kinds.values())
        places = {
            first + place: KINDS[(before + n) % len(KINDS)]
            for n, place in enumerate(self.dice.sample(range(rows), bad))
        }
        kinds = {one: places.get(one, "good") for one in range(first, first + rows)}
        self.kinds |= kinds
        aside = self.folder / "feed" / f".{number}"
        aside.write_text("\n".join(line(*one) for one in kinds.items()))
        aside.rename(self.folder / "feed" / f"{number:05d}.txt")

    def run(self, *, kill_after: float | None = None, **given: Any) -> bool:
        """Run an epoch in a process, and tell whether it lived."""
        began = time.monotonic()
        with (self.folder / "child.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.poisoned", "--child", str(self.folder), json.dumps(given)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = process.wait(kill_after)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                self.kills += 1
                return False
        if code:
            raise SystemExit((self.folder / "child.log").read_text()[-3000:])
        self.took = self.took or time.monotonic() - began  # of one with hardly a row
        return True

    def look(self, tables: Path, again: frozenset[str] = frozenset()) -> bool:
        """Compare tables with what was fed; ``again``: kinds that went through the mended code."""
        of = {kind: {n for n, one in self.kinds.items() if one == kind} for kind in ("good", *KINDS)}
        passed = of["good"] | of["late"] | set().union(*(of[kind] for kind in again))
        kept = set().union(*(of[k] for k in KINDS if k not in {"late", "oversized", *again}))
        good = Counter(row["id"] for row in rows_in(tables / "by_key"))
        aside = Counter(_id_of(row) for row in _waiting(tables / "quarantine" / "parsed"))
        late = Counter(_id_of(row) for row in _waiting(tables / "quarantine" / "hourly"))
        counted = sum(row["count"] for row in rows_in(tables / "totals"))
        checks = {
            "good": good == Counter(passed),
            "quarantined": aside == Counter(kept),
            # What is put through again comes late to hours that are over.
            "late": of["late"] <= late.keys() <= of["late"].union(*(of[kind] for kind in again))
            and counted + late.total() == good.total()
            and late.total() == len(late),
            "dropped": self.dropped() == len(of["oversized"]),
        }
        print(
            f"{len(self.kinds):,} rows = {good.total():,} good + {aside.total():,} quarantined + {self.dropped():,} "
            f"dropped; {late.total():,} of the good ones late; {self.kills} kills: {checks}",
            flush=True,
        )
        return all(checks.values())

    def dropped(self) -> int:
        """Return the drops that the checkpoints of the line count."""
        with closing(coordinator_in(self.folder).store()) as store:
            record = stored_record(store, "shop")
        found = 0
        for one in record.completed:
            if one.left_by is None:
                key = metadata_key(one.location.folder)
                stages = decode_metadata(open_storage(one.location.base_uri).read(key), name=key).stages
                found += sum(stage.metrics.broken.get(SHORT, 0) for stage in stages)
        return found

    def latest(self) -> tuple[int, str]:
        with closing(coordinator_in(self.folder).store()) as store:
            newest = stored_record(store, "shop").completed[-1]
        return newest.checkpoint_id, newest.location.uri


def _waiting(table: Path) -> list[dict[str, Any]]:
    return [row for row in rows_in(table) if row["state"] == "quarantined"]


def _id_of(row: dict[str, Any]) -> int:
    found = _ID.search(row["row"])
    assert found is not None, row
    return int(found[1] or found[2])


def measure(folder: Path, rows: int, bad: int, kills: int, dice: random.Random, *, streams: bool) -> bool:
    soak, tables, began = Poisoned(folder, dice), folder / "state" / "tables" / "shop", time.monotonic()
    for _ in range(2):  # from the second file on there is a watermark
        soak.feed(100, 0)
        soak.run()
    middle, files = 0, max(2, kills)
    for first in range(0, files, AT_ONCE):
        for _ in range(first, min(first + AT_ONCE, files)):
            soak.feed(rows // files, bad // files)
        for _ in range(min(AT_ONCE, kills - first)):  # a run goes on where the killed one was
            after = dice.choice((1, 1, 1, 2)) * dice.uniform(0.5, 1.5) * soak.took
            soak.run(kill_after=2 * after if streams else after, stream=streams)
        soak.run()
        middle = middle or soak.latest()[0]
    well = soak.look(tables)
    soak.run(restore={"restore_from": f"chk-{middle}"})
    well &= soak.look(tables)
    soak.run(fork=True, restore={"restore_from": soak.latest()[1], "fork": True})
    well &= soak.look(folder / "other")
    mended = shop(folder, is_mended=True)
    for _ in range(2):
        order_requeue(mended, coordinator_in(folder), "condition = 'LookupError'")
    soak.run(is_mended=True)
    well &= soak.look(tables, frozenset({"exception"}))
    print(f"{time.monotonic() - began:.0f} s: {'row for row' if well else 'NOT EXACT'}")
    return well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--bad", type=int, default=200)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--stream", action="store_true", help="kill streams, which an epoch follows")
    parser.add_argument("--child", nargs=2, default=())
    given = parser.parse_args()
    if given.child:
        return child(Path(given.child[0]), json.loads(given.child[1]))
    with scratch() as folder:
        return not measure(
            folder, given.rows, given.bad, given.kills, random.Random(given.seed), streams=given.stream
        )


if __name__ == "__main__":
    sys.exit(main())
