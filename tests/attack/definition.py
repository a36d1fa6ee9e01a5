"""What a pipeline's author may change while rows wait: columns, key, partitioning, names, target, output mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.attack.outsides import Kind, Row

BIGINT = pa.int64()


@dataclass(frozen=True)
class Definition:
    """A pipeline's sinks, as they are written now."""

    name: str = "shop"
    uid: str = "rows"
    """Of the sink that appends."""
    previous_names: tuple[str, ...] = ()
    previous_uids: tuple[str, ...] = ()
    place: str = "rows"
    place_by_key: str = "newest"
    kind: Kind | None = None
    """Of the table that rows are appended to; None: the deployment's."""
    key: tuple[str, ...] = ("k",)
    partition_by: tuple[str, ...] = ()
    mode: str | None = None
    key_type: pa.DataType = BIGINT
    columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Those beside ``k`` and ``v``; each says what ``v`` says."""

    def content(self, rows: Sequence[Row]) -> pa.Table:
        """Return the rows as the sinks' functions return them."""
        found = {
            "k": pa.array([k for k, _ in rows], self.key_type),
            "v": pa.array([v for _, v in rows], pa.int64()),
        }
        for name, kind in self.columns.items():
            found[name] = pa.array([_as(kind, v) for _, v in rows], kind)
        return pa.table(found)

    def without(self, name: str) -> Definition:
        """Return it without a column."""
        return replace(self, columns={one: kind for one, kind in self.columns.items() if one != name})

    def having(self, **columns: pa.DataType) -> Definition:
        """Return it with columns more, or of other types."""
        return replace(self, columns={**self.columns, **columns})


AS_BEGUN = Definition()


@dataclass(frozen=True)
class Change:
    """What an author has changed."""

    what: str
    now: Definition

    def __str__(self) -> str:
        return self.what

    def is_named_in(self, text: str, _: object) -> bool:
        """Tell whether a refusal names a sink, its table or the pipeline."""
        return any(f"{name}" in text for name in ("rows", "lines", "newest", "stall"))


def begun(kind: Kind) -> Definition:
    """Return what histories of changes begin with; a database's table has no structs."""
    columns: dict[str, pa.DataType] = {"w": pa.int32()}
    if kind not in (Kind.SQL,):
        columns |= {"d": pa.decimal128(20, 2), "s": pa.struct([("a", pa.int64())])}
    return Definition(key_type=pa.int32(), columns=columns)


def changes_of(was: Definition, kind: Kind) -> dict[str, Definition]:
    """Return every change of such a deployment that is tried, by what a person would call it."""
    found = {
        "a column more": was.having(x=pa.int64()),
        "a column less": was.without("w"),
        "a column widened": was.having(w=pa.int64()),
        "a column narrowed": was.having(w=pa.int16()),
        "a column of another type": was.having(w=pa.string()),
        "a column in another case": was.without("w").having(W=pa.int32()),
        "a column renamed": was.without("w").having(u=pa.int32()),
        "a wider key": replace(was, key_type=pa.int64()),
        "another key": replace(was, key=("k", "v")),
        "a sink renamed": replace(was, uid="lines"),
        "a sink renamed with previous_uids": replace(was, uid="lines", previous_uids=("rows",)),
        "a table elsewhere": replace(was, place="rows_elsewhere"),
        "output mode complete": replace(was, mode="complete"),
    }
    if "d" in was.columns:
        found["a decimal of another scale"] = was.having(d=pa.decimal128(20, 4))
        found["a struct with a field more"] = was.having(s=pa.struct([("a", pa.int64()), ("b", pa.int64())]))
    if kind in (Kind.OWN, Kind.ICEBERG):
        found["partitioned"] = replace(was, partition_by=("w",))
    if kind in (Kind.OWN, Kind.ICEBERG, Kind.SQL):
        other = Kind.SQL if kind is not Kind.SQL else Kind.OWN
        found["a target of another kind"] = replace(
            was.without("d").without("s"), kind=other, place="rows_of_another_kind"
        )
        found["the pipeline renamed"] = replace(was, name="stall")
    return found


def wrong_cells(
    records: Sequence[Mapping[str, Any]], definitions: Sequence[Definition], *, keeps_others: bool
) -> list[str]:
    """Return the cells that do not say what their row says; only a definition without the column leaves it empty.

    ``keeps_others``: a row that is written again keeps the columns that the new one lacks, as in a database.
    """
    wrong = []
    names = [{name.lower() for name in one.columns} for one in definitions]
    for record in records:
        named = {name.lower(): name for name in record}
        for name in set().union(*names):
            may_be_none = not all(name in some for some in names)
            cell = _plain(record.get(named.get(name, name)))
            if cell != record["v"] and not (may_be_none and (cell is None or keeps_others)):
                wrong.append(f"{name} of {record['k']} is {cell}, not {record['v']}")
        if len(named) != len(record):
            wrong.append(f"columns {[*record]} twice")
    return wrong


def _as(kind: pa.DataType, value: int) -> Any:
    if pa.types.is_struct(kind):
        return {field.name: value for field in kind}
    if pa.types.is_decimal(kind):
        return Decimal(value)
    return str(value) if pa.types.is_string(kind) else value


def _plain(cell: Any) -> int | None:
    if isinstance(cell, dict):
        cell = cell["a"]
    return None if cell is None else int(cell)
