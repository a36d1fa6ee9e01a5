"""Columns of rows against those of a table: which are added, and which cannot be taken.

Columns are spelled as Spark's schemas are in JSON, so that each format needs no more than to read its own that way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest

Column = dict[str, Any]
"""A column, or a field of a struct: ``name``, ``type``, ``nullable``, ``metadata``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsOfFormat:
    """Columns that tables of a format can have."""

    kept_as: Callable[[str], str | None]
    """The type that a plain one of Spark is kept as; None: there is none."""
    cannot: str
    """What is said of such a column: ``which delta-rs cannot write``."""
    fixed: str
    """Why a column's type stays: ``and delta-rs cannot change a type``."""
    partitions: tuple[str, ...]
    """Plain types, as they are kept, that a table can be partitioned by."""

    def of(self, row_schema: str) -> list[Column]:
        """Return Spark's columns as the format keeps them: any may be null, without Spark's notes on them.

        Raises InvalidRequest naming one that it cannot have, Corrupt for text that is no schema.
        """
        try:
            return [self._kept(column, "") for column in parse_json(row_schema)["fields"]]
        except InvalidRequest:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"the columns of a prepared batch are damaged: {row_schema[:80]!r}; restore an earlier one"
            ) from error

    def together(
        self, schemas: Sequence[str], *, key: Sequence[str], partition_by: Sequence[str]
    ) -> list[Column]:
        """Return the columns of several micro-batches. Raises InvalidRequest naming one that changed its type, one that
        the key or the partitions lack, and one that no table is partitioned by.
        """
        together: dict[str, Column] = {}
        for column in (column for row_schema in schemas for column in self.of(row_schema)):
            known = together.setdefault(column["name"], column)
            if known["type"] != column["type"]:
                raise InvalidRequest(
                    f"the column {column['name']} was {spelt(known['type'])} and became {spelt(column['type'])}: cast "
                    "it"
                )
        for name in (*key, *partition_by):
            if name not in together:
                raise InvalidRequest(f"the rows have no column {name}: there are {', '.join(together)}")
        for name in partition_by:
            if (kind := together[name]["type"]) not in self.partitions:
                raise InvalidRequest(
                    f"the column {name} is {spelt(kind)} and cannot be partitioned by: use one of "
                    f"{', '.join(self.partitions)}"
                )
        return list(together.values())

    def added(self, columns: Sequence[Column], there: Sequence[Column], place: str) -> list[Column]:
        """Return the columns that a table does not have yet. Raises InvalidRequest naming one that it has otherwise."""
        has = {column["name"].lower(): column for column in there}
        added = []
        for column in columns:
            known, name = has.get(column["name"].lower()), column["name"]
            if known is None:
                added.append(column)
                continue
            if known["name"] != name:
                raise InvalidRequest(
                    f"the column {name} is called {known['name']} in table {place}: rename it"
                )
            if (now := spelt(column["type"])) != (was := spelt(known["type"])):
                raise InvalidRequest(
                    f"the column {name} is {now} in the rows and {was} in table {place}, {self.fixed}: cast it, or "
                    "write to a new table"
                )
            if needed := _needed_within(name, known["type"]):
                raise InvalidRequest(
                    f"table {place} needs a value in every {needed}, and rows of Spark may have none there: write to a "
                    "new table"
                )
        return added

    def _kept(self, column: Column, within: str) -> Column:
        kind = self._kept_type(within + column["name"], column["type"])
        return {"name": column["name"], "type": kind, "nullable": True, "metadata": {}}

    def _kept_type(self, name: str, kind: Any) -> Any:
        match kind:
            case str() if (kept := self.kept_as(kind)) is not None:
                return kept
            case {"type": "struct", "fields": fields}:
                return {"type": "struct", "fields": [self._kept(field, f"{name}.") for field in fields]}
            case {"type": "array", "elementType": element}:
                return array_of(self._kept_type(name, element))
            case {"type": "map", "keyType": key, "valueType": value}:
                return map_of(self._kept_type(name, key), self._kept_type(name, value))
            case _:
                raise InvalidRequest(
                    f"the column {name} is {spelt(kind)}, {self.cannot}: cast it to a plain type"
                )


def array_of(element: Any, *, with_null: bool = True) -> Column:
    """Return the type of an array."""
    return {"type": "array", "elementType": element, "containsNull": with_null}


def map_of(key: Any, value: Any, *, with_null: bool = True) -> Column:
    """Return the type of a map."""
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": with_null}


def spelt(kind: Any) -> str:
    """Return a type for people."""
    match kind:
        case {"type": "struct", "fields": fields}:
            return f"struct<{', '.join(': '.join((f['name'], spelt(f['type']))) for f in fields)}>"
        case {"type": "array", "elementType": element}:
            return f"array<{spelt(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{spelt(key)}, {spelt(value)}>"
        case {"type": other}:
            return str(other)
        case _:
            return str(kind)


def _needed_within(name: str, kind: Any) -> str:
    """Return the part of a column that needs a value: rows without would leave a table that nobody can read.

    Empty: none does. A map's keys have one in any case.
    """
    match kind:
        case {"type": "struct", "fields": fields}:
            parts = [(f"{name}.{f['name']}", f["type"], f["nullable"]) for f in fields]
        case {"type": "array", "elementType": element}:
            parts = [(f"{name}.element", element, kind["containsNull"])]
        case {"type": "map", "keyType": key, "valueType": value}:
            parts = [(f"{name}.key", key, True), (f"{name}.value", value, kind["valueContainsNull"])]
        case _:
            return ""
    found = (_needed_within(part, of) if nullable else part for part, of, nullable in parts)
    return next(filter(None, found), "")
