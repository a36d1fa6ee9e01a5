"""Drawn pipelines: a seed says the same each time, the model is right by hand, and Spark does as the model says."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.attack.judge import Verdict
from tests.attack.outsides import Kind
from tests.fuzz.drawn import FAILS_AT, Drawn, Judges, Op, Output, Shape, Stage, Step, What, draw
from tests.fuzz.model import EPOCH, Model
from tests.fuzz.played_world import PlayedWorld, as_played, played_without_spark
from tests.fuzz.story import played, shrunk
from tests.fuzz.values import Row
from tests.fuzz.world import Finding, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_seed_draws_the_same_each_time_and_seeds_draw_everything() -> None:
    drawn = [draw(seed) for seed in range(200)]
    assert drawn == [draw(seed) for seed in range(200)]
    assert {stage.op for one in drawn for stage in one.stages} == set(Op)
    assert {step.what for one in drawn for step in one.steps} == set(What)
    kinds = {output.kind for one in drawn for output in one.outputs}
    assert kinds == {Kind.OWN, Kind.ICEBERG, Kind.SQL, Kind.FUNCTION}
    assert {len(one.stages) for one in drawn} == set(range(1, 9))
    assert any(len(set(stage.inputs)) < len(stage.inputs) for one in drawn for stage in one.stages)


def test_the_readers_of_a_renamed_stage_read_it_under_its_new_name() -> None:
    renamed = pipeline(Op.MAP).with_stage("source_0", uid="source_0_x", previous=("source_0",))
    assert [(one.uid, one.inputs) for one in renamed.stages] == [
        ("source_0_x", ()),
        ("map_1", ("source_0_x",)),
    ]


def minute(number: int) -> dt.datetime:
    return EPOCH + dt.timedelta(minutes=number)


def pipeline(*ops: Op, key: tuple[str, ...] = (), sums: str = "", number: int = 2) -> Drawn:
    """One source, the operators behind one another (a join or union of it with itself), and one sink."""
    stages = [Stage("source_0", Op.SOURCE)]
    for op in ops:
        inputs = (stages[-1].uid,) * (2 if op in (Op.JOIN, Op.UNION) else 1)
        stages.append(Stage(f"{op}_{len(stages)}", op, inputs, number=number))
    output = Output("sink_0", Kind.OWN, stages[-1].uid, key, sums, "table_0")
    shapes = {one.uid: Shape() for one in stages}
    return Drawn(0, tuple(stages), (output,), "string", "int", {}, {}, shapes=shapes)


FIRST: list[Row] = [(1, "a", 3, minute(1), 7), (2, None, 4, minute(2), 8)]
SECOND: list[Row] = [(5, "a", -10, minute(31), 9), (1, "a", 3, minute(1), 7)]
BY_HAND = {
    "map": (pipeline(Op.MAP), [(1, "a", 8, minute(1), 7), (2, None, 10, minute(2), 8)], 4),
    "filter": (pipeline(Op.FILTER), [(1, "a", 3, minute(1), 7)], 3),
    "union": (pipeline(Op.UNION), FIRST * 2, 8),
    "dedup": (pipeline(Op.DEDUP), FIRST, 3),
    "distinct": (pipeline(Op.DISTINCT), [(3, "a", 3, EPOCH, None), (4, None, 4, EPOCH, None)], 3),
    "join": (pipeline(Op.JOIN), [(10008, "a", 6, minute(1), 7)], 9),
    "sum": (pipeline(Op.SUM, key=("k",)), FIRST, 2),
    "closed": (pipeline(Op.CLOSED), [], 2),
    "by key": (pipeline(key=("n",)), FIRST, 3),
    "sums": (pipeline(key=("k",), sums="complete"), FIRST, 2),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_model_is_right_by_hand(name: str) -> None:
    drawn, first, second = BY_HAND[name]
    model = Model()
    model.process(drawn, {1: (0, FIRST)})
    assert model.rows(drawn, 0) == Counter(first)
    snapshot = model.copy()
    model.process(drawn, {1: (0, FIRST), 2: (0, SECOND)})
    assert model.rows(drawn, 0).total() == second
    assert snapshot.rows(drawn, 0) == Counter(first), "a snapshot stays as it was"
    snapshot.process(drawn, {1: (0, FIRST), 2: (0, SECOND)})
    assert snapshot.rows(drawn, 0) == model.rows(drawn, 0), "and goes on from there"


def test_sums_are_of_all_rows_of_their_key_and_windows_close_with_the_watermark() -> None:
    model = Model()
    drawn = pipeline(Op.SUM, key=("k",))
    model.process(drawn, {1: (0, FIRST), 2: (0, SECOND[:1])})
    assert model.rows(drawn, 0) == Counter([(5, "a", -7, minute(31), 9), FIRST[1]])
    model, drawn = Model(), pipeline(Op.CLOSED)
    model.process(drawn, {1: (0, FIRST), 2: (0, SECOND[:1])})
    assert model.rows(drawn, 0) == Counter([(0, "a", 3, EPOCH, None), (0, None, 4, EPOCH, None)])


def test_good_kept_and_dropped_rows_are_the_input_and_kept_ones_go_through_again_once() -> None:
    asked = Judges((("n >= 0", "warn"), ("v > -20", "quarantine"), ("k IS NOT NULL", "drop")), on_error=True)
    drawn = pipeline(Op.MAP).with_stage("map_1", judges=asked)
    rows: list[Row] = [(n, "a" if n % 4 else None, n - 30, minute(n), 7) for n in range(20)]
    model = Model()
    model.process(drawn, {1: (0, rows)})
    good, kept = [row[0] for row in model.tables[0]], model.kept["map_1"]
    failed = [n for n in range(20) if n % FAILS_AT == 1]
    low = [n for n in range(20) if n not in failed and (n - 30) * 2 + 2 <= -20]
    dropped = [n for n in range(20) if n not in failed + low and n % 4 == 0]
    assert [one.row[0] for one in kept] == failed + low
    assert sorted(good + failed + low + dropped) == [*range(20)]
    mended = pipeline(Op.MAP).with_stage("map_1", judges=replace(asked, expect=(("k IS NOT NULL", "drop"),)))
    for _ in range(2):
        model.process(mended, {1: (0, rows)}, lambda name, has_rows: name == "map_1")
    again = [n for n in low if n % 4]
    assert [row[0] for row in model.tables[0]] == good + again
    states = {one.row[0]: one.state for one in model.kept["map_1"]}
    assert {n for n, state in states.items() if state == "quarantined"} == {*failed}
    assert {n for n, state in states.items() if state == "requeued"} == {*again}


def test_a_row_too_much_is_found_and_a_story_shrinks_to_the_steps_that_fail() -> None:
    drawn = replace(pipeline(), steps=tuple(Step(what, 1) for what in What))
    model = Model()
    model.process(drawn, {1: (0, FIRST)})
    with pytest.raises(Finding, match=r"lacks.*has") as found:
        World(drawn, None, Path())._compare(0, Counter([FIRST[0], FIRST[0]]), model, "")  # type: ignore[arg-type]
    assert found.value.verdict is Verdict.SILENT
    needed = {What.RENAME, What.RESTORE}
    short = shrunk(drawn, lambda one: needed <= {step.what for step in one.steps})
    assert {step.what for step in short.steps} == needed


PLAYED = (1,)
"""Seeds that are played without Spark."""


@pytest.mark.parametrize("seed", PLAYED)
def test_played_queries_do_as_the_model_says(seed: int, tmp_path: Path) -> None:
    world, finding = played_without_spark(as_played(draw(seed)), tmp_path)
    assert finding is None, f"{finding} {world.said}"


class _Halfway(Random):
    """Chooses the last, and the one in the middle."""

    def choice(self, seq: Any) -> Any:
        return seq[-1]

    def randrange(self, start: int, *_: Any) -> int:  # type: ignore[override]
        return start // 2


def test_the_printed_way_out_of_a_restore_that_died_works(tmp_path: Path) -> None:
    drawn = pipeline(Op.MAP)
    drawn = replace(drawn, outputs=(replace(drawn.outputs[0], kind=Kind.FUNCTION),))
    world = PlayedWorld(replace(drawn, settings={"operator_chaining": True}), None, tmp_path)  # type: ignore[arg-type]
    world.epoch(Random(1))
    world.crashed_restore(_Halfway())
    assert [one for one in world.said if one == "none"]
    (refused,) = world.refused
    assert "(keep_rows_of: [sink_0])" in refused
    world.epoch(Random(2))
    assert len(world.refused) == 1, "and the runs after it need no word"


FIXED = {1404: (What.EPOCH, What.CRASHED_RESTORE)}
"""Seeds, and the stories that they play here."""


@pytest.mark.parametrize("seed", FIXED)
def test_spark_does_as_the_model_says(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    steps = tuple(Step(what, seed + i) for i, what in enumerate(FIXED[seed]))
    world, finding = played(replace(draw(seed), steps=steps), spark, tmp_path)
    assert finding is None, f"{finding} {world.said}"
    assert not world.refused
