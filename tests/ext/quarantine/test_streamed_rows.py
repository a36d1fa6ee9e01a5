"""Bad and late rows of a stream, put through again while it runs, under another name, and after a restore."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dagster_ckpt import (
    CheckpointedPipeline,
    checkpointed_pipeline,
    run_stream,
    spark_sink,
    spark_source,
    spark_stage,
)
from dagster_ckpt.operations.care.maintain import order_requeue
from tests.ext.quarantine.test_bad_rows import EXPECT, numbers, put, put_lines, sales
from tests.lab.lab import Lab, failure_text, lab
from tests.progress import Sampled, processor_seconds, wait_until
from tests.tables import rows_in

__all__ = ["lab"]

pytestmark = pytest.mark.nightly
COLUMNS = "n INT, name STRING, amount INT, at INT"


def shop(folder: Path, least: int = 0, **settings: Any) -> CheckpointedPipeline:
    """Texts → parsed, where boom raises until the folder has ``mended`` → paid, and → by_minute, which counts."""

    @spark_source
    def lines(spark):  # type: ignore[no-untyped-def]
        return spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "feed"))

    @spark_stage(
        uid=settings.get("uid", "parsed"),
        previous_uids=["parsed"] if settings else [],
        on_error="quarantine",
        expect={f"amount > {least}": "quarantine", "name <> 'dropped'": "drop", "name <> 'odd'": "warn"},
    )
    def parsed(lines):  # type: ignore[no-untyped-def]
        from pyspark.sql import functions as f

        @f.udf("string", useArrow=False)
        def called(name):  # type: ignore[no-untyped-def]
            if name == "boom" and not (folder / "mended").exists():
                raise LookupError(name)
            return name

        row = lines.select(f.from_json("value", COLUMNS, {"mode": "FAILFAST"}).alias("row")).select("row.*")
        return row.withColumn("name", called("name"))

    @spark_stage(late="keep", output_mode="update")
    def by_minute(parsed):  # type: ignore[no-untyped-def]
        from pyspark.sql import functions as f

        timed = parsed.selectExpr("n", "timestamp_seconds(at) AS at").withWatermark("at", "0 seconds")
        counted = timed.groupBy(f.window("at", "1 minute").alias("w")).count()
        return counted.selectExpr("w.start AS minute", "count")

    @spark_sink(key=["n"])
    def paid(parsed):  # type: ignore[no-untyped-def]
        return parsed.select("n", "name", "amount")

    @spark_sink(key=["minute"])
    def totals(by_minute):  # type: ignore[no-untyped-def]
        return by_minute

    @checkpointed_pipeline(name="shop")
    def pipeline() -> None:
        rows = parsed(lines())
        paid(rows)
        totals(by_minute(rows))

    return pipeline  # type: ignore[no-any-return]


def row(n: int, name: str = "ann", amount: int = 5, at: int | None = None) -> str:
    return json.dumps({"n": n, "name": name, "amount": amount, "at": 1_000 * n if at is None else at})


@contextmanager
def streamed(lab: Lab, pipeline: CheckpointedPipeline, spark: SparkSession, **restore: Any) -> Iterator[Any]:
    """Run a stream as long as the block; yields what waits until something holds of its tables."""
    stopping, ended = threading.Event(), list[BaseException]()

    def stream() -> None:
        try:
            run_stream(
                pipeline,
                coordinator=lab.coordinator,
                spark=spark,
                settings={"interval": 0.5},
                restore=restore or None,
                stopping=stopping,
            )
        except BaseException as error:
            ended.append(error)

    def check() -> None:
        if ended:
            raise ended[0]

    def until(holds: Callable[[], bool]) -> None:
        moves = Sampled(lambda: int(processor_seconds() / 3))
        wait_until(holds, "the tables show it", check=check, moves=moves, every=0.2)

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        yield until
    finally:
        stopping.set()
        thread.join()
    check()


@pytest.mark.parametrize("lab", [{"num_retained": 5000}], indirect=True)
def test_bad_and_late_rows_of_a_stream_go_through_again_once(
    lab: Lab, tmp_path: Path, spark: SparkSession
) -> None:
    feed, pipeline = tmp_path / "feed", shop(tmp_path)

    def paid() -> list[int]:
        return sorted(one["n"] for one in rows_in(lab.tables / "paid"))

    def kept() -> Counter[tuple[str, str, int]]:
        rows = rows_in(lab.tables / "quarantine" / "parsed")
        return Counter((one["condition"], one["state"], one["tries"]) for one in rows)

    def late() -> list[int]:
        rows = rows_in(lab.tables / "quarantine" / "by_minute")
        return sorted(json.loads(one["row"])["n"] for one in rows)

    bad = {
        ("LookupError", "quarantined", 1): 2,
        ("amount > 0", "quarantined", 1): 2,
        ("MALFORMED_RECORD_IN_PARSING", "quarantined", 1): 1,
    }
    with streamed(lab, pipeline, spark) as until:
        put_lines(feed, row(10), row(11, "boom"), row(12, amount=0), '{"n": 13, "na')
        put_lines(feed, row(14, "odd"), row(15, "dropped"), row(16, "boom"), row(17, amount=-1))
        until(lambda: paid() == [10, 14] and kept() == bad)
        put_lines(feed, row(18, at=1), row(19))
        until(lambda: paid() == [10, 14, 18, 19] and late() == [18])
        before = lab.record(pipeline).completed[-1].checkpoint_id

        (tmp_path / "mended").touch()
        wheres = ["condition = 'LookupError'", "tries < 2 AND condition <> 'MALFORMED_RECORD_IN_PARSING'"]
        threads = [
            threading.Thread(target=order_requeue, args=(pipeline, lab.coordinator, where))
            for where in wheres * 2
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(order.where for order in lab.record(pipeline).requeue) == sorted(wheres)
        again = {
            ("LookupError", "requeued", 2): 2,
            ("amount > 0", "quarantined", 2): 2,
            ("MALFORMED_RECORD_IN_PARSING", "quarantined", 1): 1,
        }
        until(lambda: paid() == [10, 11, 14, 16, 18, 19] and kept() == again)  # and no row has come
        until(lambda: not lab.record(pipeline).requeue)
        put_lines(feed, row(20), row(21, amount=0), row(22))
        again["amount > 0", "quarantined", 1] = 1
        until(lambda: paid() == [10, 11, 14, 16, 18, 19, 20, 22] and kept() == again)
    assert kept() == again, "no order is taken twice"
    assert late() == [11, 16, 18], "what goes through again comes late to minutes that are over"

    order_requeue(pipeline, lab.coordinator, "condition = 'amount > 0' AND tries = 2")
    renamed = shop(tmp_path, -1, uid="checked")
    with streamed(lab, renamed, spark) as until:
        put_lines(feed, row(23))
        until(lambda: paid()[-1] == 23 and not lab.record(renamed).requeue)
    assert paid() == [10, 11, 12, 14, 16, 18, 19, 20, 22, 23], "ordered under its former name"
    assert kept()["amount > 0", "requeued", 3] == 1
    assert kept()["amount > -1", "quarantined", 3] == 1

    assert late() == [11, 12, 16, 18]

    order_requeue(renamed, lab.coordinator, "condition = 'amount > 0' AND tries = 1")
    back = lab.run(shop(tmp_path, uid="checked"), restore_from=f"chk-{before}")
    assert back.success, failure_text(back)
    assert paid() == [10, 14, 18, 19, 20, 22, 23], "as it was, and what was read again"
    waiting = {("amount > 0", "quarantined", 2): 2, ("amount > 0", "quarantined", 1): 1}
    assert kept() == bad | waiting, "an order that nothing had taken is of the rows there are"
    assert late() == [18]


@pytest.mark.parametrize("lab", [{"num_retained": 5000}], indirect=True)
def test_an_order_is_taken_by_an_idle_stage_that_reads_its_source_itself(
    lab: Lab, tmp_path: Path, spark: SparkSession
) -> None:
    put(tmp_path / "feed", (1, "ann", 5), (2, "bob", 0))
    lab.succeeds(sales(tmp_path / "feed"))
    mended = sales(tmp_path / "feed", {**EXPECT, "amount > 0": "warn", "amount > -1": "quarantine"})
    with streamed(lab, mended, spark) as until:
        until(lambda: len(lab.record(mended).completed) > 2)
        order_requeue(mended, lab.coordinator)
        until(lambda: numbers(lab.tables / "paid") == [1, 2] and not lab.record(mended).requeue)
        put(tmp_path / "feed", (3, "eve", 5))
        until(lambda: numbers(lab.tables / "paid") == [1, 2, 3])
