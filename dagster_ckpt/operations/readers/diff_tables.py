"""Differences of two tables by their rows: added, missing, changed. Needs no Spark; both are held in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isnan
from typing import Any

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.sink.rows import PublishedRows

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExample:
    """A row that is not the same in both."""

    kind: str
    """``added``, ``missing`` or ``changed``."""
    before: Mapping[str, str] | None
    after: Mapping[str, str] | None
    """Columns and their values as text; of one that has changed, the key and what differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesDiff:
    """Difference of two tables."""

    before: str
    after: str
    key: tuple[str, ...]
    rows: tuple[int, int]
    same: int
    added: int
    """Rows that only the second has …"""
    missing: int
    """… only the first …"""
    changed: int
    """… and both, by their key, with other values; without a key: none."""
    columns_added: tuple[str, ...]
    columns_missing: tuple[str, ...]
    examples: tuple[RowExample, ...]

    @property
    def is_same(self) -> bool:
        """True where both have the same columns and rows, in whatever order."""
        return not (self.added or self.missing or self.changed or self.columns_added or self.columns_missing)


def diff_tables(
    before: PublishedRows,
    after: PublishedRows,
    *,
    key: Sequence[str] = (),
    examples: int = 5,
    only: Mapping[str, str] | None = None,
) -> TablesDiff:
    """Compare two tables, or one table at two snapshots, as ``load_table`` returns them.

    Args:
        before: the table that is compared with.
        after: the other one.
        key: columns that name a row: rows of the same key are compared value by value; without them only whole rows
            are, and a row may be there several times.
        examples: rows of each kind that are told.
        only: columns and what they hold as text, such as ``{"day": "2026-11-17"}``: other rows are left out.

    Raises:
        InvalidRequest: a column of the key or of ``only`` is not in both, or values of the key do not name one row.
        Corrupt, Unavailable: one of them cannot be read.
    """
    one, other = before.to_arrow(), after.to_arrow()
    columns = [name for name in one.column_names if name in other.column_names]
    lost = [name for name in (*key, *(only or {})) if name not in columns]
    if lost:
        what = "key column" if lost[0] in key else "column"
        raise InvalidRequest(f"{what} {lost[0]!r} is not in both tables: both have {', '.join(columns)}")
    one, other = _narrowed(one, only or {}), _narrowed(other, only or {})
    names = [*key, *(name for name in columns if name not in key)]
    rows = _rows(one, names), _rows(other, names)
    if key:
        first, second = (_named(each, key, table) for each, table in zip(rows, (before, after), strict=True))
        found = _by_key(first, second, names, len(key))
    else:
        found = _as_wholes(*rows, names)
    told = [e for kind in ("missing", "changed", "added") for e in islice(found.of(kind), examples)]
    return TablesDiff(
        before=_told(before, other=after),
        after=_told(after, other=before),
        key=tuple(key),
        rows=(one.num_rows, other.num_rows),
        same=found.same,
        added=found.added,
        missing=found.missing,
        changed=len(found.changes),
        columns_added=tuple(name for name in other.column_names if name not in columns),
        columns_missing=tuple(name for name in one.column_names if name not in columns),
        examples=tuple(told),
    )


def _told(rows: PublishedRows, *, other: PublishedRows) -> str:
    """Return where rows are; of one table at two states also which."""
    return f"{rows.place} at {rows.version}" if rows.place == other.place and rows.version else rows.place


@dataclass(frozen=True, slots=True)
class _Found:
    names: Sequence[str]
    keys: int
    same: int
    gone: Counter[Row]
    new: Counter[Row]
    changes: Sequence[tuple[Row, Row]]

    @property
    def added(self) -> int:
        return self.new.total()

    @property
    def missing(self) -> int:
        return self.gone.total()

    def of(self, kind: str) -> Iterator[RowExample]:
        match kind:
            case "missing":
                yield from (RowExample(kind=kind, before=self._shown(row), after=None) for row in self.gone)
            case "added":
                yield from (RowExample(kind=kind, before=None, after=self._shown(row)) for row in self.new)
            case _:
                for old, new in self.changes:
                    at = [i for i in range(len(old)) if i < self.keys or old[i] != new[i]]
                    yield RowExample(kind=kind, before=self._shown(old, at), after=self._shown(new, at))

    def _shown(self, row: Row, at: Iterable[int] | None = None) -> dict[str, str]:
        return {self.names[i]: str(row[i]) for i in (range(len(row)) if at is None else at)}


def _as_wholes(before: Iterator[Row], after: Iterator[Row], names: Sequence[str]) -> _Found:
    one, other = Counter(before), Counter(after)
    return _Found(names, 0, (one & other).total(), one - other, other - one, ())


def _by_key(one: dict[Row, Row], other: dict[Row, Row], names: Sequence[str], keys: int) -> _Found:
    both = one.keys() & other.keys()
    changes = [(one[k], other[k]) for k in one if k in both and one[k] != other[k]]
    gone = Counter(row for k, row in one.items() if k not in both)
    new = Counter(row for k, row in other.items() if k not in both)
    return _Found(names, keys, len(both) - len(changes), gone, new, changes)


def _named(rows: Iterator[Row], key: Sequence[str], table: PublishedRows) -> dict[Row, Row]:
    found: dict[Row, Row] = {}
    for row in rows:
        name = row[: len(key)]
        if name in found:
            told = ", ".join(f"{column}={value!r}" for column, value in zip(key, name, strict=True))
            raise InvalidRequest(
                f"{table.place} has several rows of the key {told}: give all columns of its key"
            )
        found[name] = row
    return found


def _narrowed(table: Any, only: Mapping[str, str]) -> Any:
    for name, wanted in only.items():
        chosen = [n for n, value in enumerate(table.column(name).to_pylist()) if str(value) == wanted]
        table = table.take(chosen) if chosen else table.slice(0, 0)
    return table


def _rows(table: Any, names: Sequence[str]) -> Iterator[Row]:
    for batch in table.select(list(names)).to_batches():
        for row in batch.to_pylist():
            yield tuple(_comparable(row[name]) for name in names)


def _comparable(value: Any) -> Any:
    """Return a value that equals another one where people say so: lists and maps by content, NaN as itself."""
    if isinstance(value, list | tuple):
        return tuple(_comparable(part) for part in value)
    if isinstance(value, dict):
        return tuple((name, _comparable(part)) for name, part in value.items())
    return "NaN" if isinstance(value, float) and isnan(value) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """One table of both pipelines."""

    sink: str
    diff: TablesDiff | None
    problem: str = ""
    """Why it was not compared; empty: it was, or both have no rows yet."""

    @property
    def is_same(self) -> bool:
        """True where readers find the same rows in both."""
        return not self.problem and (self.diff is None or self.diff.is_same)

    @property
    def line(self) -> str:
        """The comparison in one line."""
        if self.diff is None:
            return f"{self.sink}: {self.problem or 'neither has rows yet'}"
        found = self.diff
        if found.is_same:
            return f"{self.sink}: the same {counted(found.rows[0], 'row')}"
        columns = [f"column {name} added" for name in found.columns_added]
        columns += [f"column {name} missing" for name in found.columns_missing]
        changed = [f"{found.changed:,} changed"] if found.key else []
        counts = [
            f"{counted(found.same, 'row')} the same",
            f"{found.added:,} added",
            f"{found.missing:,} missing",
            *changed,
        ]
        return f"{self.sink}: {', '.join([*counts, *columns])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadersComparison:
    """Comparison of the tables that readers of a name would find after a swap with those they find now."""

    name: PipelineId
    """Pipeline that readers name."""
    serving: PipelineId
    """Pipeline whose tables they find."""
    candidate: PipelineId
    tables: tuple[TableComparison, ...]
    behind: tuple[str, ...]
    """Where the candidate has read less than the pipeline that serves; of topics only."""
    approval: str
    """What approves a swap that is as this comparison shows it."""
    only: Mapping[str, str] = field(default_factory=dict)
    """Rows that were compared; empty: all."""

    @property
    def is_same(self) -> bool:
        """True where all tables were compared whole and hold the same rows."""
        return not self.only and all(table.is_same for table in self.tables)

    @property
    def lines(self) -> tuple[str, ...]:
        """The comparison in lines for people."""
        told = f" (rows with {', '.join(f'{k}={v}' for k, v in self.only.items())})" if self.only else ""
        return (
            f"{self.candidate} compared with {self.serving}, which serves {self.name}{told}",
            *(table.line for table in self.tables),
            *(f"{self.candidate} is behind: {why}" for why in self.behind),
        )
