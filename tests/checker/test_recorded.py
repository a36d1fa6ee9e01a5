"""Whatever kills records what readers saw: a row that one of them finds twice is found by the checker."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assets import truth
from assets.demo_history import DemoHistory
from benchmarks import soak
from benchmarks.soak_cluster import ClusterSoak
from tests.attack.judge import Judge, Trial
from tests.attack.outsides import Kind
from tests.checker.record import Recorder
from tests.fuzz.drawn import draw
from tests.fuzz.killed import History, Killing
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.lake import deployment
from tests.spark.streaming.pipelines import expected_rows

Read = Callable[[Path, bool], list[str]]
"""Records what arrives and a read in a folder, with one row twice or as it should be; returns what is found."""


def in_soak(folder: Path, twice: bool) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(soak.LocalSoak, "_start", lambda self: None)
        one = soak.LocalSoak(folder, "aligned", random.Random(1))
        one.feed()
        shown = expected_rows(one.fed)
        patch.setattr(soak, "read_rows", lambda tables: doubled(shown) if twice else shown)
        one._seen("rows", settled=True)
    return [] if one.judged() else ["doubled"]


def in_soak_on_a_cluster(folder: Path, twice: bool) -> list[str]:
    source = Feed(folder / "feed")

    def shown() -> dict[str, Counter[tuple[Any, ...]]]:
        found = deployment.truth(source)
        return {**found, "lines": doubled(found["lines"])} if twice else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterSoak, "_started", lambda self: None)
        places: Any = SimpleNamespace(shown=shown)
        one = ClusterSoak(folder, None, source, places, random.Random(1))  # type: ignore[arg-type]
        for _ in range(3):
            one.feed()
        one._seen(settled=True)
    return [] if one.judged() else ["doubled"]


def in_attack(folder: Path, twice: bool) -> list[str]:
    recorder = Recorder(folder / "history.jsonl", {"rows": "append", "newest": "keyed"})
    judge = Judge(None, Trial(0, Kind.OWN, 0, []))  # type: ignore[arg-type]
    rows = [(1, 0), (2, 1)]
    judge._record(recorder, recorder.now(), {"rows": rows + rows[:1] * twice, "newest": rows}, rows)
    return judge.trial.said


def in_demo(folder: Path, twice: bool) -> list[str]:
    history = DemoHistory(folder / "history.jsonl")
    for day in (1, 2, 3):
        history.arrive(day)
    tables = {
        "airport_delays": truth.airport_delays(truth.closed_days((1, 2, 3))),
        "tail_totals": truth.tail_totals((1, 2, 3)).rows,
    }
    if twice:
        tables = {name: rows.iloc[[0, *range(len(rows))]] for name, rows in tables.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truth, "read_table", lambda place, columns: tables[place.name][columns])
        history.look(folder, settled=True)
    return [*map(str, history.judged()[1])]


def in_fuzz(folder: Path, twice: bool) -> list[str]:
    """A pipeline whose programs are killed; its first table has rows."""
    seed = next(seed for seed in range(99) if not draw(seed).outputs[0].key)
    with pytest.MonkeyPatch.context() as patch:
        history = History(draw(seed), folder, Killing(folder))
        while not history.model.rows(history.drawn, 0):
            history.feed()
        rows = history.model.rows(history.drawn, 0)
        patch.setattr("tests.fuzz.killed.rows_in", lambda *_: doubled(rows) if twice else rows)
        history.read(0, settled=True)
    return [*map(str, history.judged())]


def doubled(rows: Counter[Any]) -> Counter[Any]:
    return rows + Counter([min(rows, key=repr)])


@pytest.mark.parametrize("read", [in_soak, in_soak_on_a_cluster, in_attack, in_demo, in_fuzz])
def test_a_row_that_is_there_twice_is_found_by_the_checker(
    read: Read, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {
        twice: read(tmp_path / str(twice), twice)
        for twice in (False, True)
        if not (tmp_path / str(twice)).mkdir()
    }
    assert found[False] == []
    assert any("doubled" in said or "more than once" in said for said in found[True]), found
