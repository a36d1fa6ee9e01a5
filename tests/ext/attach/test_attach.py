"""Programs as they are, attached: cut together, killed, put back, and compared with what nobody has disturbed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    attach,
    attached_program,
    checkpointed_pipeline,
    checkpoints_asset_key,
    run_epoch,
    spark_sink,
    spark_source,
    spark_stage,
)
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.dagster.names import SKIPPED_TAG
from dagster_ckpt.errors import Declined, Fenced, InvalidRequest
from dagster_ckpt.ext.attach.fork import ForkBeginning, bring, forked
from dagster_ckpt.ext.attach.owner import STARTED_BY, ProgramOwner
from dagster_ckpt.ext.attach.program import AttachedProgram, AttachedStage, ProgramDirectory
from dagster_ckpt.ext.attach.queries import (
    SESSION_LOCATION,
    AtStart,
    Found,
    Queries,
    _former,
    local_place,
)
from dagster_ckpt.ext.attach.sinks import (
    POSITION,
    SINK_LOG,
    DeltaPosition,
    line_of,
    named_files,
    planned_return,
)
from dagster_ckpt.ext.attach.writers import WriterNotes
from dagster_ckpt.spark.directories import SINK_FOLDER
from dagster_ckpt.spark.snapshot.checkpoint_files import read_query_id
from dagster_ckpt.spark.versions import (
    VERSIONS,
    Stages,
    refuse_attached,
    refuse_channels,
    refuse_pipelines,
    refuse_streams,
    version_of,
)
from tests.dagster.launched.conftest import Ran
from tests.lab.lab import WITHOUT_CAPTURE
from tests.progress import wait_until
from tests.records import find_record
from tests.root import ROOT
from tests.tables import rows_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamReader

JOB = Path(__file__).with_name("job.py")


def put_orders(folder: Path, number: int) -> None:
    """Let a file of ten orders arrive, one of which is bad."""
    rows = [{"key": f"k{(number + i) % 3}", "amount": i if i else -1} for i in range(10)]
    (folder / "in").mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{number}.tmp"
    temporary.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    os.replace(temporary, folder / "in" / f"{number}.json")


def expected_totals(files: int) -> dict[str, int]:
    found: Counter[str] = Counter()
    for number in range(files):
        for i in range(1, 10):
            found[f"k{(number + i) % 3}"] += i
    return dict(found)


def totals(folder: Path) -> dict[str, int]:
    path = folder / "totals.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def rows_of(table: Path) -> int:
    """Rows as Spark reads them: of the files that the table's log names."""
    return sum(pq.ParquetFile(file).metadata.num_rows for file in named_files(table / SINK_LOG, table))


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "dagster_ckpt.cli", *arguments]


def cli(folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [*command(folder, *arguments), "--base", str(folder / "ckpt")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def running(
    folder: Path, *more: str, name: str = "orders", job: Path = JOB
) -> Iterator[subprocess.Popen[str]]:
    """Run the program attached until the block ends, then kill it; what it says is in ``FOLDER/said``."""
    (folder / "running").unlink(missing_ok=True)
    line = command(
        folder, "run", str(job), str(folder), "-p", name, "--base-dir", str(folder / "ckpt"), *more
    )
    with (folder / "said").open("a") as said:
        process = subprocess.Popen(line, stdout=said, stderr=said, text=True, cwd=ROOT)

        def check() -> None:
            assert process.poll() is None, (folder / "said").read_text()

        try:
            until((folder / "running").exists, check)
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def until(holds: Callable[[], object], check: Callable[[], object] = lambda: None) -> None:
    wait_until(holds, "the program has come so far", check=check, every=0.1)


def stage(uid: str, *, writes: str = "", reads: tuple[str, ...] = (), sink: str = "parquet") -> AttachedStage:
    return AttachedStage(uid=uid, checkpoint_location=f"/q/{uid}", sink=sink, writes=writes, reads=reads)


def test_readers_are_cut_before_the_queries_they_read_and_unknown_writers_last() -> None:
    program = AttachedProgram(
        stages=(
            stage("batches", sink="foreachBatch"),
            stage("clean", writes="/t/clean", reads=("/in",)),
            stage("totals", writes="/t/totals", reads=("/t/clean/day=1",)),
            stage("report", sink="console", reads=("/t/totals",)),
        )
    )
    assert [one.uid for one in program.readers_first()] == ["report", "totals", "clean", "batches"]
    assert [one.uid for one in program.stages if program.may_be_read(one)] == ["batches", "clean", "totals"]
    ring = AttachedProgram(
        stages=(stage("a", writes="/a", reads=("/b",)), stage("b", writes="/b", reads=("/a",)))
    )
    with pytest.raises(Declined, match="the queries a, b read each other's rows"):
        ring.readers_first()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--base-dir /dev/null/x",
            "the folder /dev/null/x cannot be made, because Not a directory: name another one",
        ),
        ("--base-dir {0} --store sqlite:///x", "all that an attached program keeps is below --base-dir"),
        ("--base-dir {0} --intervall 3", "--intervall goes to {0}/job.py: did you mean --interval?"),
        ("--base-dir {0}", "job.py:1 in <module>, `raise"),
        ("--base-dir {0}", "Java did not start, looked for "),
    ],
)
def test_a_mistake_of_a_program_that_is_run_is_told_in_few_lines(
    tmp_path: Path, words: str, said: str
) -> None:
    failed = "[JAVA_GATEWAY_EXITED] Java gateway process exited" if "Java" in said else "no such shop"
    (tmp_path / "job.py").write_text(f"raise RuntimeError({failed!r})")
    line = f"run {tmp_path / 'job.py'} -p shop {words.format(tmp_path)}"
    done = subprocess.run(
        command(tmp_path, *line.split()), capture_output=True, text=True, check=False, cwd=ROOT
    )
    told = done.stdout + done.stderr
    assert done.returncode in (1, 2)
    assert said.format(tmp_path) in told
    assert len(told.splitlines()) <= 5, told


def test_a_second_copy_is_refused_while_the_first_one_lives_and_nobody_waits_for_a_dead_one() -> None:
    alive = CoordinatorRecord(
        pipeline="orders", owner="elsewhere", epoch=1, lease_until=time.time() + 600, has_mailbox=True
    )
    with pytest.raises(Fenced, match="another copy of this program is attached to 'orders' and alive"):
        ProgramOwner.here().admit(alive)
    here = ProgramOwner.here().name.split("-")
    dead = "-".join([*here[:-2], str(2**22 + 1), here[-1]])
    ProgramOwner.here().admit(alive.model_copy(update={"owner": dead}))


def test_a_killed_program_is_not_gone_before_its_java_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had committed a batch into directories that a restore had put back, behind which Spark looked no further."""
    here = ProgramOwner.here()
    monkeypatch.setenv(STARTED_BY, "")
    here.name_to_java()
    dead = here.name.replace(f"-{os.getpid()}-", f"-{2**22 + 1}-")
    monkeypatch.setenv(STARTED_BY, os.environ[STARTED_BY].removesuffix(str(os.getpid())) + str(2**22 + 1))
    (tmp_path / "java").symlink_to(shutil.which("sleep") or "")
    record = CoordinatorRecord(pipeline="orders", owner=dead, epoch=1, lease_until=0.0, has_mailbox=True)
    with subprocess.Popen([tmp_path / "java", "600"]) as java:
        try:
            until(Path(f"/proc/{java.pid}/environ").read_bytes)  # of a program that was begun just now
            assert not here.is_gone(dead)
            with pytest.raises(Fenced, match=f"the Java process {java.pid} of another copy"):
                here.admit(record)
        finally:
            java.kill()
    assert here.is_gone(dead)
    here.admit(record)


def test_a_delta_table_goes_back_and_forgets_the_batches_that_are_replayed(tmp_path: Path) -> None:
    table, built = tmp_path / "table", tmp_path / "built"

    def commit(batch: int) -> None:
        """Write a batch as Delta's streaming sink does: with its number, under the query's id."""
        seen = CommitProperties(app_transactions=[Transaction("query", batch)])
        write_deltalake(str(table), pa.table({"batch": [batch]}), mode="append", commit_properties=seen)

    for batch in range(3):
        commit(batch)
    position = DeltaPosition.now(table, "query", BatchId(1))
    (built / SINK_FOLDER).mkdir(parents=True)
    (built / SINK_FOLDER / POSITION).write_text(position.model_dump_json())
    saved = StageSnapshot(uid="s", parallelism=1, batch_id=1, query_id="query")
    sink = stage("s", sink="delta", writes=str(table))
    fork = stage("s", sink="delta", writes=str(tmp_path / "fork")).model_copy(
        update={"copied_from": str(table)}
    )
    bring(fork, built, {})
    of_fork = DeltaTable(fork.writes)
    assert (of_fork.version(), of_fork.to_pyarrow_table()["batch"].to_pylist()) == (1, [1, 0])
    write_deltalake(fork.writes, pa.table({"batch": [9]}), mode="append")
    bring(fork, built, {})  # it has begun: what is in it stays
    assert DeltaTable(fork.writes).version() == 2
    assert DeltaTable(str(table)).version() == 2
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 3
    with pytest.raises(InvalidRequest, match=r"stage r reads Delta table .* cannot pass a version"):
        planned_return(sink, saved, built, [stage("r", reads=(str(table),))])
    back = planned_return(sink, saved, built)
    assert back is not None
    assert back.carry_out() == f"{table} is back at version 1"
    shown = DeltaTable(str(table))
    assert sorted(shown.to_pyarrow_table()["batch"].to_pylist()) == [0, 1]
    assert shown.transaction_version("query") == 1, "Spark would skip batch 2"
    commit(2)
    # Batch 2 of the line that was left is version 2; the one that shows now is behind the restore.
    assert DeltaPosition.now(table, "query", BatchId(2)).version == 4
    write_deltalake(str(table), pa.table({"batch": [-1]}), mode="append")
    with pytest.raises(InvalidRequest, match=r"version 5 of Delta table .* was not written by stage s"):
        planned_return(sink, saved, built)


def test_a_fork_refuses_what_would_meet_the_original(tmp_path: Path) -> None:
    """A place that no fork can change: a topic, a function's, a table by its name, a folder around a table."""

    def fork_of(*stages: AttachedStage, keeps: tuple[str, ...] = ()) -> AttachedProgram:
        given = {"places": tmp_path, "tables": tmp_path / "tables", "begins_with": "file:///s"}
        return forked(AttachedProgram(stages=stages), keeps=keeps, **given)

    for sink, writes in (
        ("kafka", "kafka:t"),
        ("foreachBatch", ""),
        ("iceberg", "/t"),
        ("parquet", "s3a://b/t"),
    ):
        with pytest.raises(InvalidRequest, match="--keep-rows-of one"):
            fork_of(stage("one", sink=sink, writes=writes))
        assert fork_of(stage("one", sink=sink, writes=writes), keeps=("one",)).stages[0].writes == writes
    table = stage("table", writes="/lake/t")
    with pytest.raises(InvalidRequest, match="stage all of the fork would read the original's /lake/t"):
        fork_of(stage("all", reads=("/lake",), sink="console"), table)
    reader, moved = fork_of(stage("one", reads=("/lake/t",), sink="console"), table).stages
    assert reader.reads == (moved.writes,) == (str(tmp_path / "tables" / "table"),)
    again = {"places": tmp_path / "b", "tables": tmp_path / "again", "begins_with": "file:///t"}
    reader, twice = forked(AttachedProgram(tables="/x", stages=(reader, moved)), keeps=(), **again).stages
    assert (twice.came_from, twice.copied_from, twice.origin) == ("/lake/t", moved.writes, "/q/table")
    assert reader.reads == (twice.writes,) == (str(tmp_path / "again" / "table"),)


def test_a_fork_is_made_again_until_it_has_begun_and_never_of_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try that was refused left its snapshot, and tables of it, to the next one, whatever that was told."""
    directory = ProgramDirectory(tmp_path / "programs" / "trial")
    for name in ("orders", "other"):
        made = AttachedProgram(stages=(stage("clean", writes=f"/lake/{name}"),))
        ProgramDirectory(tmp_path / "programs" / name).save(made)

    def found(_deployment: object, named: str, pipeline: str) -> SimpleNamespace:
        return SimpleNamespace(pipeline=pipeline, location=SimpleNamespace(uri=f"file:///{named}"))

    def first(named: str = "", of: str = "orders", *, keeps: tuple[str, ...] = (), record: Any = None) -> str:
        beginning = ForkBeginning(Any, directory, record)
        return beginning.restored_first(named, fork_of=of, keeps=keeps)

    monkeypatch.setattr("dagster_ckpt.ext.attach.fork.find_snapshot", found)
    assert first("one", of="") == "one"
    for given, told in (
        ({"of": "", "keeps": ("clean",)}, "keep_rows_of is of a fork"),
        ({"of": "trial"}, "trial has a history of its own"),
        ({"record": SimpleNamespace(line=None)}, "trial has a history of its own"),
        ({"keeps": ("cleam",)}, "keep_rows_of names no stage of the program: cleam"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            first(**given)
    table = tmp_path / "tables" / "trial" / "clean"
    table.mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="is there, where the fork's table would be"):
        first("one")
    table.rmdir()
    assert first("one") == "file:///one" == first("two", of="")
    table.mkdir()
    assert first("two", record=SimpleNamespace(line=None)) == "file:///two"
    assert not table.exists(), "it may be of the other snapshot"
    with pytest.raises(
        InvalidRequest, match="trial is a fork of orders: give the fork of other another name"
    ):
        first(of="other")
    table.mkdir()
    directory.note_begun("clean")
    assert first("three") == "", "a store that was lost does not know of it"
    assert first("three", record=SimpleNamespace(line=True)) == ""
    assert table.exists()


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("file:///a/b%20c", "/a/b%20c"),
        ("file:/a b/c#1", "/a b/c#1"),
        ("file://host/a/", "/a"),
        ("ck/x/../y", "/w/ck/y"),
        ("~/x y?z", "/w/~/x y?z"),
        ("hdfs://n/a", None),
        ("s3a://b/x", None),
    ],
)
def test_a_path_is_the_one_that_spark_makes_of_it(given: str, place: str | None) -> None:
    assert local_place(given, "/w") == place


def test_whatever_a_program_calls_its_queries_and_directories_names_a_stage(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Found in public programs: ``table/_checkpoints/orders``, ``/mnt/shared/…``; they were refused."""
    frame = spark.readStream.format("rate").load()

    def uid(place: str, name: str = "", taken: tuple[AttachedStage, ...] = ()) -> str:
        told = WriterNotes(format="console", query_name=name, options={"checkpointlocation": place})
        program = AttachedProgram(stages=taken)
        found = Queries(tmp_path).described(frame, told, program=program, running=()).stage
        assert found is not None
        return found.uid

    assert uid("/lake/events/_checkpoints") == "checkpoints"
    assert uid("/lake/_checkpoints/orders") == "orders"
    assert uid("/mnt/shared/orders", taken=(stage("orders"),)) == "query-shared-orders"
    assert uid("/mnt/shared") == uid("/mnt/x", "shared") == "query-shared"
    assert uid("/mnt/x", "orders") == "orders"
    exact = [uid("/mnt/x", name) for name in ("_", "заказы", "订单", "orders/eu", "orders eu")]
    assert len(set(exact)) == 5, "names that differ are other queries"
    long = [uid("/mnt/" + "x" * 120 + end) for end in ("a", "b")]
    assert len(set(long)) == 2
    assert {len(one) for one in long} == {100}
    assert len(uid("/" + "x" * 90 + "/" + "y" * 90, taken=(stage("y" * 90),))) == 100


def test_a_query_without_a_place_is_known_again_whatever_its_values_are(tmp_path: Path) -> None:
    """Loops hand one text other values; a date or the number of a run is another one at each start."""

    def starts(program: AttachedProgram, *queries: tuple[str, str]) -> tuple[list[str], AttachedProgram]:
        """Return the stages of a process's queries, each by name and value."""
        known, uids = Queries(tmp_path), []
        for name, value in queries:
            read = [("text", {"path": "/other" if value == "elsewhere" else "/in"})]
            now = AtStart("console", program, (), "/", read)
            likeness = f"{name or 'plan'} {value}"
            uid, why = known._place(
                WriterNotes(query_name=name, function=lambda value=value: value), likeness, now
            )
            before = program.stage(uid)
            formerly = _former(before, likeness) if before is not None else ()
            made = {"likeness": likeness, "reads": now.places_read, "formerly": formerly}
            program = program.with_stage(stage(uid).model_copy(update=made))
            uids.append(uid)
            told.append(why)
        return uids, program

    told: list[str] = []
    for name, first in (("", "query"), ("orders", "orders")):
        told.clear()
        one = [first if name else "query-1"]
        uids, single = starts(AttachedProgram(), (name, "monday"))
        assert not any("goes on" in why for why in told)
        assert uids == one == starts(single, (name, "tuesday"))[0]
        assert "goes on, though" in told.pop()
        uids, loop = starts(AttachedProgram(), (name, "a"), (name, "b"))
        assert uids == [*one, f"{first}-2"]
        assert starts(loop, (name, "b"), (name, "a"))[0] == uids[::-1]
        assert starts(loop, (name, "a"), (name, "c"))[0] == uids, "one of them has other values"
        assert starts(loop, (name, "a"), (name, "b"), (name, "c"))[0] == [*uids, f"{first}-3"]
        with pytest.raises(InvalidRequest, match="give it a checkpointLocation, one of theirs"):
            starts(loop, (name, "c"))
        days = starts(starts(single, (name, "tuesday"))[1], (name, "monday"))
        assert days[0] == one
        with pytest.raises(InvalidRequest, match="another query, which starts ahead of it, has taken"):
            starts(single, (name, "gained"), (name, "monday"))
        assert starts(single, (name, "elsewhere"))[0] == (one if name else ["query-2"])
    of_before = AttachedProgram(
        stages=(stage("orders").model_copy(update={"checkpoint_location": f"{tmp_path}/orders"}),)
    )
    assert starts(of_before, ("orders", "a"))[0] == ["orders"]


def test_what_cannot_be_read_again_is_told_or_takes_no_part(spark: SparkSession, tmp_path: Path) -> None:
    """Spark cannot go on from a socket: in a directory that lasts, the second start of a program would fail."""

    def described(reader: DataStreamReader, **options: str) -> Found:
        told = WriterNotes(format="console", options=options)
        return Queries(tmp_path).described(reader.load(), told, program=AttachedProgram(), running=())

    socket = spark.readStream.format("socket").option("host", "localhost").option("port", 9)
    assert described(socket).stage is None
    assert "it reads a socket, and begins empty with every start" in described(socket).lines[0]
    place = str(tmp_path / "given")
    for reader, gone in (
        (socket, "a socket"),
        (
            spark.readStream.format("text").option("cleanSource", "delete").option("path", str(tmp_path)),
            "files that cleanSource takes away",
        ),
    ):
        stage = described(reader, checkpointlocation=place).stage
        assert stage is not None
        assert line_of(stage).endswith(f"; {gone} cannot be read again: a restore goes on with new rows")


@pytest.mark.parametrize(("sink", "is_another"), [("iceberg", True), ("json", False)])
def test_a_sink_that_may_remember_batches_meets_another_query_after_a_restore(
    spark: SparkSession, tmp_path: Path, sink: str, is_another: bool
) -> None:
    """A table that stays as it is would skip replayed batches, which may have other rows."""
    put_orders(tmp_path, 0)
    base, place = str(tmp_path / "ckpt"), tmp_path / "place"
    attached = attach("tables", base_dir=base, interval="1 h")
    try:
        orders = spark.readStream.schema("key string").json(str(tmp_path / "in"))
        writer = orders.writeStream.format("json").option("checkpointLocation", str(place))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
        uri = attached.savepoint()
    finally:
        attached.detach()
    record = tmp_path / "ckpt" / "programs" / "tables" / "attached.json"
    record.write_text(record.read_text().replace('"sink": "json"', f'"sink": "{sink}"'))
    before = read_query_id(place / "metadata")
    here = record.read_text()
    record.write_text(
        here.replace(f'"writes": "{tmp_path}', '"writes": "s3a://bucket').replace("iceberg", "json")
    )
    with pytest.raises(
        InvalidRequest, match="s3a://bucket/out is on no local disk and cannot go back: start"
    ):
        attach("tables", base_dir=base, restore_from=uri)
    record.write_text(here)
    other = tmp_path / "ckpt" / "programs" / "other"
    shutil.copytree(record.parent, other, symlinks=True)
    with pytest.raises(InvalidRequest, match="is a snapshot of pipeline 'tables', not of 'other'"):
        attach("other", base_dir=base, restore_from=uri)
    (place / "a table").mkdir()
    attach("tables", base_dir=base, restore_from=uri).detach()
    assert (place / "a table").is_dir(), "what is not Spark's stays"
    assert (read_query_id(place / "metadata") != before) is is_another


def test_what_each_version_of_spark_can_run_is_told_and_the_rest_refused() -> None:
    page = (ROOT / "docs" / "extensions" / "attach.md").read_text()
    rows = [line for line in page.splitlines() if re.match(r"\| \d\.\d ", line)]
    assert rows == [version.row for version in VERSIONS]
    with pytest.raises(
        InvalidRequest, match=r"PySpark 3\.5\.9 is too old for stages: install pyspark>=4\.0, or"
    ):
        refuse_pipelines("3.5.9")
    refuse_pipelines("4.0.5")
    refuse_channels("4.1.4", [])
    with pytest.raises(
        InvalidRequest, match=r"PySpark 4\.1\.4 cannot hold .*, through which stage 'totals' reads 'clean'"
    ):
        refuse_channels("4.1.4", [("clean", "totals")])
    with pytest.raises(InvalidRequest, match=r"stages in epochs only: install pyspark>=4\.2"):
        refuse_streams("4.1.4")
    with pytest.raises(InvalidRequest, match=r"cannot be attached: install pyspark>=3\.5"):
        refuse_attached("3.4.3")
    for newer in ("4.2.0", "4.3.0.dev1", "5.0.0"):
        refuse_pipelines(newer)
        refuse_streams(newer)
        refuse_channels(newer, [("clean", "totals")])
        refuse_attached(newer)


@pytest.mark.nightly
def test_stages_in_one_chain_run_in_epochs_and_are_restored(spark: SparkSession, tmp_path: Path) -> None:
    """Part of ``make versions``: what Spark 4.0 and 4.1 run of ours, and what is refused there."""
    if version_of(spark.version).stages is Stages.NONE:
        pytest.skip("no stages of ours run on it")

    @spark_source
    def orders(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("key string, amount long").json(str(tmp_path / "in"))

    @spark_stage
    def clean(orders: DataFrame) -> DataFrame:
        return orders.where("amount > 0")

    @spark_sink(key=["key"], output_mode="update")
    def sums(clean: DataFrame) -> DataFrame:
        return clean.groupBy("key").agg({"amount": "sum"}).withColumnRenamed("sum(amount)", "total")

    @checkpointed_pipeline(name="chain")
    def pipeline() -> None:
        sums(clean(orders()))

    where = CheckpointCoordinatorResource(base_dir=str(tmp_path / "base"), table_dir=str(tmp_path))

    def shown(**restore: str) -> dict[str, int]:
        run_epoch(pipeline, coordinator=where, spark=spark, restore=restore or None)
        return {str(row["key"]): int(row["total"]) for row in rows_in(tmp_path / "sums")}

    put_orders(tmp_path, 0)
    assert shown() == expected_totals(1)
    put_orders(tmp_path, 1)
    assert shown() == expected_totals(2)
    assert shown(restore_from="chk-1") == expected_totals(2)


def note(loaded: list[tuple[str, int]], name: str, rows: DataFrame, _: int) -> None:
    loaded.append((name.upper(), rows.count()))


def test_programs_as_they_are_found(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Three queries on one source, without names and places; sinks that keep nothing; one stopped and started again."""
    caplog.set_level("INFO", "dagster_ckpt.attach")
    put_orders(tmp_path, 0)
    orders = spark.readStream.schema("key string, amount long").json(str(tmp_path / "in"))
    seen: list[int] = []
    loaded: list[tuple[str, int]] = []
    before = type(orders.writeStream).start
    attached = attach("found", base_dir=str(tmp_path / "ckpt"), interval="1 h")
    try:
        with pytest.raises(InvalidRequest, match="attached to 'found' already"):
            attach("other", base_dir=str(tmp_path / "ckpt"))
        every = [
            orders.writeStream.foreachBatch(lambda rows, _: seen.append(rows.count())),
            orders.writeStream.format("memory").queryName("shown"),
            orders.groupBy("key").count().writeStream.outputMode("complete").format("console"),
            orders.writeStream.format("json").option("checkpointLocation", str(tmp_path / "places" / "copy")),
        ]
        for writer, path in zip(every, (None, None, None, str(tmp_path / "copy")), strict=True):
            writer.trigger(availableNow=True).start(path).awaitTermination()
        assert [one.uid for one in attached.stages] == ["query-1", "query-2", "copy"]
        put_orders(tmp_path, 1)
        every[0].trigger(availableNow=True).start().awaitTermination()  # again: from where it was stopped
        assert seen == [10, 10]
        for name in ("a", "b", "a"):  # the same lines for each table, with no place: each table has all rows
            each = orders.writeStream.foreachBatch(lambda rows, _, to=name: loaded.append((to, rows.count())))
            each.queryName("each").trigger(availableNow=True).start().awaitTermination()
            each = orders.writeStream.foreachBatch(partial(note, loaded, name))
            each.trigger(availableNow=True).start().awaitTermination()
        assert loaded == [(one, 20) for one in ("a", "A", "b", "B")]
        twice = orders.writeStream.format("noop").queryName("twice")
        running = twice.start()
        with pytest.raises(Exception, match="already active"):  # Spark's own words
            twice.start()
        running.stop()
        for name in "ab":  # queries of one name in sequence, each with a directory of its own
            named = orders.writeStream.queryName("load").format("noop").trigger(availableNow=True)
            named.option("checkpointLocation", str(tmp_path / "loads" / name)).start().awaitTermination()
        rate = spark.readStream.format("rate").load().writeStream.format("noop").queryName("ticks")
        rate.trigger(availableNow=True).start().awaitTermination()
        uri = attached.savepoint("all of it")
        uids = sorted(one.uid for one in attached.stages)
        assert uids == sorted(
            [
                "copy",
                "each",
                "each-2",
                "load",
                "load-b",
                "query-1",
                "query-2",
                "query-3",
                "query-4",
                "ticks",
                "twice",
            ]
        )
    finally:
        attached.detach()
    assert Path(unquote(urlsplit(uri).path), "_metadata").exists()
    for told in (
        "stage query-1, after its place in the program",
        "stage query-1 has no checkpointLocation: it gets",
        "shown: the memory sink begins empty with every start",
        "stage copy, after its checkpointLocation",
        "after a restore it keeps nothing; the rate source cannot be read again: a restore goes on with new rows",
        f"stage load-b, since the stage load keeps its own in {tmp_path / 'loads' / 'a'}",
        "stage query-1: foreachBatch is as exact as Spark",
        f"stage copy: json at {tmp_path / 'copy'} goes back with a restore",
    ):
        assert told in caplog.text, told
    assert type(orders.writeStream).start is before


def test_rows_that_a_watermark_drops_are_counted_by_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    folder, base = tmp_path / "in", tmp_path / "ckpt"
    folder.mkdir()
    rows = spark.readStream.schema("key string, at timestamp").json(str(folder))
    from pyspark.sql import functions

    counts = rows.withWatermark("at", "0 seconds").groupBy("key", functions.window("at", "1 minute")).count()
    attached = attach("late", base_dir=str(base), interval="1 h")
    told = []
    try:
        for number, times in enumerate(
            (["10:00:00"], ["11:00:00", "09:00:00", "09:30:00"], ["08:00:00"], ["12:00:00"])
        ):
            lines = (json.dumps({"key": "a", "at": f"2026-01-01 {time}"}) for time in times)
            (folder / f"{number}.json").write_text("\n".join(lines))
            writer = counts.writeStream.outputMode("update").format("console").queryName("counts")
            writer.trigger(availableNow=True).start().awaitTermination()
            at = Path(unquote(urlsplit(attached.checkpoint()).path), "_metadata")
            [stage] = decode_metadata(at.read_bytes(), name=str(at)).stages
            told.append(stage.metrics.rows_late)
    finally:
        attached.detach()
    assert told == [0, 2, 1, 0]


def test_a_savepoint_is_put_back_once_under_one_location_for_the_whole_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A query that writes a table of the catalog, known by its name and the session's own setting alone."""
    kept, base = tmp_path / "all", str(tmp_path / "ckpt")

    def shown(restore_from: str = "", *, savepoint: bool = False) -> tuple[int, int, str]:
        """Run the program to its end; return the table's rows when it has begun, and when it has ended."""
        attached = attach("whole", base_dir=base, interval="1 h", restore_from=restore_from)
        try:
            begun = rows_of(table()) if spark.catalog.tableExists("kept_orders") else 0
            orders = spark.readStream.schema("key string, amount long").json(str(tmp_path / "in"))
            writer = orders.writeStream.queryName("kept").trigger(availableNow=True)
            spark.streams.resetTerminated()
            query = writer.toTable("kept_orders")
            spark.streams.awaitAnyTermination()
            assert query.exception() is None
            [one] = attached.stages
            assert (one.uid, one.checkpoint_location) == ("kept", str(kept / "kept"))
            assert Path(one.writes) == table()
            return begun, rows_of(table()), attached.savepoint() if savepoint else ""
        finally:
            attached.detach()

    def table() -> Path:
        described = spark.sql("DESCRIBE TABLE EXTENDED kept_orders").collect()
        [place] = [row["data_type"] for row in described if row["col_name"] == "Location"]
        return Path(unquote(urlsplit(place).path))

    spark.conf.set(SESSION_LOCATION, str(kept))
    try:
        put_orders(tmp_path, 0)
        *first, uri = shown(savepoint=True)
        assert first == [0, 10]
        put_orders(tmp_path, 1)
        assert shown()[:2] == (10, 20)
        assert shown(uri)[:2] == (10, 20), "back at the savepoint, and on from there"
        put_orders(tmp_path, 2)
        assert shown(uri)[:2] == (20, 30), "the same program started again goes on"
    finally:
        spark.conf.unset(SESSION_LOCATION)
        spark.sql("DROP TABLE IF EXISTS kept_orders")


@pytest.mark.spark
def test_a_killed_program_goes_on_and_a_savepoint_takes_state_and_tables_back(tmp_path: Path) -> None:
    for number in range(2):
        put_orders(tmp_path, number)
    with running(tmp_path, "--interval", "1 s"):
        until(lambda: totals(tmp_path) == expected_totals(2))
        savepoint = cli(tmp_path, "savepoint", "orders", "--name", "before")
        key = savepoint.split(":")[0].strip()
        put_orders(tmp_path, 2)
        until(lambda: totals(tmp_path) == expected_totals(3))
    # Killed, and started again: its directories are adopted, nothing is read again.
    put_orders(tmp_path, 3)
    with running(tmp_path) as process:
        until(lambda: totals(tmp_path) == expected_totals(4))
        cli(tmp_path, "savepoint", "orders", "--stop", "drain", code=1)
        (tmp_path / "ends").touch()
        cli(tmp_path, "savepoint", "orders", "--stop", "suspend")
        assert process.wait() == 0
    second = cli(tmp_path, "savepoint", "orders").split(":")[0].strip()  # of the idle program
    assert rows_of(tmp_path / "clean") == 4 * 9
    # Put back: the table shows what it did at the savepoint, and both queries read on from there together.
    said = cli(tmp_path, "restore", key, "-p", "orders")
    assert "is back" in said
    assert rows_of(tmp_path / "clean") == 2 * 9
    (tmp_path / "totals.json").write_text(json.dumps(expected_totals(2)))
    for number in (2, 3):
        (tmp_path / "in" / f"{number}.json").unlink()
    for number in (4, 5):
        os.replace(_written(tmp_path, number - 2), tmp_path / "in" / f"{number}.json")
    with running(tmp_path):
        until(lambda: totals(tmp_path) == expected_totals(4))
    assert rows_of(tmp_path / "clean") == 4 * 9
    # And forward again: files of the later savepoint were set aside, not deleted.
    cli(tmp_path, "restore", second, "-p", "orders")
    assert rows_of(tmp_path / "clean") == 4 * 9
    assert key in cli(tmp_path, "list", "-p", "orders")


@pytest.mark.nightly
@pytest.mark.spark
def test_a_fork_of_a_program_has_directories_and_tables_of_its_own(tmp_path: Path) -> None:
    """The text names the original's; a query reads the fork's table there, and a Delta table is one of its own."""
    text = JOB.read_text().replace(".foreachBatch(save)", '.format("memory").queryName("totals")')
    text = text.replace('outputMode("update")', 'outputMode("complete")')
    text = text.replace("clean.stop()", "save(spark.table('totals'), 0)\nclean.stop()")
    text = text.replace(
        "spark.streams.awaitAnyTermination(1)",
        "spark.streams.awaitAnyTermination(1); save(spark.table('totals'), 0)",
    )
    odd = tmp_path / "ein Ort für k=1 50%"  # a path as URIs spell it in more than one way
    job = tmp_path / "job.py"
    job.write_text(text)
    (tmp_path / "session_of_job.py").write_text(JOB.with_name("session_of_job.py").read_text())

    def ran(name: str, files: int, *more: str) -> None:
        """Run the program until the table of its totals has these files, and end it."""
        (odd / "totals.json").unlink(missing_ok=True)
        with running(odd, *more, name=name, job=job):
            until(lambda: totals(odd) == expected_totals(files))
            cli(odd, "savepoint", name, "--stop", "suspend")

    for number in range(2):
        put_orders(odd, number)
    ran("orders", 2)
    key = cli(odd, "savepoint", "orders").split(":")[0].strip()
    put_orders(odd, 2)
    ran("orders", 3)
    clean, of_fork = odd / "clean", odd / "ckpt" / "tables" / "trial" / "clean"
    before = {file.name: file.read_bytes() for file in clean.rglob("*") if file.is_file()}
    fork = ("--fork-of", "orders", "--restore-from", key)
    ran("trial", 3, *fork)
    put_orders(odd, 3)
    ran("trial", 4, *fork)
    assert rows_of(of_fork) == 4 * 9
    assert {file.name: file.read_bytes() for file in clean.rglob("*") if file.is_file()} == before
    ran("orders", 4)
    assert rows_of(clean) == 4 * 9
    beginning = json.loads((odd / "ckpt" / "programs" / "trial" / "attached.json").read_text())["begins_with"]
    cli(odd, "restore", beginning, "-p", "trial")
    assert rows_of(of_fork) == 2 * 9
    ran("trial", 4)
    assert rows_of(of_fork) == 4 * 9


def _written(folder: Path, number: int) -> Path:
    put_orders(folder / "later", number)
    return folder / "later" / "in" / f"{number}.json"


def ran(defs: dg.Definitions, instance: dg.DagsterInstance, job: str, **ops: object) -> Ran:
    """Run a job to its end; ``ops`` is the config of its ops."""
    definition = defs.resolve_job_def(job)
    config = {"ops": {op: {"config": given} for op, given in ops.items()}}
    run = instance.create_run_for_job(definition, run_config=config)
    list(execute_run_iterator(InMemoryJob(definition), run, instance))
    return Ran(instance, run.run_id)


@pytest.mark.nightly
@pytest.mark.spark
def test_a_program_in_dagster_is_run_and_put_back_and_told_of(tmp_path: Path) -> None:
    for number in range(2):
        put_orders(tmp_path, number)
    base = tmp_path / "ckpt"
    defs = attached_program(JOB, name="orders", base_dir=str(base), arguments=[str(tmp_path)], interval="1 s")
    coordinator = CheckpointCoordinatorResource(base_dir=str(base))

    ended: list[Ran] = []

    def runs() -> None:
        assert not ended, ended[0].failure

    with dg.instance_for_test(overrides=WITHOUT_CAPTURE) as instance, ThreadPoolExecutor(1) as beside:

        def run(job: str, act: Callable[[], None], **ops: object) -> Ran:
            """Run the program by a job, until ``act`` is done beside it."""
            (tmp_path / "stop").unlink(missing_ok=True)

            def to_the_end() -> None:
                try:
                    act()
                finally:
                    (tmp_path / "stop").touch()

            acting = beside.submit(to_the_end)
            found = ran(defs, instance, job, **ops)
            ended.append(found)
            acting.result()
            assert found.status is dg.DagsterRunStatus.SUCCESS, found.failure
            ended.clear()
            return found

        def saved_and_more() -> None:
            until(lambda: totals(tmp_path) == expected_totals(2), runs)
            taken = ran(defs, instance, "orders_savepoint", savepoint={"name": "before"})
            assert taken.status is dg.DagsterRunStatus.SUCCESS, taken.failure
            put_orders(tmp_path, 2)
            until(lambda: totals(tmp_path) == expected_totals(3), runs)

        def read_again() -> None:
            until(lambda: totals(tmp_path) == expected_totals(3), runs)
            # It would not end with its queries: it gets a signal, and has not failed.
            stopped = ran(defs, instance, "orders_savepoint", savepoint={"action": "stop"})
            assert stopped.status is dg.DagsterRunStatus.SUCCESS, stopped.failure

        first = run("orders", saved_and_more)
        with closing(coordinator.store()) as store:
            record = find_record(store, "orders")
        assert record is not None
        assert record.owner == first.run_id
        [savepoint] = record.savepoints
        key = savepoint.known.key
        assert key in instance.get_dynamic_partitions("orders/checkpoints")
        told = instance.fetch_materializations(checkpoints_asset_key("orders"), limit=9).records
        assert key in {one.partition_key for one in told}

        (tmp_path / "totals.json").write_text(json.dumps(expected_totals(2)))
        back = run("orders_restore", read_again, restore={"restore_from": key})
        assert any(line.startswith(f"restoring {key}") for line in back.lines)
        assert rows_of(tmp_path / "clean") == 3 * 9

        verified = ran(defs, instance, "orders_care", care={"action": "verify", "checkpoint": key})
        assert verified.status is dg.DagsterRunStatus.SUCCESS, verified.failure
        idle = ran(defs, instance, "orders_savepoint")
        assert idle.status is dg.DagsterRunStatus.SUCCESS, idle.failure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        (
            "raise ValueError('no such topic')",
            dg.DagsterRunStatus.FAILURE,
            "job.py:1 in <module>, `raise ValueError('no such topic')`: ValueError: no such topic",
        ),
        ("pass", dg.DagsterRunStatus.SUCCESS, ""),
    ],
)
def test_a_program_that_starts_no_query_ends_as_it_ends(
    tmp_path: Path, text: str, status: dg.DagsterRunStatus, said: str
) -> None:
    (tmp_path / "job.py").write_text(text)
    with pytest.raises(InvalidRequest, match=r"there is no program .*: give the path of its file"):
        attached_program(tmp_path / "jab.py", base_dir=str(tmp_path))
    defs = attached_program(tmp_path / "job.py", base_dir=str(tmp_path / "ckpt"))
    with dg.instance_for_test(overrides=WITHOUT_CAPTURE) as instance:
        found = ran(defs, instance, "job")
        assert found.status is status, found.failure
        assert said in found.failure
        assert not any("Teardown of resource" in line for line in found.lines)
        run = instance.get_run_by_id(found.run_id)
        assert run is not None
        assert (run.tags.get(SKIPPED_TAG) == "true") is (not said)
