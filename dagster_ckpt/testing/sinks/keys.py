"""Contract of keys: one row for each, whatever its type and value, as Spark tells values apart."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from dagster_ckpt.testing.sinks.base import ContractBase
from dagster_ckpt.testing.sinks.run import Row, SinkRun

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
