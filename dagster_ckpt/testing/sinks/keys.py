"""Contract of rows and of their keys: the latest of each key or all, with columns that come, of any type and value."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

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


_NAN, _INFINITY = float("nan"), float("inf")
_NUMBERS = [(0.0, -0.0), (0.1,), (-0.1,), (1.0,), (_INFINITY,), (-_INFINITY,), (_NAN,), (None,)]
_DAYS = [dt.date.min, dt.date(1582, 10, 4), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date.max]
_MOMENTS = [dt.datetime(day.year, day.month, day.day, 12, 59, 59, 999_999) for day in _DAYS[:-1]]  # noqa: DTZ001
_TEXTS = [
    "",
    "a",
    "A",
    "a ",
    "a  ",
    " a",
    "a\n",
    "ä",
    "a\u0308",
    "ß",
    "ss",
    "😀",
    "\uffff",
    "0",
    "-0",
    "null",
    "NaN",
]
_SQL = ["\\N", "NULL", "%s", "%%", "'", '"', '""', ",", "\\", "\\x00", ":a", "?", "x" * 2_000]


def _each(values: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [*((value,) for value in values), (None,)]


KEYS: dict[str, tuple[pa.DataType, list[tuple[Any, ...]]]] = {
    "boolean": (pa.bool_(), _each([True, False])),
    "tinyint": (pa.int8(), _each([0, 1, -1, 127, -128])),
    "smallint": (pa.int16(), _each([0, 1, -1, 2**15 - 1, -(2**15)])),
    "int": (pa.int32(), _each([0, 1, -1, 2**31 - 1, -(2**31)])),
    "bigint": (pa.int64(), _each([0, 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)])),
    "float": (pa.float32(), _NUMBERS),
    "double": (
        pa.float64(),
        [*_NUMBERS, (5e-324,), (1.7976931348623157e308,), (0.30000000000000004,), (0.3,)],
    ),
    "decimal": (pa.decimal128(20, 2), _each([Decimal(n).scaleb(-2) for n in (0, 1, -1, 100, 10**20 - 1)])),
    "date": (pa.date32(), _each(_DAYS)),
    "timestamp": (pa.timestamp("us", "UTC"), _each([moment.replace(tzinfo=dt.UTC) for moment in _MOMENTS])),
    "timestamp_ntz": (pa.timestamp("us"), _each(_MOMENTS)),
    "binary": (pa.binary(), _each([b"", b"\x00", b"\x00\x00", b"a", b"A", b"\xff\xfe", b"a "])),
    "string": (pa.string(), _each([*_TEXTS, *_SQL])),
}
"""For each type its values, those that Spark takes for one key together."""


class KeyContract(ContractBase):
    """One row a key: the newest."""

    keys_not_taken: ClassVar[frozenset[str]] = frozenset()
    """What ``check`` or ``prepare`` refuses in a key: ``null``, ``NaN``, ``several`` columns, or a type of ``KEYS``."""

    @pytest.mark.parametrize("kind", KEYS)
    def test_a_key_has_one_row_whatever_its_value(self, tmp_path: Path, kind: str) -> None:
        self.skip_unless(self.can_upsert and kind not in self.keys_not_taken, "has no such keys")
        of, values = KEYS[kind]
        values = [same for same in values if self._takes(same[0])]
        run = self.begun(tmp_path, key=("k",))
        rows = _Rows(run, {"k": of})
        rows.publish(1, [(value,) for same in values for value in same])
        rows.publish(2, [(same[0],) for same in values], [(same[-1],) for same in values[::2]])
        rows.publish(3, [(same[0],) for same in values[:2]])
        assert self._shown(run) == rows.newest()

    def test_of_several_key_columns_each_may_have_no_value(self, tmp_path: Path) -> None:
        self.skip_unless(
            self.can_upsert and self._takes(None) and "several" not in self.keys_not_taken, "has no such keys"
        )
        run = self.begun(tmp_path, key=("k", "j", "i"))
        rows = _Rows(run, {"k": pa.bool_(), "j": pa.int64(), "i": pa.string()})
        keys = [(k, j, i) for k in (None, True, False) for j in (None, 0, 1) for i in (None, "", "a")]
        rows.publish(1, keys)
        rows.publish(2, keys[::2], keys[::3])
        rows.publish(3, keys[1::2])
        assert self._shown(run) == rows.newest()

    def _takes(self, value: Any) -> bool:
        called = "null" if value is None else "NaN" if _told(value) == "NaN" else ""
        return called not in self.keys_not_taken

    def _shown(self, run: SinkRun) -> list[Any]:
        return sorted(row[1] for row in self.rows(run.sink.place))


class _Rows:
    """Rows that a test publishes, each with a number of its own, and which of them are the newest of their key."""

    def __init__(self, run: SinkRun, types: dict[str, pa.DataType]) -> None:
        self._run, self._types = run, types
        self._newest: dict[tuple[Any, ...], int] = {}
        self._numbers: Iterator[int] = iter(range(1_000_000))

    def publish(self, checkpoint: int, *batches: Sequence[tuple[Any, ...]]) -> None:
        """Publish micro-batches of these keys with one checkpoint."""
        for keys in batches:
            rows: list[Row] = []
            for key in keys:
                number = next(self._numbers)
                self._newest[tuple(_told(part) for part in key)] = number
                rows.append((key[0], number, *key[1:]))
            self._run.batch(rows, types=self._types)
        self._run.publish(checkpoint)

    def newest(self) -> list[int]:
        """Return the number of each key's newest row."""
        return sorted(self._newest.values())


def _told(value: Any) -> Any:
    """Return a value that is equal where Spark takes two for one key: zeros of both signs are, and NaN is."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value
