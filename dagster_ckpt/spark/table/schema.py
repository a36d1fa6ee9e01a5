"""Columns of a Parquet table: which rows it can take, and which changes of their types readers survive.

Files of one table are read together, by readers that know nothing of us: a column may be added or left out, but its
type may change only where all files are written again (a table with a key), and only to a wider one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.sink.key_columns import refuse_nested_key
from dagster_ckpt.spark.table.records import BUCKET_COLUMN

Column = Mapping[str, Any]

_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}
"""Types Arrow can tell the smaller values of without loss."""
_DECIMAL_AS_LONG = 18
"""Digits up to which Spark hashes a decimal as a number."""


def columns(schema: str) -> dict[str, Column]:
    """Return the columns of a Spark schema (JSON) by name, without ours; empty where there is none."""
    return {field["name"]: field for field in _fields(schema) if field["name"] != BUCKET_COLUMN}


def _fields(schema: str) -> list[Column]:
    try:
        found: list[Column] = parse_json(schema).get("fields", []) if schema else []
    except (ValueError, AttributeError) as error:
        raise Corrupt(
            f"a table's record of its columns is damaged: {error}; restore_from a snapshot"
        ) from error
    return found


def has_same_columns(one: str, other: str) -> bool:
    """Tell whether files of both schemas have the same columns of the same types; unknown ones have."""
    if not one or not other:
        return True
    types = [{name: column["type"] for name, column in columns(schema).items()} for schema in (one, other)]
    return types[0] == types[1]


def merged(old: str, new: str) -> str:
    """Return the schema of a table of rows of both: every column there ever was, of its newest type."""
    if not old:
        return new
    return json.dumps({"type": "struct", "fields": list({**columns(old), **columns(new)}.values())})


def refuse_unfit(where: str, schema: str, keys: Sequence[str]) -> None:
    """Raise InvalidRequest for rows that no Parquet table can take: no columns, equal names, unusable keys."""
    names = [field["name"] for field in _fields(schema)]
    if not names:
        raise InvalidRequest(f"{where}: the rows have no columns; select at least one")
    if BUCKET_COLUMN in names:
        raise InvalidRequest(f"{where}: the column name {BUCKET_COLUMN!r} is taken; rename the column")
    twice = [name for name, count in Counter(map(str.lower, names)).items() if count > 1]
    if twice:
        same = [name for name in names if name.lower() == twice[0]]
        raise InvalidRequest(
            f"{where}: the columns {same} differ in case only or not at all, and most readers cannot tell them apart; "
            "rename one"
        )
    for key in keys:
        if key not in names:
            raise InvalidRequest(f"{where}: the rows have no key column {key!r}: name columns of {names}")
    refuse_nested_key(where, schema, keys)


def refuse_changed(where: str, old: str, new: str, *, keys: Sequence[str], of_project: bool = False) -> None:
    """Raise InvalidRequest, naming the change, where rows of ``new`` and files of ``old`` cannot be read together.

    ``of_project``: it is a dataset of a Spark project, to which nobody can give a key.
    Files of a table with keys are written again; but a row lies where the value of its key, of its type, has put it.
    """
    before, after = columns(old), columns(new)
    called = {name.lower(): name for name in before}
    for name in after.keys() - before.keys():
        if name.lower() in called:
            raise InvalidRequest(
                f"{where}: column {name!r} is called {called[name.lower()]!r} there, and most readers cannot tell the "
                "two apart: keep its name, or write to a new table"
            )
    for name in before.keys() & after.keys():
        was, now = before[name]["type"], after[name]["type"]
        if was == now or (keys and name not in keys and is_wider(was, now)):
            continue
        if name in keys and _has_same_hash(was, now):
            continue
        hint = "keep its type, or write to a new table"
        if of_project:
            hint = "cast it in the flow, or give the dataset a name that none has had, and its table is a new one"
        if name in keys:
            hint = "its rows would be there twice, by the old key and by the new one: keep its type, or use a new table"
        elif is_wider(was, now) and not of_project:
            hint = "readers of a folder with both types fail: keep its type, give the table a key, or use a new table"
        raise InvalidRequest(f"{where}: column {name!r} was {_text(was)} and is {_text(now)} now: {hint}")


def is_wider(was: Any, now: Any) -> bool:
    """Tell whether every value of the one type is one of the other."""
    if not isinstance(was, str) or not isinstance(now, str):
        return False
    if was.startswith("decimal(") and now.startswith("decimal("):
        (p, s), (q, t) = (map(int, kind[8:-1].split(",")) for kind in (was, now))
        return s == t and q >= p
    return now in _WIDER.get(was, ())


def _has_same_hash(was: Any, now: Any) -> bool:
    """Tell whether Spark's xxhash64, by which rows are put into buckets, is the same for a value of a wider type."""
    if not is_wider(was, now):
        return False
    if now.startswith("decimal("):
        return int(now[8:-1].split(",")[0]) <= _DECIMAL_AS_LONG
    return now in ("short", "integer")


def _text(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type", kind))
