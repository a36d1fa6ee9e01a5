"""Objects that are stages' own: their state is of the cut's last batch, in epochs and streams, chained or not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt import (
    CheckpointedPipeline,
    checkpointed_pipeline,
    load_table,
    spark_sink,
    spark_source,
    spark_stage,
)
from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.core.metadata_text import decode_state
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.attempt.own_objects import OwnObjects
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.snapshot.batch_notes import captured_states, path_through, read_states
from tests.lab.lab import Lab
from tests.lab.streams import until
from tests.spark.streaming.pipelines import Numbers, read_numbers
from tests.tables import rows_in


class Seen:
    """Counts rows, and what it was begun with."""

    begun: list[Any] = []  # noqa: RUF012

    def initialize_state(self, state: Any) -> None:
        self.rows = 0 if state is None else state["rows"]
        Seen.begun.append(self.rows)

    def snapshot_state(self) -> Any:
        return {"rows": self.rows}


class Numbering(Seen):
    """Numbers batches by the rows before them: a table shows what the state was when its rows were written."""

    def process(self, rows: Any, batch_id: int) -> Any:
        from pyspark.sql import functions as f

        numbered = rows.withColumn("before", f.lit(self.rows))
        self.rows += rows.count()
        return numbered


# --- without Spark: the order of notes and rows ----------------------------------------------------------------------


@dataclass
class Rows:
    """Rows of a batch, as far as an object may look at them."""

    n: int
    before: int | None = None
    schema: Any = field(default_factory=lambda: SimpleNamespace(fields=[]))

    def persist(self) -> Rows:
        return self

    def unpersist(self) -> None:
        pass


class Adding(Seen):
    def process(self, rows: Rows, batch_id: int) -> Rows:
        made = Rows(rows.n, self.rows)
        self.rows += rows.n
        return made


class Dies(Exception):
    pass


@dataclass
class Query:
    """A query of one stage: batches are written, then in the log, then committed, and it may end between any two."""

    folder: Path
    made_by: type = Adding
    written: dict[int, int | None] = field(default_factory=dict)
    logged: set[int] = field(default_factory=set)
    committed: int = -1
    is_sink: bool = False
    tries: int = 1
    """Times a batch's rows are processed: more where rows on which it fails are left out."""
    partitions: int | None = None

    def start(self, **states: Any) -> OwnObjects:
        (self.folder / "query" / "commits").mkdir(parents=True, exist_ok=True)
        (self.folder / "query" / "offsets").mkdir(parents=True, exist_ok=True)
        if self.committed >= 0:
            for log in ("commits", "offsets"):
                (self.folder / "query" / log / str(self.committed)).write_text("v1\n{}")
        stage = SimpleNamespace(
            state=self.made_by,
            names=("s", "s_before"),
            uid="s",
            partitions=self.partitions,
            fn=None,
            role=None,
        )
        pipeline: Any = SimpleNamespace(
            authored=SimpleNamespace(stages={"s": stage} | states), members=lambda uid: ("s",)
        )
        return OwnObjects.of(pipeline, StageUid("s"), StageDirectory(self.folder))

    def run(self, batches: int, dies: str = "", at: int = -1) -> None:
        """Run to a number of batches of one row each; end at a place in one of them."""
        own = self.start()

        def write(rows: Rows, number: int) -> None:
            def here(place: str) -> None:
                if (dies, at) == (place, number):
                    raise Dies

            if not self.is_sink and number in self.logged:
                return
            for _ in range(self.tries):
                with own.processed(rows, BatchId(number)) as made:
                    here("processed")
                    if not (self.is_sink and number in self.written):
                        self.written[number] = made.before
            here("written")
            own.note(BatchId(number))
            here("noted")
            self.logged.add(number)
            here("logged")

        def is_settled(batch: BatchId) -> bool:
            return batch in self.logged or (self.is_sink and batch in self.written)

        batch = own.writer(write, is_settled=is_settled)
        for number in range(self.committed + 1, batches):
            batch(Rows(1), number)
            self.committed = number


@pytest.mark.parametrize(("is_sink", "tries"), [(False, 1), (True, 1), (False, 3)])
@pytest.mark.parametrize("place", ["processed", "written", "noted", "logged"])
def test_wherever_a_batch_ends_its_second_try_begins_as_the_first(
    tmp_path: Path, place: str, is_sink: bool, tries: int
) -> None:
    query = Query(tmp_path, is_sink=is_sink, tries=tries)
    for at in (0, 3):
        with pytest.raises(Dies):
            query.run(5, place, at)
    query.run(5)
    assert query.written == {n: n for n in range(5)}, "each batch saw exactly the rows before it"
    directory = StageDirectory(tmp_path)
    for batch in range(5):
        assert (
            read_states(path_through(directory, BatchId(batch)))
            .states["s"]
            .endswith(f'{{"rows":{batch + 1}}}}}')
        )


def test_a_state_is_found_under_an_earlier_name_and_never_dropped_without_a_word(tmp_path: Path) -> None:
    Query(tmp_path).run(3)
    (file,) = captured_states(StageDirectory(tmp_path), BatchId(1))
    restored = tmp_path / "restored"
    (restored / "own").mkdir(parents=True)
    (restored / file.path).write_text(Path(str(file.source)).read_text().replace('"s"', '"s_before"'))
    assert Query(restored).start().of_function(StageUid("s")).rows == 2
    gone = SimpleNamespace(state=None, names=("s_before",), uid="other", fn=None, role=None)
    with pytest.raises(InvalidRequest, match=r"'other' has a saved state .* put the class back"):
        Query(restored).start(other=gone)
    (restored / file.path).write_text("{")
    with pytest.raises(Corrupt, match="is damaged"):
        Query(restored).start()
    assert captured_states(StageDirectory(tmp_path / "none"), BatchId(1)) == ()


class NoJson(Seen):
    def snapshot_state(self) -> Any:
        return {1, 2}


class Raises(Adding):
    def process(self, rows: Rows, batch_id: int) -> Rows:
        raise ValueError("no such rate")


class OtherColumns(Adding):
    def process(self, rows: Rows, batch_id: int) -> Rows:
        column = SimpleNamespace(name="n", dataType=SimpleNamespace(simpleString=lambda: "int"))
        return Rows(1, schema=SimpleNamespace(fields=[column]))


@pytest.mark.parametrize(
    ("made_by", "sentence"),
    [
        (NoJson, "the state of stage 's' is no JSON"),
        (Raises, "stage 's': Raises.process failed: ValueError: no such rate"),
        (OtherColumns, r"process returned the columns \{'n': 'int'\}, and the stage has"),
    ],
)
def test_an_object_that_breaks_ends_its_batch_in_one_sentence(
    tmp_path: Path, made_by: type, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        Query(tmp_path, made_by=made_by).run(1)


@pytest.mark.parametrize(
    ("given", "settings", "sentence"),
    [
        (Seen(), {}, "give a class"),
        (type("Of", (), {"snapshotState": 1}), {}, "call it snapshot_state"),
        (type("Of", (), {"snapshot_state": print}), {}, "has no initialize_state"),
        (type("Of", (Seen,), {"list_state": "pending"}), {}, "are lists of names"),
        (
            type("Of", (Seen,), {"list_state": ["a"], "union_list_state": ["a"]}),
            {},
            "names a list twice: a, a",
        ),
        (
            type("Of", (Seen,), {"list_state": ["a"]}),
            {},
            r"initialize_state\(self, lists, subtask, parallelism\)",
        ),
        (type("Of", (Seen,), {"getListState": 1}), {}, "call it list_state"),
    ],
)
def test_a_class_that_cannot_be_a_state_is_refused(given: Any, settings: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):

        @spark_stage(state=given, **settings)
        def s(rows):  # type: ignore[no-untyped-def]
            return rows


# --- lists: an object a subtask -------------------------------------------------------------------------------------


class Lists:
    """Keeps a list of its own and one that is everybody's; ``begun`` tells what each object was begun with."""

    list_state = ["pending"]  # noqa: RUF012
    union_list_state = ["seen"]  # noqa: RUF012
    begun: list[tuple[int, int, list[Any], list[Any]]] = []  # noqa: RUF012

    def initialize_state(self, lists: Any, subtask: int, parallelism: int) -> None:
        self.subtask, self.pending, self.all_seen = subtask, lists["pending"], lists["seen"]
        self.own = [one for one in self.all_seen if one % parallelism == subtask]
        Lists.begun.append((subtask, parallelism, [*self.pending], [*self.all_seen]))

    def snapshot_state(self) -> Any:
        return {"pending": self.pending, "seen": self.own}


def begun_by(query: Query, fill: int = 0) -> list[tuple[list[Any], list[Any]]]:
    """Start, return what each object begins with, and note a batch in which each adds ``fill`` items to its list."""
    Lists.begun.clear()
    own = query.start()
    found = [(pending, seen) for _, _, pending, seen in Lists.begun]
    for one in own.objects[StageUid("s")]:
        one.pending += [f"{one.subtask}.{n}" for n in range(fill)]
        one.own += [one.subtask] if not one.own else []
    query.committed += 1
    own.note(BatchId(query.committed))
    return found


def test_lists_are_dealt_anew_when_the_partitions_change_and_union_lists_go_to_everybody(
    tmp_path: Path,
) -> None:
    def query(partitions: int | None, committed: int) -> Query:
        return Query(tmp_path, Lists, partitions=partitions, committed=committed)

    assert begun_by(query(2, -1), fill=2) == [([], [])] * 2
    assert begun_by(query(2, 0)) == [(["0.0", "0.1"], [0, 1]), (["1.0", "1.1"], [0, 1])]
    assert begun_by(query(3, 1)) == [(["0.0", "0.1"], [0, 1]), (["1.0"], [0, 1]), (["1.1"], [0, 1])]
    assert begun_by(query(None, 2)) == [(["0.0", "0.1", "1.0", "1.1"], [0, 1, 2])]


class OtherLists(Lists):
    list_state = ["seen"]  # noqa: RUF012
    union_list_state = ["pending"]  # noqa: RUF012


class Fewer(Lists):
    union_list_state = []  # noqa: RUF012


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        (Adding, Lists, "of one object, and its class names lists"),
        (Lists, Adding, "of the lists pending, seen, and its class names none"),
        (Lists, OtherLists, "with items of pending, seen, which its class names no more, or for others"),
        (Lists, Fewer, "with items of seen, which"),
    ],
)
def test_items_that_nobody_would_get_are_refused(
    tmp_path: Path, before: type, now: type, sentence: str
) -> None:
    query = Query(tmp_path, before, partitions=2)
    if before is Lists:
        begun_by(query, fill=1)
    else:
        query.run(1)
    with pytest.raises(InvalidRequest, match=rf"stage 's' has a saved state .*{sentence}.* put them back"):
        Query(tmp_path, now, partitions=2, committed=0).start()


@pytest.mark.parametrize("said", [[1], {"pending": "text"}, {"other": []}])
def test_what_is_no_list_by_its_name_is_refused(tmp_path: Path, said: Any) -> None:
    made_by = type("Of", (Lists,), {"snapshot_state": lambda self: said})
    with pytest.raises(
        InvalidRequest, match=r"Of.snapshot_state returned .*: return a list for each of pending, seen"
    ):
        Query(tmp_path, made_by).start().note(BatchId(0))


# --- runs ----------------------------------------------------------------------------------------------------


def numbered(
    folder: Path, uid: str = "numbered", former: tuple[str, ...] = (), **checkpointing: Any
) -> CheckpointedPipeline:
    """numbers -> plain (told of its object) -> numbered (hands its rows to one) -> rows."""

    @spark_source
    def numbers(spark):  # type: ignore[no-untyped-def]
        return read_numbers(spark, folder / "numbers")

    @spark_stage(state=Seen)
    def plain(numbers, context):  # type: ignore[no-untyped-def]
        context.state.rows += 1000  # a stage that counts its starts
        return numbers

    @spark_stage(state=Numbering, uid=uid, previous_uids=former)
    def named(plain):  # type: ignore[no-untyped-def]
        return plain.selectExpr("n", "-1 AS before")

    @spark_sink
    def rows(named):  # type: ignore[no-untyped-def]
        return named

    @checkpointed_pipeline(name="numbered", checkpointing=checkpointing)
    def pipeline() -> None:
        rows(named(plain(numbers())))

    return pipeline  # type: ignore[no-any-return]


def shown(tables: Path) -> Counter[tuple[int, int]]:
    return Counter((row["n"], row["before"]) for row in rows_in(tables / "rows"))


def truth(*files: int) -> Counter[tuple[int, int]]:
    """A batch a file: its rows say how many were before."""
    return Counter(
        (n, sum(files[:at]))
        for at, size in enumerate(files)
        for n in range(sum(files[:at]), sum(files[: at + 1]))
    )


def is_exact(found: Counter[tuple[int, int]], count: int) -> bool:
    """Tell whether all numbers are there once, each with the number of rows before its batch, however batches fell."""
    firsts: dict[int, int] = {}
    for n, before in sorted(found):
        firsts.setdefault(before, n)
    return sorted(n for n, _ in found.elements()) == list(range(count)) and all(
        before == first for before, first in firsts.items()
    )


def test_an_epoch_goes_on_with_the_state_of_its_cut_back_renamed_and_forked(lab: Lab, tmp_path: Path) -> None:
    feed = Numbers(tmp_path / "numbers")
    pipeline = numbered(tmp_path)

    def run(of: CheckpointedPipeline, **restore: Any) -> None:
        lab.succeeds(of, **restore)

    feed.put(5)
    feed.put(3)
    run(pipeline)
    assert shown(lab.tables) == truth(5, 3)
    saved = lab.metadata(pipeline, 1)
    assert [set(chain.stages) for chain in saved.chains] == [{"numbers", "plain", "numbered"}], "chained"
    feed.put(2)
    Seen.begun.clear()
    run(pipeline)
    assert shown(lab.tables) == truth(5, 3, 2)
    assert 1000 in Seen.begun, "a stage within a chain finds the state that its first run left"
    feed.put(4)
    run(pipeline, restore_from="chk-1")
    assert shown(lab.tables) == truth(5, 3, 2, 4)
    renamed = numbered(tmp_path, "again", ("numbered",))
    feed.put(1)
    run(renamed)
    assert shown(lab.tables) == truth(5, 3, 2, 4, 1)
    fork = pipeline.fork("forked", table_dir=str(tmp_path / "fork"))
    run(fork, restore_from=lab.record(pipeline).completed[0].location.uri, fork=True)
    assert shown(tmp_path / "fork") == truth(5, 3, 2, 4, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("instant_cuts", [False, True])
def test_a_stream_that_is_killed_goes_on_with_the_state_of_its_cut(
    lab: Lab, tmp_path: Path, instant_cuts: bool
) -> None:
    feed = Numbers(tmp_path / "numbers")
    pipeline = numbered(tmp_path, instant_cuts=instant_cuts)
    feed.put(5)
    running = lab.start(pipeline)
    until(lambda: bool(running.checkpoint()) and is_exact(shown(lab.tables), 5), running)
    for size in (3, 2, 1):
        feed.put(size)
    running.crash()
    running.join()
    feed.put(2)
    again = lab.start(pipeline)
    until(lambda: bool(again.checkpoint()) and len(shown(lab.tables)) == 13, again)
    assert is_exact(shown(lab.tables), 13)
    again.stop()


class Buffers:
    """Holds back each subtask's last row, until a batch brings it another."""

    list_state = ["pending"]  # noqa: RUF012

    def initialize_state(self, lists: Any, subtask: int, parallelism: int) -> None:
        self.pending = lists["pending"]

    def snapshot_state(self) -> Any:
        return {"pending": self.pending}

    def process(self, rows: Any, batch_id: int) -> Any:
        going = self.pending + sorted(row["n"] for row in rows.collect())
        self.pending = going[-1:]
        return rows.sparkSession.createDataFrame([(n,) for n in going[:-1]], rows.schema)


def buffered(folder: Path, partitions: int) -> CheckpointedPipeline:
    """numbers -> held, of so many subtasks, which has a condition on rows and fails on one of them -> rows."""

    @spark_source
    def numbers(spark):  # type: ignore[no-untyped-def]
        return read_numbers(spark, folder / "numbers").repartition(4)

    @spark_stage(state=Buffers, partitions=partitions, expect={"n <> 3": "drop"}, on_error="quarantine")
    def held(numbers, context):  # type: ignore[no-untyped-def]
        assert len(context.state) == partitions
        return numbers.selectExpr("IF(n = 5, CAST(raise_error('five') AS INT), n) AS n")

    @spark_sink
    def rows(held):  # type: ignore[no-untyped-def]
        return held

    @checkpointed_pipeline(name="buffered")
    def pipeline() -> None:
        rows(held(numbers()))

    return pipeline  # type: ignore[no-any-return]


def test_lists_beside_conditions_go_back_with_a_checkpoint_to_other_partitions(
    lab: Lab, tmp_path: Path
) -> None:
    feed = Numbers(tmp_path / "numbers")

    def held() -> list[list[int]]:
        """Return what each subtask holds back in the newest note."""
        notes = [*tmp_path.rglob("held/own/*.json")]
        (text,) = read_states(max(notes, key=lambda path: path.stat().st_mtime_ns)).states.values()
        return [one["pending"] for one in decode_state("held", text)]

    def is_exact(subtasks: int) -> None:
        waiting, seen = held(), [row["n"] for row in rows_in(lab.tables / "rows")]
        assert len(waiting) == subtasks
        everything = Counter([*seen, *(n for one in waiting for n in one)])
        assert everything - Counter([3]) == Counter({*range(feed.count)} - {3, 5}), "each once, or held back"

    feed.put(10)
    lab.succeeds(buffered(tmp_path, 3))
    is_exact(3)
    assert sum(map(len, held())) == 3, "each subtask got rows"
    feed.put(4)
    lab.succeeds(buffered(tmp_path, 2))
    is_exact(2)
    lab.succeeds(buffered(tmp_path, 4), restore_from="chk-1")
    is_exact(4)
    kept = load_table(buffered(tmp_path, 4), "held", coordinator=lab.coordinator).to_arrow().to_pylist()
    assert ["five" in row["error"] for row in kept] == [True]


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{"num_retained": 5}], indirect=True)
def test_a_sinks_state_goes_on_where_its_rows_are_judged_from_now_on_and_no_more(
    lab: Lab, tmp_path: Path
) -> None:
    """It was said to declare no state any more."""
    feed = Numbers(tmp_path / "numbers")

    def run(**settings: Any) -> None:
        @spark_source
        def numbers(spark):  # type: ignore[no-untyped-def]
            return read_numbers(spark, tmp_path / "numbers")

        @spark_sink(state=Numbering, **settings)
        def rows(numbers):  # type: ignore[no-untyped-def]
            return numbers.selectExpr("n", "-1 AS before")

        @checkpointed_pipeline(name="judged")
        def pipeline() -> None:
            rows(numbers())

        lab.succeeds(pipeline, **restore)

    restore: dict[str, Any] = {}
    for count, settings in ((5, {}), (3, {"expect": {"n >= 0": "quarantine"}}), (2, {})):
        feed.put(count)
        run(**settings)
    assert shown(lab.tables) == truth(5, 3, 2)
    restore = {"restore_from": "chk-2"}
    run(expect={"n >= 0": "quarantine"})
    assert shown(lab.tables) == truth(5, 3, 2)
