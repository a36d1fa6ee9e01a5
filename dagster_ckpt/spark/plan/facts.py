"""Facts of a query's plan that its state depends on, as written down beside the state; the time zones among them.

Spark compares types only. Grouped by another column of the same type, or with ``max`` made ``min``, a query would go on
from the state of the other one without a word and its rows would be wrong. So the first start of a query writes its
facts down; captures take them along, and every later start compares (``rules``).

What may change: everything else, such as filters, projections, names of results, delays of watermarks, and values of
literals but for those that keys are made with. Names of columns count: nothing else says that a column is the same one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.java.plans import analyzed_plan, nodes_of
from dagster_ckpt.spark.java.sessions import is_set
from dagster_ckpt.spark.plan.columns import (
    Fields,
    Kept,
    state_aggregates,
    state_columns,
    state_fields,
    types_of,
)
from dagster_ckpt.spark.plan.errors import ChangedQuery
from dagster_ckpt.spark.plan.functions import variables_in
from dagster_ckpt.spark.plan.operators import (
    branches_in,
    filters_ahead,
    groups_in,
    matches_in,
    operators_in,
    watermarks_of,
    with_state,
)
from dagster_ckpt.spark.plan.origins import (
    ChannelColumns,
    Channels,
    Origin,
    columns_of_sources,
    made_into_state,
    origins_in,
    passed_on,
)
from dagster_ckpt.spark.plan.sources import channels_read, options_of_sources, schemas_of_sources, sources_in
from dagster_ckpt.spark.plan.tree import Tree, analyzed, column_id, expression, is_source, kind_of, walk

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


FORMAT = 4
"""Of the texts: those of another format, or of another Spark, are replaced and not compared."""


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """Facts of one query. None, and an empty list of before: Spark did not show them, and nothing is compared."""

    written_by: str = ""
    """Format of the texts, and Spark's version."""
    operators: Sequence[str] = ()
    """Stateful operators in the order of the plan: what rows are told apart by, and which aggregates are kept."""
    branches: Sequence[str] = ()
    """Digests of what the rows of each operator come through: operators of one text are told apart by it."""
    filters_ahead: Sequence[str] = ()
    """Conditions behind each operator that Spark asks before rows become its state."""
    matches: Sequence[str] | None = None
    """Conditions of joins by which rows have met another one, or none."""
    state_columns: Sequence[str] | None = None
    """Columns of each operator's state in their order."""
    state_fields: Sequence[Fields] | None = None
    """Fields of structs that each operator's state keeps whole."""
    state_types: Sequence[str] | None = None
    """Columns that state is made of, each with its type. Not compared by rules: Spark itself refuses another type."""
    aggregates: Sequence[Kept] | None = None
    """Aggregates of each operator, in the order of their state."""
    variables: Mapping[str, str] | None = None
    """Variables of ``transformWithState``, and the fields of each."""
    origins: Sequence[Mapping[str, Origin]] = ()
    """Columns of sources that the columns of each operator are."""
    source_columns: Sequence[Sequence[str]] = ()
    passed_on: Mapping[str, Origin] = field(default_factory=dict)
    """Columns of sources that the columns of its rows are. Not compared by rules: who reads its channel asks them."""
    watermarks: Sequence[str] = ()
    """Columns of watermarks that bound state."""
    groups_closed_by: Sequence[str] = ()
    """Columns of watermarks that close groups."""
    output_mode: str = ""
    time_zones: Sequence[str] = ()
    """Zones that state depends on."""
    read_in_zone: str = ""
    """Zone that rows depend on, with state or without."""
    sources: Sequence[str] = ()
    """Sources in Spark's order."""
    source_options: Sequence[str] = ()
    """Digests of the options of sources that only these tell apart."""
    source_schemas: Sequence[str] = ()
    """Schemas of the sources (JSON), of channels empty. Not compared: each stands in for a source out of reach."""
    functions: Mapping[str, str] | None = None
    """Digests of the stages' functions. Not compared by rules: what they mean is nobody's to say."""
    stages: Sequence[str] = ()
    """Of a chain: the stage that reads each source."""

    @classmethod
    def written(cls, directory: StageDirectory, renamed: Mapping[str, str]) -> PlanFacts:
        """Return the facts that an earlier start wrote down, if any; ``renamed``: stages by earlier uids."""
        try:
            found = parse_json(directory.plan.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            found = {}
        return cls.of(found, renamed)

    @classmethod
    def of(cls, written: object, renamed: Mapping[str, str]) -> PlanFacts:
        """Return the facts in what was written down, those that this version knows."""
        known = {field.name for field in fields(cls)}
        given = (
            {name: said for name, said in written.items() if name in known}
            if isinstance(written, dict)
            else {}
        )
        stages, functions = given.get("stages", []), given.get("functions") or {}
        if not isinstance(functions, dict) or not (
            isinstance(stages, list | tuple) and all(type(one) is str for one in stages)
        ):
            raise Corrupt(
                "plan.json of a stage names no stages where it should: restore from another checkpoint"
            )
        facts = cls(**given)
        functions = facts.functions and {renamed.get(one, one): said for one, said in facts.functions.items()}
        return replace(facts, stages=[renamed.get(one, one) for one in facts.stages], functions=functions)

    def write(self, directory: StageDirectory) -> None:
        """Write the facts down, whole or not at all."""
        text = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.stages:
            del text["stages"]
        directory.root.mkdir(parents=True, exist_ok=True)
        replace_whole(directory.plan, json.dumps(text, indent=1).encode())


def facts_of(
    frame: DataFrame,
    *,
    output_mode: str = "",
    stages: Sequence[str] = (),
    functions: Mapping[str, str] | None = None,
) -> PlanFacts | None:
    """Return the facts of a query; None where Spark does not show its plan (Connect, a node it cannot write).

    ``stages``: of a chain, the stage that reads each source, in Spark's order. ``functions``: digests by stage.
    """
    plan = analyzed(frame)
    if plan is None:
        return None
    stateful, sources = list(with_state(plan)), sources_in(plan, frame)
    channels = _channels(frame)
    made_of = list(made_into_state(plan, stateful))
    return PlanFacts(
        written_by=f"format {FORMAT}, Spark {frame.sparkSession.version}",
        operators=operators_in(plan),
        branches=branches_in(plan, stateful),
        filters_ahead=filters_ahead(plan),
        matches=matches_in(plan),
        state_columns=state_columns(frame, plan),
        state_fields=state_fields(frame, stateful),
        state_types=types_of(made_of),
        aggregates=state_aggregates(frame, plan),
        variables=variables_in(frame, plan),
        origins=origins_in(plan, stateful, channels),
        source_columns=columns_of_sources(plan, channels),
        passed_on=passed_on(plan, frame.columns, channels),
        watermarks=watermarks_of(plan, stateful),
        groups_closed_by=watermarks_of(plan, groups_in(stateful)),
        output_mode=output_mode,
        time_zones=zones_of(plan, made_of, frame),
        read_in_zone=zone_of_reading(plan, frame),
        sources=sources,
        source_options=options_of_sources(sources, frame),
        source_schemas=schemas_of_sources(frame),
        functions=functions,
        stages=list(stages),
    )


def _channels(frame: DataFrame) -> Channels:
    """Return the columns of the channels that a query reads, of those whose writers' facts are known."""
    found = {}
    for place, folder in channels_read(frame).items():
        writer = StageDirectory(folder)
        facts = PlanFacts.written(writer, {})
        if facts.source_columns:
            found[place] = ChannelColumns(writer.root.name, facts.source_columns, facts.passed_on)
    return found
