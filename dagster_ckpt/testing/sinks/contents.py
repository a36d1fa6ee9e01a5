"""Contract of what rows become: the latest of each key, all there are, with columns that come and change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.testing.sinks.base import ContractBase
from dagster_ckpt.testing.sinks.run import Row, SinkRun, crash_points


class ContentContract(ContractBase):
    """Keys, output mode *complete*, and schemas."""

    def test_the_last_row_of_a_key_wins(self, tmp_path: Path) -> None:
        self.skip_unless(self.can_upsert, "has no keys")
        run = self.begun(tmp_path, key=("k",))
        run.batch([(1, 1), (2, 2), (1, 3)], [(2, 4), (3, 5)])
        run.batch([(3, 6), (4, 7)])
        run.publish(1)
        assert self.shown(run) == run.expected() == [(1, 3), (2, 4), (3, 6), (4, 7)]
        run.batch([(4, 8)])
        run.batch([(1, 9), (5, 10)])
        run.publish(2)
        assert self.shown(run) == run.expected()

    def test_rows_by_key_go_back_to_a_cut(self, tmp_path: Path) -> None:
        self.skip_unless(self.can_upsert and self.can_roll_back, "has no keys, or cannot roll back")
        run = self.begun(tmp_path, key=("k",))
        run.batch([(1, 1), (2, 2)])
        run.publish(1)
        run.batch([(1, 3)])
        at = run.cut(2)
        run.publish(2)
        run.batch([(2, 4), (3, 5)])
        run.publish(3)
        back = run.restored(at)
        assert self.shown(run) == at.rows == [(1, 3), (2, 2)]
        back.batch([(2, 6)])
        back.publish(4)
        assert self.shown(run) == back.expected()

    def test_an_upsert_that_stopped_anywhere_is_whole_after_it_is_repeated(self, tmp_path: Path) -> None:
        self.skip_unless(self.can_upsert, "has no keys")
        runs: list[SinkRun] = []

        def work() -> Callable[[], object]:
            run = self.begun(tmp_path / str(len(runs)), key=("k",))
            runs.append(run)
            run.batch([(1, 1), (2, 2)])
            run.publish(1)
            run.batch([(1, 3)])
            run.batch([(1, 4), (3, 5)])
            return lambda: run.publish(2)

        for at in crash_points(work, self.steps()):
            newer = runs[-1].successor()
            newer.sink.take_over()
            assert self.shown(newer) in ([(1, 1), (2, 2)], newer.expected()), at
            newer.publish(2)
            newer.publish(3)
            assert self.shown(newer) == newer.expected(), at

    @pytest.mark.parametrize("key", [(), ("k",)])
    def test_a_batch_that_replaces_leaves_no_earlier_rows(self, tmp_path: Path, key: tuple[str, ...]) -> None:
        self.skip_unless(self.can_upsert if key else self.can_replace, "has no output mode complete")
        run = self.begun(tmp_path, key=key)
        run.batch([(1, 1), (2, 2)], replaces=True)
        run.publish(1)
        at = run.cut(2)
        run.batch([(1, 3)], replaces=True)
        run.batch([(1, 4), (2, 5)], [(3, 6)], replaces=True)
        run.publish(2)
        assert self.shown(run) == run.expected() == [(1, 4), (2, 5), (3, 6)]
        run.batch([(7, 7)], replaces=True)
        run.publish(3)
        assert self.shown(run) == [(7, 7)]
        if self.can_roll_back:
            assert self.shown(run.restored(at)) == [(1, 1), (2, 2)]

    def test_a_column_may_come_and_stay_away_again(self, tmp_path: Path) -> None:
        self.skip_unless(self.can_add_columns, "keeps its columns")
        run = self.published(tmp_path, [(1, 1)])
        at = run.cut(1)
        run.batch([(2, 2)])
        run.batch([(3, 3, "x")], types={"w": pa.string()})
        run.publish(2)
        run.batch([(4, 4)])
        run.publish(3)
        assert self.shown(run) == run.expected()
        if self.can_roll_back:
            back = run.restored(at)
            back.batch([(5, 5, "y")], types={"w": pa.string()})
            back.publish(4)
            assert self.shown(run) == [(1, 1), (5, 5)]

    def test_a_row_by_key_that_comes_again_without_a_column_has_no_value_there(self, tmp_path: Path) -> None:
        """In one publish it had none, and over two the older row's: which one depended on when checkpoints were."""
        self.skip_unless(self.can_upsert and self.can_load and self.can_add_columns, "keeps its columns")
        run = self.begun(tmp_path, key=("k",))
        run.batch([(1, 1, "x"), (2, 2, "y")], types={"w": pa.string()})
        run.publish(1)
        run.batch([(2, 3)])
        run.publish(2)
        found = run.sink.rows().to_arrow().select(["k", "v", "w"]).sort_by("k").to_pylist()
        assert found == [{"k": 1, "v": 1, "w": "x"}, {"k": 2, "v": 3, "w": None}]

    def test_a_column_that_changes_its_type_is_refused_by_name(self, tmp_path: Path) -> None:
        self.skip_unless(self.checks_types, "takes any type")
        run = self.published(tmp_path, [(1, 1)])
        run.batch([(2, "two")], types={"v": pa.string()})
        with pytest.raises(InvalidRequest, match=r"\bv\b"):
            run.publish(2)
        assert self.shown(run) == [(1, 1)]

    @pytest.mark.parametrize("key", [(), ("k",)])
    def test_loaded_rows_are_those_that_readers_find_or_exactly_a_cuts(
        self, tmp_path: Path, key: tuple[str, ...]
    ) -> None:
        self.skip_unless(self.can_load and (self.can_upsert or not key), "cannot be loaded")
        run = self.begun(tmp_path, key=key)
        before = run.cut(1)
        run.batch([(1, 1), (2, 2)])
        run.publish(2)
        early = run.cut(3)
        run.batch([(2, 3)])
        late = run.cut(4)  # of a savepoint: nothing is published with it
        loaded = run.sink.rows()
        run.publish(5)
        run.batch([(4, 4)])
        run.publish(6)
        assert self.loaded(run) == run.expected()
        shown = replace(early.cut, snapshot=early.cut.snapshot.model_copy(update={"head": 6}))
        newest = run.expected()
        loads_shown = self.can_load_cuts or self.can_load_shown
        if self.can_load_cuts:
            assert pairs(loaded.to_arrow()) == early.rows, (
                "one state is read, whatever is published meanwhile"
            )
        else:
            with pytest.raises(InvalidRequest, match=r"newest rows"):
                run.sink.rows((late if loads_shown else early).cut)
        cuts = [(cut.cut, cut.rows) for cut in (before, early, late)[: 3 if self.can_load_cuts else 2]]
        for _ in range(2 if loads_shown else 0):
            for cut, rows in (*cuts, (shown, newest)):
                assert pairs(run.sink.rows(cut).to_arrow()) == rows
            run = run.restored(early) if self.can_roll_back else run
            assert self.loaded(run) == run.expected()

    def loaded(self, run: SinkRun) -> list[Row]:
        """Return the rows that the sink itself reads."""
        return pairs(run.sink.rows().to_arrow())


def pairs(rows: pa.Table) -> list[Row]:
    """Return (k, v) of all rows, sorted."""
    if not rows.num_rows:
        return []
    return sorted(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
