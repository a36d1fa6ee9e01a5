"""Objects that are stages' own: their state is of the cut's last batch, in epochs and streams, chained or not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt import CheckpointedPipeline, checkpointed_pipeline, spark_sink, spark_source, spark_stage
from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.attempt.query_state import OwnObjects
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

    def start(self, **states: Any) -> OwnObjects:
        (self.folder / "query" / "commits").mkdir(parents=True, exist_ok=True)
        (self.folder / "query" / "offsets").mkdir(parents=True, exist_ok=True)
        if self.committed >= 0:
            for log in ("commits", "offsets"):
                (self.folder / "query" / log / str(self.committed)).write_text("v1\n{}")
        stage = SimpleNamespace(state=self.made_by, names=("s", "s_before"), uid="s")
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

            here("processed")
            if not self.is_sink and number in self.logged:
                return
            if not (self.is_sink and number in self.written):
                self.written[number] = rows.before
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


@pytest.mark.parametrize("is_sink", [False, True])
@pytest.mark.parametrize("place", ["processed", "written", "noted", "logged"])
def test_wherever_a_batch_ends_its_second_try_begins_as_the_first(
    tmp_path: Path, place: str, is_sink: bool
) -> None:
    query = Query(tmp_path, is_sink=is_sink)
    for at in (0, 3):
        with pytest.raises(Dies):
            query.run(5, place, at)
    query.run(5)
    assert query.written == {n: n for n in range(5)}, "each batch saw exactly the rows before it"
    directory = StageDirectory(tmp_path)
    for batch in range(5):
        assert read_states(path_through(directory, BatchId(batch)))["s"].endswith(f'{{"rows":{batch + 1}}}}}')


def test_a_state_is_found_under_an_earlier_name_and_never_dropped_without_a_word(tmp_path: Path) -> None:
    Query(tmp_path).run(3)
    (file,) = captured_states(StageDirectory(tmp_path), BatchId(1))
    restored = tmp_path / "restored"
    (restored / "own").mkdir(parents=True)
    (restored / file.path).write_text(Path(str(file.source)).read_text().replace('"s"', '"s_before"'))
    assert Query(restored).start().objects[StageUid("s")].rows == 2
    gone = SimpleNamespace(state=None, names=("s_before",), uid="other")
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
        (Seen, {"expect": {"n > 0": "drop"}}, "conditions on its rows"),
    ],
)
def test_a_class_that_cannot_be_a_state_is_refused(given: Any, settings: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):

        @spark_stage(state=given, **settings)
        def s(rows):  # type: ignore[no-untyped-def]
            return rows


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
