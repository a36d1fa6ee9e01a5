"""Pipelines as people write them, which nothing that is refused may meet: run as epochs and as a stream."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import CheckpointedPipeline, spark_sink, spark_source, spark_stage
from dagster_ckpt.sinks import CheckpointToken, ForEachCheckpoint
from tests.lab.lab import Lab
from tests.lab.pipelines import reads, sink, stage, wired
from tests.lab.streams import until
from tests.tables import rows_in

PEOPLE = [("ann", "fr"), ("bob", "de")]
VISITS = [(600, "ann"), (610, "bob"), (620, "ann"), (670, "ann"), (670, "ann"), (100_000, "bob")]
"""Second and name; the last one closes every window before it."""
CLOSED = VISITS[:-1]

Rows = Counter[tuple[Any, ...]]


def visiting(folder: Path, told: Callable[[tuple[Any, ...]], None]) -> CheckpointedPipeline:
    """Visits of people, counted and joined in the ways of the Structured Streaming guide, mostly behind channels."""

    @spark_source
    def visits(spark):  # type: ignore[no-untyped-def]
        rows = spark.readStream.schema("second LONG, name STRING").json(str(folder))
        return rows.selectExpr("name", "timestamp_seconds(second) AS at")

    @spark_sink(key=["name"])
    def of_all_time(timed):  # type: ignore[no-untyped-def]
        return timed.groupBy(
            "name"
        ).count()  # a watermark would be of no use here in one query of Spark either

    @spark_stage
    def by_minute(visits):  # type: ignore[no-untyped-def]
        from pyspark.sql.functions import window

        rows = visits.withWatermark("at", "1 second").groupBy(window("at", "1 minute"), "name").count()
        return rows.selectExpr("unix_seconds(window.start) AS minute", "name", "count")

    @spark_sink
    def sessions(visits):  # type: ignore[no-untyped-def]
        from pyspark.sql.functions import session_window

        rows = visits.withWatermark("at", "1 second").groupBy(session_window("at", "15 seconds"), "name")
        return rows.count().selectExpr("unix_seconds(session_window.start) AS begin", "name", "count")

    @spark_sink
    def places(visits):  # type: ignore[no-untyped-def]
        known = visits.sparkSession.createDataFrame(PEOPLE, "name STRING, country STRING")
        return visits.join(known, "name").selectExpr("unix_seconds(at) AS second", "country")

    return wired(
        "visiting",
        visits,
        stage("timed", lambda visits: visits.withWatermark("at", "1 second")),
        of_all_time,
        by_minute,
        sink(
            "minutes",
            lambda by_minute: by_minute.groupBy("minute").sum("count").toDF("minute", "visits"),
            key=["minute"],
        ),
        sessions,
        stage("once", lambda visits: visits.withWatermark("at", "1 second").dropDuplicates(["name", "at"])),
        sink("moments", lambda once: once.groupBy("name").count(), key=["name"]),
        places,
        stage("totals", lambda visits: visits.groupBy("name").count(), output_mode="update"),
        sink(
            "people",
            lambda totals: totals.dropDuplicates(["name"]).selectExpr("'all' AS who").groupBy("who").count(),
            key=["who"],
        ),
        sink(
            "calls",
            lambda totals: numbered(totals),
            to=ForEachCheckpoint(lambda rows, token: collect(rows, token, told)),
        ),
    )


def numbered(totals: Any) -> Any:
    """How often each total has grown, by a function that keeps state of its own."""

    def grown(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        before = state.get[0] if state.exists else 0
        now = max(before, *(int(frame["count"].max()) for frame in frames))
        state.update((now,))
        yield pd.DataFrame({"name": [key[0]], "grown": [now - before]})

    return totals.groupBy("name").applyInPandasWithState(
        grown, "name STRING, grown LONG", "n LONG", "append", "NoTimeout"
    )


def collect(rows: Any, _: CheckpointToken, told: Callable[[tuple[Any, ...]], None]) -> None:
    for row in rows.read_all().to_pylist():
        told((row["name"], row["grown"]))


def put(folder: Path, *visits: tuple[int, str]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"second": second, "name": name}) for second, name in visits]
    temporary = folder.with_name("arriving")
    temporary.write_text("\n".join(lines))
    temporary.rename(folder / f"{len(list(folder.iterdir()))}.json")


EXPECTED: dict[str, Rows] = {
    "of_all_time": Counter({("ann", 4): 1, ("bob", 2): 1}),
    "minutes": Counter({(600, 3): 1, (660, 2): 1}),
    "sessions": Counter({(600, "ann", 1): 1, (610, "bob", 1): 1, (620, "ann", 1): 1, (670, "ann", 2): 1}),
    "moments": Counter({("ann", 3): 1, ("bob", 2): 1}),
    "places": Counter((second, dict(PEOPLE)[name]) for second, name in VISITS),
    "people": Counter({("all", 2): 1}),
}


def remembering(folder: Path) -> CheckpointedPipeline:
    """Who has visited, forgotten after an hour of processing time, as in ``transformWithState`` by a time to live."""

    def visited(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        if state.hasTimedOut:
            state.remove()
            return
        visits = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
        state.update((visits,))
        state.setTimeoutDuration(3_600_000)
        yield pd.DataFrame({"name": [key[0]], "visits": [visits]})

    return wired(
        "remembering",
        reads("visits", "second LONG, name STRING", folder),
        sink(
            "guests",
            lambda visits: visits.groupBy("name").applyInPandasWithState(
                visited, "name STRING, visits LONG", "n LONG", "update", "ProcessingTimeTimeout"
            ),
            key=["name"],
        ),
    )


def shown(tables: Path) -> dict[str, Rows]:
    """What the tables hold."""
    found: dict[str, Rows] = {}
    for name in EXPECTED:
        found[name] = Counter(tuple(row.values()) for row in rows_in(tables / name))
    return found


def grown(calls: list[tuple[Any, ...]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for name, more in calls:
        sums[name] += more
    return sums


@pytest.mark.nightly
def test_ordinary_pipelines_run_as_epochs(lab: Lab, tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []
    pipeline = visiting(tmp_path / "visits", calls.append)
    for visits in (CLOSED[:3], CLOSED[3:], VISITS[-1:]):
        put(tmp_path / "visits", *visits)
        lab.succeeds(pipeline)
    assert shown(lab.tables) == EXPECTED
    assert grown(calls) == {"ann": 4, "bob": 2}


def test_ordinary_pipelines_run_as_a_stream(lab: Lab, tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []
    put(tmp_path / "visits", *CLOSED)
    stream = lab.start(visiting(tmp_path / "visits", calls.append), interval=1.0, operator_chaining=True)
    until(lambda: sum(shown(lab.tables)["places"].values()) == len(CLOSED), stream)
    put(tmp_path / "visits", VISITS[-1])
    until(lambda: shown(lab.tables) == EXPECTED and grown(calls) == {"ann": 4, "bob": 2}, stream)
    assert stream.failed() == []
    stream.stop()


@pytest.mark.nightly
def test_an_epoch_ends_whose_state_has_timers_of_processing_time(lab: Lab, tmp_path: Path) -> None:
    """Spark always has one more batch for such state, so one that processes what has arrived was never done."""
    for visits, expected in ((CLOSED[:3], {"ann": 2, "bob": 1}), (CLOSED[3:], {"ann": 4, "bob": 1})):
        put(tmp_path / "visits", *visits)
        lab.succeeds(remembering(tmp_path / "visits"))
        assert {row["name"]: row["visits"] for row in rows_in(lab.tables / "guests")} == expected
