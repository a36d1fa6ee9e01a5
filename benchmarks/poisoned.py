"""Rows of which some are bad in eight ways, under kills, a restore and a fork; then every row is looked for.

    python -m benchmarks.poisoned --rows 1000000 --bad 1000 --kills 100

Good, quarantined and counted drops have to be the input, row for row; rows that are put through again, ordered twice,
go through once. Bad rows come in bursts of eight. Each life of the stream is killed (SIGKILL) at some moment of a
batch, behind a checkpoint of its own; one in ten before that, at any moment of its start.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
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
from dagster_ckpt.operations.care.maintain import order_requeue
from dagster_ckpt.spark.epoch import drains
from dagster_ckpt.spark.streaming import running_stage
from tests.records import stored_record
from tests.spark_session import PATIENT_STARTS, SPARK_JVM
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
        "spark.sql.streaming.pollingDelay": "200ms",
    },
)
SHORT, KEYED = "length(name) <= 1000", "k IS NOT NULL"
FILES_A_LIFE = 2
"""Each is a batch: one that a life begins with, and one that comes behind its first checkpoint."""
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
    return CheckpointCoordinatorResource(base_dir=str(folder / "state"), num_retained=5000)


def child(folder: Path, given: dict[str, Any]) -> int:
    # A busy machine is no finding.
    drains.MAX_START_ATTEMPTS = running_stage.MAX_START_ATTEMPTS = PATIENT_STARTS
    pipeline = shop(folder, is_mended=given.get("is_mended", False))
    if given.get("fork"):
        pipeline = pipeline.fork("other", table_dir=str(folder / "other"))
    if given.get("stream"):
        run_stream(pipeline, coordinator=coordinator_in(folder), spark=SPARK, settings={"interval": "3 s"})
    else:
        run_epoch(pipeline, coordinator=coordinator_in(folder), spark=SPARK, restore=given.get("restore"))
    return 0


class Poisoned:
    """What was fed, and what is looked for."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder, self.dice = folder, dice
        self.kinds: dict[int, str] = {}
        self.kills: Counter[str] = Counter()
        self.took = 0.0
        (folder / "feed").mkdir(parents=True)

    def feed(self, rows: int, bad: int) -> None:
        first, number = len(self.kinds), len([*(self.folder / "feed").glob("*.txt")])
        before = sum(kind != "good" for kind in self.kinds.values())
        bursts = self.dice.sample(range(0, rows, len(KINDS)), -(-bad // len(KINDS)))
        places = [first + burst + n for burst in bursts for n in range(len(KINDS))][:bad]
        bad_ones = {place: KINDS[(before + n) % len(KINDS)] for n, place in enumerate(places)}
        kinds = {one: bad_ones.get(one, "good") for one in range(first, first + rows)}
        self.kinds |= kinds
        aside = self.folder / "feed" / f".{number}"
        aside.write_text("\n".join(line(*one) for one in kinds.items()))
        aside.rename(self.folder / "feed" / f"{number:05d}.txt")

    def run(self, **given: Any) -> None:
        """Run an epoch to its end."""
        began = time.monotonic()
        if self._started(**given).wait():
            raise self._failed()
        self.took = self.took or time.monotonic() - began  # of one with hardly a row

    def live(self, feed: Callable[[], None]) -> None:
        """Run a stream, and kill it."""
        before = self._checkpoints()
        feed()
        process = self._started(stream=True)
        if self.dice.random() < 0.1:
            time.sleep(self.dice.uniform(0, self.took))
        else:
            self._wait(process, lambda: self._checkpoints() > before)
            feed()
            self._wait(process, self._is_in_a_batch)
            time.sleep(self.dice.uniform(0, self.took / 2))
        is_hit = self._is_in_a_batch()
        if process.poll() is not None:
            raise self._failed()
        if self.dice.random() < 0.25:
            process.kill()  # its Java hears of it, and may do something yet
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.kills += Counter(
            {"all": 1, "in a batch": is_hit, "behind a checkpoint": self._checkpoints() > before}
        )
        told = ", ".join(f"{number} {name}" for name, number in self.kills.items())
        print(f"{len(self.kinds):,} rows fed; kills: {told}", flush=True)

    def _started(self, **given: Any) -> subprocess.Popen[bytes]:
        with (self.folder / "child.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "benchmarks.poisoned", "--child", str(self.folder), json.dumps(given)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "SPARK_SUBMIT_OPTS": SPARK_JVM},
            )

    def _wait(self, process: subprocess.Popen[bytes], happens: Callable[[], bool]) -> None:
        while not happens():
            if process.poll() is not None:
                raise self._failed()
            time.sleep(0.1)

    def _failed(self) -> SystemExit:
        return SystemExit((self.folder / "child.log").read_text()[-3000:])

    def _checkpoints(self) -> int:
        return len([*(self.folder / "state" / "checkpoints" / "shop").glob("chk-*/_metadata")])

    def _is_in_a_batch(self) -> bool:
        """Tell whether a batch is planned and not committed, of any stage of the newest attempt."""
        attempts = (self.folder / "state" / "work" / "shop").glob("attempt-*")
        newest = max(attempts, key=lambda one: int(one.name.rpartition("-")[2]))
        return any(_last(query / "offsets") > _last(query / "commits") for query in newest.glob("*/query"))

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
            f"dropped; {late.total():,} of the good ones late: {checks}",
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


def _last(folder: Path) -> int:
    return max((int(one.name) for one in folder.glob("*") if one.name.isdecimal()), default=-1)


def _waiting(table: Path) -> list[dict[str, Any]]:
    return [row for row in rows_in(table) if row["state"] == "quarantined"]


def _id_of(row: dict[str, Any]) -> int:
    found = _ID.search(row["row"])
    assert found is not None, row
    return int(found[1] or found[2])


def measure(folder: Path, rows: int, bad: int, kills: int, dice: random.Random) -> bool:
    soak, tables, began = Poisoned(folder, dice), folder / "state" / "tables" / "shop", time.monotonic()
    for _ in range(2):  # from the second file on there is a watermark
        soak.feed(100, 0)
        soak.run()
    files, fed = max(2, kills * FILES_A_LIFE), 0

    def feed() -> None:
        nonlocal fed
        soak.feed(*(total * (fed + 1) // files - total * fed // files for total in (rows, bad)))
        fed += 1

    middle = soak.latest()[0]
    for life in range(kills):
        soak.live(feed)
        middle = soak.latest()[0] if life < kills * 5 // 6 else middle
    while fed < files:
        feed()
    soak.run()
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
    parser.add_argument("--child", nargs=2, default=())
    given = parser.parse_args()
    if given.child:
        return child(Path(given.child[0]), json.loads(given.child[1]))
    with scratch() as folder:
        return not measure(folder, given.rows, given.bad, given.kills, random.Random(given.seed))


if __name__ == "__main__":
    sys.exit(main())
