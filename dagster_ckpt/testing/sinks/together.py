"""Contract of sinks that change together: a reader of two tables finds both at one checkpoint, wherever it looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_ckpt.errors import Fenced
from dagster_ckpt.spark.sink.port import AlreadyPublished, Published, in_one_step
from dagster_ckpt.testing.sinks.base import ContractBase
from dagster_ckpt.testing.sinks.run import Row, RunCut, SinkRun, crash_points

Pair = tuple[SinkRun, SinkRun]


class TogetherContract(ContractBase):
    """Two sinks of one pipeline, with an equal ``joint``."""

    def test_tables_that_change_together_show_one_checkpoint_wherever_the_process_ends(
        self, tmp_path: Path
    ) -> None:
        self.skip_unless(self.changes_together, "changes alone")
        tries: list[Pair] = []

        def work() -> Callable[[], object]:
            pair = self._pair(tmp_path / str(len(tries)))
            tries.append(pair)
            _batch(pair, 1)
            publish(pair, 1)
            _batch(pair, 2)
            return lambda: publish(pair, 2)

        for at in crash_points(work, self.steps()):
            pair = tries[-1]
            before, after = [[(1, 1)], [(1, -1)]], [run.expected() for run in pair]
            assert self._both(pair) in (before, after), at
            newer = pair[0].successor(), pair[1].successor()
            for run in newer:
                run.sink.take_over()
            publish(newer, 2)
            assert self._both(pair) == after, at
            assert all(isinstance(done, AlreadyPublished) for done in publish(newer, 3)), at

    def test_of_tables_that_change_together_one_that_refuses_holds_back_the_other(
        self, tmp_path: Path
    ) -> None:
        self.skip_unless(self.changes_together, "changes alone")
        pair = self._pair(tmp_path)
        _batch(pair, 1)
        pair[1].successor().sink.take_over()
        with pytest.raises(Fenced):
            publish(pair, 1)
        assert self._both(pair) == [[], []]
        position = pair[0].sink.position()
        assert position is not None
        assert position.head is None

    def test_tables_that_change_together_go_back_together(self, tmp_path: Path) -> None:
        self.skip_unless(self.goes_back_together and self.can_roll_back, "goes back alone, or not at all")
        tries: list[tuple[Pair, tuple[RunCut, RunCut], list[list[Row]]]] = []

        def work() -> Callable[[], object]:
            pair = self._pair(tmp_path / str(len(tries)))
            _batch(pair, 1)
            publish(pair, 1)
            _batch(pair, 2)
            cuts = pair[0].cut(2), pair[1].cut(2)
            _batch(pair, 3)
            publish(pair, 3)
            newer = pair[0].successor(), pair[1].successor()
            tries.append((newer, cuts, [run.expected() for run in pair]))
            return lambda: roll_back(newer, cuts)

        for at in crash_points(work, self.steps()):
            newer, cuts, before = tries[-1]
            after = [cut.rows for cut in cuts]
            assert self._both(newer) in (before, after), at
            roll_back((newer[0].reopened(), newer[1].reopened()), cuts)
            assert self._both(newer) == after, at

    def test_tables_that_go_back_together_begin_a_fork_together(self, tmp_path: Path) -> None:
        self.skip_unless(self.goes_back_together and self.can_fork, "goes back alone, or cannot fork")
        pair = self._pair(tmp_path)
        for number in (1, 2):
            _batch(pair, number)
            publish(pair, number)
        cuts = pair[0].cut(2), pair[1].cut(2)
        _batch(pair, 3)
        publish(pair, 3)
        before = self._both(pair)
        fork = self.opened(tmp_path, pipeline="fork"), self.opened(tmp_path, pipeline="fork", name="refunds")
        begun = [(run.in_directory_of(cut), cut) for run, cut in zip(fork, cuts, strict=True)]
        for _ in range(2):  # a fork whose run failed at once begins again
            in_one_step([run.sink for run in fork], lambda: [run.sink.fork(cut.cut) for run, cut in begun])
            assert [self.shown(run) for run, _ in begun] == [cut.rows for cut in cuts]
        assert self._both(pair) == before

    def _pair(self, folder: Path) -> Pair:
        pair = self.begun(folder), self.begun(folder, name="refunds")
        assert pair[0].sink.joint == pair[1].sink.joint is not None
        assert pair[0].sink.place != pair[1].sink.place
        return pair

    def _both(self, pair: Pair) -> list[list[Row]]:
        return [self.shown(run) for run in pair]


def _batch(pair: Pair, number: int) -> None:
    """Process rows whose sum over both tables is nothing."""
    pair[0].batch([(number, number)])
    pair[1].batch([(number, -number)])


def publish(pair: Pair, checkpoint: int) -> list[Published | AlreadyPublished]:
    """Publish a checkpoint to both, in one step."""
    return in_one_step([run.sink for run in pair], lambda: [run.publish(checkpoint) for run in pair])


def roll_back(pair: Pair, cuts: tuple[RunCut, RunCut]) -> None:
    """Go back in one step."""
    both = list(zip(pair, cuts, strict=True))
    in_one_step(
        [run.sink for run in pair], lambda: [run.in_directory_of(cut).roll_back(cut) for run, cut in both]
    )
