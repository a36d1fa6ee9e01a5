"""Channel source and sink under real Spark queries: barriers held, batches replayed, every type kept."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from dagster_ckpt.core.ids import BatchId, CheckpointId, LogPosition, StageUid
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.channel.entries import AlreadyAppended, Appended, DataEntry, Release
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.schema import channel_schema_json, conformed
from dagster_ckpt.spark.channel.sink import ChannelSink
from dagster_ckpt.spark.channel.source import read_channel
from dagster_ckpt.spark.files import batch_folder_name, parquet_files
from dagster_ckpt.spark.plan.errors import changed_query
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch, read_offsets
from tests.progress import source_of, wait_until

KV = "k long, v long"


@pytest.fixture
def stop_queries(spark: SparkSession) -> Iterator[None]:
    """No query outlives its test."""
    yield
    for query in spark.streams.active:
        query.stop()


def kv_log(folder: Path, spark: SparkSession) -> ChannelLog:
    log = ChannelLog.create(folder)
    log.write_schema(channel_schema_json(spark.createDataFrame([], KV).schema))
    return log


def put(log: ChannelLog, batch: int, keys: range, value: int) -> None:
    """Append a batch as a stage would, without a query."""
    folder = log.data_folder / batch_folder_name(batch)
    folder.mkdir(parents=True)
    rows = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([value] * len(keys), pa.int64())})
    pq.write_table(rows, folder / "part.parquet")
    log.append_data(BatchId(batch), parquet_files(log.directory, folder))


def put_barrier(log: ChannelLog, checkpoint: int) -> None:
    assert isinstance(log.append_barrier(CheckpointId(checkpoint), timestamp=0.0), Appended)


def run(
    frame: DataFrame, sink: Callable[[DataFrame, int], object], query_dir: Path, mode: str = "append"
) -> None:
    """Run a query until its input is exhausted or held."""
    (
        frame.writeStream.outputMode(mode)
        .foreachBatch(sink)
        .option("checkpointLocation", str(query_dir))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def positions(query_dir: Path) -> list[int]:
    """The position each input of a query has committed."""
    batch = latest_committed_batch(query_dir)
    assert batch is not None
    return [json.loads(text)["pos"] for text in read_offsets(query_dir, batch).values()]


class Collected:
    """A sink that keeps the rows of each batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[object, ...]]] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = sorted(tuple(row) for row in frame.collect())

    @property
    def rows(self) -> list[tuple[object, ...]]:
        return sorted(row for rows in self.batches.values() for row in rows)


ALL_TYPES = """
    SELECT id,
      IF(id % 3 = 0, NULL, CAST(id AS BYTE)) b, CAST(id AS SHORT) s, CAST(id AS INT) i, id % 2 = 0 AS t,
      CAST(id / 7.0 AS FLOAT) f, IF(id = 1, double('NaN'), id / 3.0D) d,
      CAST(id AS DECIMAL(5, 2)) d1, CAST(id / 7 AS DECIMAL(18, 6)) d2, CAST(-id AS DECIMAL(38, 18)) d3,
      IF(id = 2, NULL, CONCAT('ü', id)) str, CAST(CAST(id AS STRING) AS BINARY) bin,
      date_add(DATE'1850-02-28', CAST(id * 30000 AS INT)) da,
      timestamp_micros(id * 1234567890123457 - 4000000000000000) ts,
      CAST(TIMESTAMP_NTZ'1899-12-31 23:59:59.999999' AS TIMESTAMP_NTZ) ntz,
      make_dt_interval(CAST(id AS INT), 1, 2, 3.456789) iv,
      IF(id = 0, NULL, array(id, NULL)) arr, map(CONCAT('k', id), array(1.5D, NULL)) m,
      named_struct('a', id, 'b', array(named_struct('c', DATE'2020-01-01', 'd', map(1, CAST(id AS DECIMAL(9,
      1))))))
        AS st,
      parse_json(CONCAT('{"x": [', id, ', null]}')) var,
      array(timestamp_micros(id)) tsa, CAST(NULL AS VOID) IS NULL AS nil, id AS `dotted.name`
    FROM range(5)
"""


def in_full(frame: DataFrame) -> list[tuple[object, ...]]:
    """Every value as Spark prints it in full, microseconds and nested fields included."""
    texts = [
        "to_json(var)" if name == "var" else "hex(bin)" if name == "bin" else f"CAST(`{name}` AS STRING)"
        for name in frame.columns
    ]
    return [tuple(row) for row in frame.selectExpr(*texts).collect()]


def test_rows_of_every_common_type_pass_a_channel_unchanged(
    spark: SparkSession, tmp_path: Path, stop_queries: None
) -> None:
    rows = spark.sql(ALL_TYPES)
    expected = in_full(rows)
    log = ChannelLog.create(tmp_path / "log")
    ChannelSink(log, rows.schema).append(rows, BatchId(0))
    found: list[tuple[object, ...]] = []
    frame = read_channel(spark, str(tmp_path / "log"))
    assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [
        (f.name, f.dataType.simpleString()) for f in rows.schema
    ]
    run(frame, lambda batch, _: found.extend(in_full(batch)), tmp_path / "query")
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert "NaN" in str(found)


def test_staged_rows_are_plain_parquet_whatever_the_session_has(spark: SparkSession, tmp_path: Path) -> None:
    """Spark notes in the file that it has moved dates by days; nobody but Spark reads that note. Of an Iceberg table
    two columns were read for each other by the numbers that they had brought along, and lists of the legacy format
    failed its publish.
    """
    log = ChannelLog.create(tmp_path / "log")
    session = spark.newSession()
    session.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
    session.conf.set("spark.sql.parquet.writeLegacyFormat", "true")
    rows = session.sql(
        "SELECT DATE'1500-01-01' AS day, TIMESTAMP'1500-01-01 00:00:00' AS at, array(1) AS tags"
    ).withMetadata("day", {"parquet.field.id": 2})
    done = ChannelSink(log, rows.schema).append(rows, BatchId(0))
    assert isinstance(done, Appended)
    entry = log.read(done.position)
    assert isinstance(entry, DataEntry)
    file = tmp_path / "log" / entry.files[0].name
    found = pq.read_table(file).to_pylist()
    assert found == [{"day": dt.date(1500, 1, 1), "at": dt.datetime(1500, 1, 1, tzinfo=dt.UTC), "tags": [1]}]
    assert pq.read_metadata(file).schema.column(2).path == "tags.list.element"
    assert b"PARQUET:field_id" not in (pq.read_schema(file).field("day").metadata or {})


def test_a_column_that_changed_its_case_keeps_the_values_of_older_entries() -> None:
    """Code that spells a column in another way goes on behind rows on their way: they came out without it."""
    older = pa.RecordBatch.from_pylist([{"Amount": 5, "other": 1}])
    assert conformed(older, pa.schema({"amount": pa.int64()})).to_pylist() == [{"amount": 5}]
    both = pa.schema({"Amount": pa.int64(), "amount": pa.int64()})
    assert conformed(older, both).to_pylist() == [{"Amount": 5, "amount": None}], (
        "two columns, as the session says"
    )


def test_rows_that_wait_under_another_name_of_a_column_are_refused_and_not_read_without_its_values(
    spark: SparkSession, tmp_path: Path, stop_queries: None
) -> None:
    """A stream that was stopped leaves rows on their way; a renamed column was NULL in them, and the run succeeded."""
    log, found = kv_log(tmp_path / "log", spark), Collected()
    put(log, 0, range(2), 7)
    log.write_schema(channel_schema_json(spark.createDataFrame([], "k long, amount long").schema))
    with pytest.raises(Exception, match="the columns of its input have changed") as refused:
        run(read_channel(spark, str(tmp_path / "log")), found, tmp_path / "query")
    told = changed_query(StageUid("totals"), refused.value)
    assert told is not None
    assert "have v and no amount, and as nobody knows whether these are the same" in str(told)
    assert found.rows == []
    log.write_schema(channel_schema_json(spark.createDataFrame([], "k long, v long, since long").schema))
    run(read_channel(spark, str(tmp_path / "log")), found, tmp_path / "query")
    assert found.rows == [(0, 7, None), (1, 7, None)], "one that was added has no value in them"


def test_a_field_that_was_renamed_within_a_column_is_refused_as_a_column_is() -> None:
    """Arrow casts a struct by the names of its fields: the value came out as NULL, and the run succeeded."""

    def now(s: str = "price", many: str = "price", by: str = "v", more: Sequence[str] = ("n",)) -> pa.Schema:
        fields = [(name, pa.int64()) for name in (s, *more)]
        listed, mapped = (pa.struct([(name, pa.int64())]) for name in (many, by))
        return pa.schema(
            {"s": pa.struct(fields), "many": pa.list_(listed), "by": pa.map_(pa.string(), mapped)}
        )

    row = {"s": {"price": 5, "n": 1}, "many": [{"price": 5}], "by": [("k", {"v": 1})]}
    older = pa.RecordBatch.from_pylist([row], now())
    for schema, said in (
        (now(s="cost"), r"have s.price and no s.cost, and"),
        (now(s="Price"), r"have s.price and no s.Price, and"),
        (now(many="cost"), r"have many.price and no many.cost, and"),
        (now(by="w"), r"have by.v and no by.w, and"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            conformed(older, schema)
    assert conformed(older, now(more=["n", "since"]))["s"].to_pylist() == [
        {"price": 5, "n": 1, "since": None}
    ]
    assert conformed(older, now(more=[]))["s"].to_pylist() == [{"price": 5}], "one that is gone is left out"


def test_a_type_that_changed_is_cast_where_that_gives_sparks_value_and_refused_elsewhere() -> None:
    """A number became a moment by its microseconds, which are seconds to Spark; 1.0 became the text '1'."""

    def cast(value: object, there: pa.DataType, wanted: pa.DataType) -> object:
        older = pa.RecordBatch.from_arrays([pa.array([{"v": value}], pa.struct([("v", there)]))], ["s"])
        return conformed(older, pa.schema({"s": pa.struct([("v", wanted)])})).to_pylist()[0]["s"]["v"]

    moment, day, noon = (
        pa.timestamp("us", "UTC"),
        dt.date(2024, 1, 1),
        dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC),
    )
    for value, there, wanted in (
        (5, pa.int64(), moment),
        (noon, moment, pa.int64()),
        (noon, moment, pa.date32()),
        (noon, moment, pa.string()),
        (day, pa.date32(), moment),
        (5, pa.int32(), pa.date32()),
        (1.0, pa.float64(), pa.string()),
    ):
        with pytest.raises(InvalidRequest, match=r"have s.v as .*, which is .* now, and their values"):
            cast(value, there, wanted)
    assert cast(noon, pa.timestamp("us"), moment) == noon, "Spark's older form in Parquet has no zone"
    assert cast(5, pa.int32(), pa.int64()) == 5
    assert cast(5, pa.int64(), pa.int32()) == 5
    assert cast(5, pa.int64(), pa.float64()) == 5.0
    assert cast(5, pa.int64(), pa.string()) == "5"
    assert cast("5", pa.string(), pa.int64()) == 5
    assert cast(day, pa.date32(), pa.string()) == "2024-01-01"
    with pytest.raises(Corrupt, match="do not fit its schema"):
        cast(2**40, pa.int64(), pa.int32())


@pytest.mark.parametrize(
    ("value", "of"),
    [("make_interval(1)", "interval"), ("map()", "map<void,void>")],
)
def test_a_type_that_no_channel_can_carry_is_refused_when_the_stage_starts(
    spark: SparkSession, tmp_path: Path, value: str, of: str
) -> None:
    """Of a map of nothing it said what Arrow says, without a column."""
    log = ChannelLog.create(tmp_path)
    with pytest.raises(InvalidRequest, match=rf"Arrow has no form for column 'rare', {of}: cast it"):
        ChannelSink(log, spark.sql(f"SELECT {value} AS rare").schema)


def test_a_consumer_does_not_inherit_the_watermark_of_its_producer(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    assert "watermarkDelayMs" in frame.schema.json()
    ChannelSink(ChannelLog.create(tmp_path), frame.schema)
    assert "watermarkDelayMs" not in read_channel(spark, str(tmp_path)).schema.json()


def test_a_query_that_takes_what_is_available_ends_exactly_on_the_held_barrier(
    spark: SparkSession, tmp_path: Path, stop_queries: None
) -> None:
    log, release, sink = kv_log(tmp_path / "log", spark), Release(tmp_path / "stage"), Collected()
    for batch in range(4):
        put(log, batch, range(2), batch)
    put_barrier(log, 1)
    put(log, 4, range(2), 4)
    put_barrier(log, 2)

    def go() -> list[int]:
        frame = read_channel(spark, str(log.directory), release_file=str(release.path), max_entries=3)
        run(frame, sink, tmp_path / "query")
        return positions(tmp_path / "query")

    assert go() == [4]
    assert {v for _, v in sink.rows} == {0, 1, 2, 3}
    assert [len(rows) for rows in sink.batches.values()] == [6, 2]
    assert go() == [4]
    assert len(sink.batches) == 2
    release.through(CheckpointId(1))
    assert go() == [6]
    release.through(CheckpointId(2))
    put_barrier(log, 3)
    assert go() == [7]
    assert len(sink.rows) == 10


def test_what_arrives_after_the_start_is_left_to_the_next_run(
    spark: SparkSession, tmp_path: Path, stop_queries: None
) -> None:
    log, seen = kv_log(tmp_path / "log", spark), Collected()
    put(log, 0, range(1), 0)
    put(log, 1, range(1), 1)

    def sink(frame: DataFrame, batch_id: int) -> None:
        seen(frame, batch_id)
        put(log, 2 + batch_id, range(1), 2 + batch_id)

    frame = read_channel(spark, str(log.directory), max_entries=1)
    run(frame, sink, tmp_path / "query")
    assert [v for _, v in seen.rows] == [0, 1]
    assert log.end == 4


def test_a_limit_of_rows_bounds_each_batch_and_never_stops_the_stream(
    spark: SparkSession, tmp_path: Path, stop_queries: None
) -> None:
    log, sink = kv_log(tmp_path / "log", spark), Collected()
    for batch, number in enumerate([3, 3, 10, 1, 1]):
        put(log, batch, range(number), batch)
    run(read_channel(spark, str(log.directory), max_rows=6), sink, tmp_path / "query")
    assert [len(rows) for rows in sink.batches.values()] == [6, 10, 2]


def test_a_wrong_option_is_refused_with_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    kv_log(tmp_path, spark)
    frame = read_channel(spark, str(tmp_path), max_rows=0)
    with pytest.raises(Exception, match="must be a whole number from 1"):
        run(frame, Collected(), tmp_path / "query")


def test_two_inputs_of_different_speed_align_on_every_barrier(
    spark: SparkSession, tmp_path: Path, stop_queries: None
) -> None:
    logs = {name: kv_log(tmp_path / name, spark) for name in "ab"}
    release, sink, query_dir = Release(tmp_path / "stage"), Collected(), tmp_path / "query"
    inputs = [
        read_channel(spark, str(log.directory), release_file=str(release.path), max_entries=2).selectExpr(
            "*", f"'{name}' AS source"
        )
        for name, log in logs.items()
    ]
    frame = inputs[0].unionByName(inputs[1]).groupBy("source", "k").count()
    barriers = {"a": (3, 8, 13), "b": (2, 3, 9)}
    producers = [
        threading.Thread(target=_produce, args=(logs["a"], 14, barriers["a"], 0.02)),
        threading.Thread(target=_produce, args=(logs["b"], 10, barriers["b"], 0.08)),
    ]
    query = (
        frame.writeStream.outputMode("update")
        .foreachBatch(sink)
        .option("checkpointLocation", str(query_dir))
        .start()
    )
    for producer in producers:
        producer.start()
    for number in (1, 2, 3):
        cut = [_await(lambda log=log, n=number: log.find_barrier(CheckpointId(n))) for log in logs.values()]
        _await(lambda cut=cut: _stands_on(query, query_dir, cut))
        counts = {(source, k): count for rows in sink.batches.values() for source, k, count in rows}
        assert counts == {(name, k): barriers[name][number - 1] for name in "ab" for k in range(3)}
        release.through(CheckpointId(number))
    for producer in producers:
        producer.join()
    query.processAllAvailable()
    query.stop()
    assert positions(query_dir) == [log.end for log in logs.values()]


def _produce(log: ChannelLog, number: int, barriers: tuple[int, ...], pause: float) -> None:
    for batch in range(number):
        if batch in barriers:
            put_barrier(log, 1 + barriers.index(batch))
        put(log, batch, range(3), batch)
        time.sleep(pause)


def _await(condition: Callable[[], object]) -> object:
    """Return what is found once it is there; a position may be 0."""

    def found() -> list[object]:
        value = condition()
        return [] if value is None or value is False else [value]

    return wait_until(found, source_of(condition))[0]


def _stands_on(query: StreamingQuery, query_dir: Path, cut: list[object]) -> bool:
    assert query.isActive, query.exception()
    committed = latest_committed_batch(query_dir) if query_dir.exists() else None
    return committed is not None and positions(query_dir) == cut


def test_a_replayed_batch_is_appended_once_and_its_state_is_computed_all_the_same(
    spark: SparkSession, tmp_path: Path, stop_queries: None
) -> None:
    source = kv_log(tmp_path / "in", spark)
    log = ChannelLog.create(tmp_path / "out")
    query_dir = tmp_path / "query"

    def go() -> None:
        counts = read_channel(spark, str(source.directory), max_entries=1).groupBy("k").count()
        run(counts, ChannelSink(log, counts.schema), query_dir, "update")

    for batch in range(3):
        put(source, batch, range(4), batch)
    go()
    assert (log.end, log.last_batch()) == (3, 2)
    for path in (query_dir / "commits").glob("*2*"):
        path.unlink()
    put(source, 3, range(4), 3)
    go()
    batches = [entry.batch_id for _, entry in log.entries(LogPosition(0)) if isinstance(entry, DataEntry)]
    assert batches == [0, 1, 2, 3]
    out = Collected()
    run(read_channel(spark, str(log.directory)), out, tmp_path / "check")
    assert sorted(set(out.rows)) == [(k, count) for k in range(4) for count in (1, 2, 3, 4)]
    assert len(out.rows) == 16
    state = spark.read.format("statestore").load(str(query_dir)).selectExpr("key.k", "value.count").collect()
    assert sorted(map(tuple, state)) == [(k, 4) for k in range(4)]


def test_a_batch_whose_entry_is_there_leaves_no_second_copy_of_its_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(3).selectExpr("id AS k", "id AS v")
    log = ChannelLog.create(tmp_path)
    sink = ChannelSink(log, rows.schema)
    assert sink.append(rows, BatchId(0)) == Appended(LogPosition(0))
    assert sink.append(rows, BatchId(0)) == AlreadyAppended(LogPosition(0))
    sink.append(rows.where("k < 0"), BatchId(1))
    assert len(list(log.data_folder.iterdir())) == 1
    assert log.read(LogPosition(1)) == DataEntry(batch_id=BatchId(1), files=())


def test_entries_of_an_older_schema_are_read_by_column_name(
    spark: SparkSession, tmp_path: Path, stop_queries: None
) -> None:
    log = ChannelLog.create(tmp_path / "log")
    before = spark.sql("SELECT 1L AS k, 'old' AS gone, 7 AS n")
    ChannelSink(log, before.schema).append(before, BatchId(0))
    after = spark.sql("SELECT 9L AS n, 2L AS k")
    ChannelSink(log, after.schema).append(after, BatchId(1))
    sink = Collected()
    run(read_channel(spark, str(log.directory)).select("k", "n"), sink, tmp_path / "query")
    assert [row for rows in sink.batches.values() for row in rows] == [(1, 7), (2, 9)]


def test_a_killed_python_worker_costs_a_retry_and_no_row(
    spark: SparkSession, tmp_path: Path, stop_queries: None
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    log = kv_log(tmp_path / "log", spark)
    for batch in range(4):
        put(log, batch, range(50), batch)
    marker = str(tmp_path / "killed")

    @F.udf("long", useArrow=False)
    def deadly(value: int) -> int:
        if value == 2 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    out = ChannelLog.create(tmp_path / "out")
    frame = read_channel(spark, str(log.directory), max_entries=2).select("k", deadly("v").alias("v"))
    run(frame, ChannelSink(out, frame.schema), tmp_path / "query")
    assert os.path.exists(marker)
    rows = [
        pq.read_table(out.directory / file.name)
        for _, entry in out.entries(LogPosition(0))
        if isinstance(entry, DataEntry)
        for file in entry.files
    ]
    found = pa.concat_tables(rows)
    assert sorted(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)) == [
        (k, v) for k in range(50) for v in range(4)
    ]
