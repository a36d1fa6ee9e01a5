"""Time zones by which a query makes days, hours, texts and moments: the session's, which is a machine's by default."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.spark.java.plans import analyzed_plan, nodes_of
from dagster_ckpt.spark.java.sessions import is_set
from dagster_ckpt.spark.plan.errors import ChangedQuery
from dagster_ckpt.spark.plan.tree import Tree, column_id, expression, is_source, kind_of, walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_ZONE = "spark.sql.session.timeZone"
_MOMENTS = '"timestamp"'
"""In types as JSON."""
_NUMBERS = (
    "Abs",
    "Add",
    "Divide",
    "IntegralDivide",
    "Length",
    "Multiply",
    "Pmod",
    "Remainder",
    "Subtract",
    "UnaryMinus",
)
_STRINGS = ("ConcatWs", "Lower", "StringTrim", "Substring", "Upper")
_OF_PARTS = ("Alias", "Coalesce", "CreateArray", "CreateMap", "CreateNamedStruct")
_DAY = 24 * 60 * 60 * 1_000_000
"""Microseconds, in which plans have intervals of days to seconds."""
_UTC = frozenset({"UTC", "GMT", "Z", "Zulu", "Universal", "UCT", "Etc/UTC", "Etc/GMT", "Etc/UCT", "+00:00"})
_FILES = "StreamingRelation"
_TEXTS = ("json", "csv", "xml")
"""Formats in which a moment is a text, which may have no zone."""


def zones_of(plan: Tree, made_of: Sequence[Tree], frame: DataFrame) -> list[str]:
    """Return the zones that state depends on: by the expressions it is made of, and by the moments in it."""
    found = {_named(zone) for node in made_of for zone in _in(node)}
    columns = {column_id(column[0]) for node in made_of if is_source(node) for column in node["output"]}
    return sorted(found if columns.isdisjoint(_of_text(plan, frame)) else found | {_zone(frame)})


def zone_of_reading(plan: Tree, frame: DataFrame) -> str:
    """Return the zone that rows depend on, with state or without; empty: they depend on none."""
    depends = any(True for _ in _in(plan)) or _of_text(plan, frame)
    return _zone(frame) if depends else ""


def refuse_another_machines_zone(uid: StageUid, frame: DataFrame, before: str, now: str) -> None:
    """Raise ChangedQuery where rows would be read in another zone because the machine has another one.

    One that somebody has set is meant.
    """
    if before and now and before != now and not is_set(frame.sparkSession, _ZONE):
        raise ChangedQuery(
            f"stage {uid!r} has made days, hours or moments in the time zone {before}, and the session's is {now} now, "
            f"this machine's, as none is set: set {_ZONE} to {before!r}; or to {now!r}, if rows are to be read in that "
            "zone from here on"
        )


def _named(zone: str) -> str:
    return "UTC" if zone in _UTC else zone


def _zone(frame: DataFrame) -> str:
    return _named(str(frame.sparkSession.conf.get(_ZONE)))


def _of_text(plan: Tree, frame: DataFrame) -> set[Any]:
    """Return the ids of columns in which a file source reads moments from text."""
    nodes = list(walk(plan))
    if not any(_moments(node) for node in nodes):
        return set()
    pairs = zip(nodes, nodes_of(analyzed_plan(frame)), strict=True)
    return {column for node, there in pairs for column in _moments(node) if _is_text(there)}


def _moments(node: Tree) -> list[Any]:
    columns = (one[0] for one in node["output"]) if kind_of(node) == _FILES else ()
    return [column_id(column) for column in columns if _MOMENTS in json.dumps(column.get("dataType"))]


def _is_text(relation: Any) -> bool:
    kind = str(relation.dataSource().className()).lower()
    return any(name in kind for name in _TEXTS)


def _in(written: Any) -> Iterator[str]:
    """Yield the session's time zones by which expressions of a plan make days, hours, texts and moments."""
    if isinstance(written, list):
        is_expression = bool(written) and isinstance(written[0], dict) and "class" in written[0]
        for part in [expression(written)] if is_expression and "_children" not in written[0] else written:
            yield from _in(part)
    elif isinstance(written, dict):
        zone = written.get("timeZoneId")
        if isinstance(zone, str) and _depends_on_zone(written):
            yield zone
        for part in written.values():
            yield from _in(part)


def _depends_on_zone(made_by: Tree) -> bool:
    """Tell whether a step turns texts and days into moments, or back, where no zone is carried."""
    match kind_of(made_by):
        case "TimestampAddInterval" | "TimeAdd":  # its name before Spark 4.1
            return _counts_days(made_by["_children"][1])
        case "JsonToStructs" | "CsvToStructs" | "XmlToStructs":
            return _MOMENTS in json.dumps(made_by.get("schema"))
        case "StructsToJson" | "StructsToCsv" | "StructsToXml":
            return _may_hold_moments(made_by["_children"][0])
        case "Cast" | "AnsiCast":
            return _casts_moments(made_by["_children"][0], made_by.get("dataType"))
    return True


def _casts_moments(of: Tree, made: Any) -> bool:
    """Tell whether a cast asks for the zone: from or to moments, but not to numbers, nor for days and their texts."""
    given = _type_of(of)
    if not isinstance(made, str) or not isinstance(given, str):
        return given == "unknown" or _MOMENTS in json.dumps([made, given])
    if given == "variant":
        return True
    if made == "timestamp":
        return given.startswith(("string", "date", "timestamp_ntz", "unknown"))
    return made.startswith(("string", "date", "time(", "timestamp_ntz")) and given in ("timestamp", "unknown")


def _type_of(of: Tree) -> Any:
    """Return the type of an expression, as plans have it for columns, literals and casts; a kind of type for others."""
    if "dataType" in of:
        return of["dataType"]
    match kind_of(of):
        case "TimestampAddInterval" | "TimeAdd":
            return "timestamp"
        case kind if kind in _NUMBERS:
            return "number"
        case kind if kind in _STRINGS:
            return "string"
    return "unknown"


def _may_hold_moments(made_by: Tree) -> bool:
    if kind_of(made_by) in _OF_PARTS:
        return any(map(_may_hold_moments, made_by["_children"]))
    kind = _type_of(made_by)
    return kind == "unknown" or _MOMENTS in json.dumps(kind)


def _counts_days(interval: Tree) -> bool:
    """Tell whether an interval has days, or may have some: they are as long as the zone says."""
    while kind_of(interval) == "Cast":  # of a text
        interval = interval["_children"][0]
    if kind_of(interval) != "Literal":
        return True
    value = str(interval.get("value"))
    if value.removeprefix("-").isdecimal():
        return abs(int(value)) >= _DAY
    return any(unit in value for unit in ("day", "week", "month", "year"))
