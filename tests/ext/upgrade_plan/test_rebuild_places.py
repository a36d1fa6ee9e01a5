"""A stage is rebuilt whatever keeps its input and its rows: a topic, databases, Iceberg; and beside a stream."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as f

from dagster_ckpt import CheckpointedPipeline, run_stream
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.readers.load_table import load_table
from dagster_ckpt.programs import StreamEnd
from dagster_ckpt.sinks import IcebergTable, SqlTable
from tests.ext.upgrade_plan.test_rebuild import (
    OF,
    POINTS,
    Killed,
    Steps,
    largest,
    rebuilding,
    shop,
    summed,
    truth,
)
from tests.lab.lab import Lab, failure_text, lab  # noqa: F401
from tests.progress import wait_until
from tests.spark.epoch.small_pipeline import (
    Feed,
    feed,  # noqa: F401
)


@dataclass
class Place:
    """A shop with the figures of its customers in a place, and maybe its orders in a topic."""

    lab: Lab
    feed: Feed
    to: Any = None
    broker: str = ""
    topic: str = ""
    options: dict[str, str] = field(default_factory=lambda: {"startingOffsets": "earliest"})

    def order(self, *orders: tuple[str, int]) -> None:
        self.feed.order(*orders)
        if self.topic:
            producer = Producer({"bootstrap.servers": self.broker})
            for customer, amount in orders:
                producer.produce(self.topic, json.dumps({"customer": customer, "amount": amount}))
            assert producer.flush(60) == 0

    def code(self, count: Callable[[Any], Any], **options: str) -> CheckpointedPipeline:
        made = shop(self.feed.folder, count)
        stages = dict(made.stages)
        stages[StageUid("totals")] = replace(stages[StageUid("totals")], to=self.to)
        if self.topic:
            stages[StageUid("counted")] = replace(stages[StageUid("counted")], fn=self._of_topic(options))
        return replace(made, stages=stages)

    def _of_topic(self, options: dict[str, str]) -> Callable[[Any], Any]:
        given = {"kafka.bootstrap.servers": self.broker, "subscribe": self.topic, **(options or self.options)}

        def counted(spark: Any) -> Any:
            rows = spark.readStream.format("kafka").options(**given).load()
            said = f.from_json(rows["value"].cast("string"), "customer STRING, amount LONG")
            return rows.select(said.alias("order")).select("order.*")

        return counted

    def shows(self) -> list[tuple[Any, ...]]:
        found = load_table(self.code(summed), "totals", coordinator=self.lab.coordinator).to_arrow()
        return sorted((row["customer"], row["amount"]) for row in found.to_pylist())

    def has(self, of: Callable[[list[int]], int]) -> bool:
        try:
            return self.shows() == truth(self.feed, of)
        except NotFound:
            return False

    def epoch(self, count: Callable[[Any], Any]) -> None:
        result = self.lab.run(self.code(count))
        assert result.success, failure_text(result)


@pytest.fixture
def place(lab: Lab, feed: Feed, request: pytest.FixtureRequest) -> Place:  # noqa: F811
    """A shop that has run three epochs, of a kind."""
    made = place_of(request.param, lab, feed, request)
    for amount in (3, 9, 4):
        made.order(("ann", amount), ("bob", amount + 1))
        made.epoch(summed)
    assert made.shows() == truth(made.feed, sum)
    return made


def place_of(kind: str, lab: Lab, feed: Feed, request: pytest.FixtureRequest) -> Place:  # noqa: F811
    if kind == "kafka":
        broker = request.getfixturevalue("kafka_for_spark").address
        topic = f"orders_{time.time_ns()}"
        admin = AdminClient({"bootstrap.servers": broker})
        admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(60)
        return Place(lab, replace(feed, orders=[]), broker=broker, topic=topic)
    url = f"sqlite:///{lab.folder}/t.db" if kind == "sqlite" else ""
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else url
    return Place(lab, feed, IcebergTable("db.totals") if kind == "iceberg" else SqlTable(url, "totals"))


@pytest.mark.parametrize("place", ["sqlite", "postgres", "iceberg", "kafka"], indirect=True)
@pytest.mark.parametrize("points", [POINTS[:0], POINTS], ids=["to the end", "killed"])
def test_at_any_kill_one_of_the_two_serves_in_its_place_and_the_rows_are_those_of_a_run_from_scratch(
    place: Place, spark: Any, points: tuple[Any, ...]
) -> None:
    old, new = summed, largest
    for point in points:
        place.order(("ann", 60 + len(place.feed.orders)), ("bob", 1))
        steps = Steps()
        with pytest.MonkeyPatch.context() as patch:
            steps.kill_in(patch, point)
            with pytest.raises(Killed):
                rebuilding(place.lab, place.code(new), spark, step=steps).carry_out()
        shown = replace(place.feed, orders=place.feed.orders[:-2])
        assert place.shows() in (truth(shown, OF[old]), truth(place.feed, OF[new])), point
        place.order(("eve", 5))
        [serves] = [code for code in (new, old) if place.lab.run(place.code(code)).success]
        assert place.shows() == truth(place.feed, OF[serves]), point
        if serves is old:
            rebuilding(place.lab, place.code(new), spark).carry_out()
        assert place.shows() == truth(place.feed, OF[new]), point
        old, new = new, old
    place.order(("cid", 5))
    rebuilding(place.lab, place.code(new), spark).carry_out(again=True)
    assert place.shows() == truth(place.feed, OF[new])
    place.order(("ann", 500), ("dan", 2))
    place.epoch(new)
    assert place.shows() == truth(place.feed, OF[new])


@pytest.mark.parametrize("place", ["kafka"], indirect=True)
def test_it_begins_where_its_start_mode_says_whatever_its_code_does(place: Place, spark: Any) -> None:
    here = place.lab
    moment = datetime.now(UTC)
    wait_until(lambda: datetime.now(UTC) > moment, "the clock has gone on")
    place.order(("ann", 5), ("bob", 6))
    late = Place(here, replace(place.feed, orders=place.feed.orders[-2:]))
    new, beginning = place.code(largest, startingOffsets="latest"), {"startingTimestamp": "0"}
    for mode, shown in ((moment.isoformat(), late.feed), ("from-beginning", place.feed)):
        rebuilding(here, new, spark, start_mode=mode).carry_out()
        assert place.shows() == truth(shown, max), mode
    rebuilding(here, place.code(largest), spark, start_mode="from-now").carry_out()
    assert place.shows() == []
    place.order(("ann", 8))
    place.epoch(largest)
    assert place.shows() == [("ann", 8)]
    for given, mode, why in (
        (place.code(largest, **beginning), "from-beginning", "startingtimestamp, which is stronger"),
        (place.code(largest, failOnDataLoss="true"), "", "give a start mode"),
        (shop(place.feed.folder, largest), "from-now", "Spark reads all of a folder"),
        (new, "yesterday", "is none of from-beginning, from-now"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            rebuilding(here, given, spark, start_mode=mode).carry_out()


def test_beside_a_stream_it_catches_up_and_takes_over_once_the_stream_has_been_stopped(
    lab: Lab,  # noqa: F811
    feed: Feed,  # noqa: F811
    spark: Any,
) -> None:
    place, ends = Place(lab, feed), list[StreamEnd | BaseException]()

    def stream(count: Callable[[Any], Any], stopping: threading.Event) -> threading.Thread:
        def run() -> None:
            try:
                of = {"settings": {"interval": 0.2}, "stopping": stopping}
                ends.append(run_stream(place.code(count), coordinator=lab.coordinator, spark=spark, **of))
            except BaseException as error:
                ends.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    stopping = threading.Event()
    threads = [stream(summed, stopping)]
    try:
        place.order(("ann", 3), ("bob", 1))
        wait_until(lambda: bool(ends) or place.has(sum), "its rows are published")

        def step(name: str) -> None:
            if name.startswith("stopping"):
                place.order(("ann", 9), ("cid", 2))
                wait_until(lambda: bool(ends) or place.has(sum), "the stream serves until it is stopped")
                assert ends == []

        rebuilding(lab, place.code(largest), spark, stops_stream=True, step=step).carry_out()
        assert place.has(max)
        [end] = ends
        assert isinstance(end, StreamEnd), end
        assert end.savepoint
        threads.append(stream(largest, stopping))
        place.order(("ann", 50))
        wait_until(lambda: len(ends) > 1 or place.has(max), "the new code's stream goes on")
        assert len(ends) == 1
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
