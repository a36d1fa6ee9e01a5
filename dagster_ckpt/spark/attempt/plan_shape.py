"""What of a query's plan its state and positions depend on, compared when it is started again.

Spark compares types only. Grouped by another column of the same type, or with ``max`` made ``min``, a query would go on
from the state of the other one without a word and its rows would be wrong. So the first start of a query writes down
its stateful operators (what they group, join and tell apart by, which aggregates they keep, and the places of columns
in their state), the columns of watermarks that bound its state, the time zone of its calendar and the order of its
sources; captures take that along, and every later start compares.

What may change: everything else, such as filters, projections, names of results, delays of watermarks, and values of
literals but for those that keys are made with. Names of columns count: nothing else says that a column is the same one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.spark.attempt.changed_query import WAY_OUT, ChangedQuery
from dagster_ckpt.spark.attempt.column_origins import columns_of_sources, origins_in, why_other_columns
from dagster_ckpt.spark.attempt.files_read import why_moved
from dagster_ckpt.spark.attempt.plan_texts import aggregates_in, text_of
from dagster_ckpt.spark.attempt.plan_tree import (
    EQUAL,
    Names,
    Tree,
    analyzed,
    column_id,
    definitions,
    expression,
    is_bounded_by,
    is_streaming,
    kind_of,
    simple,
    walk,
)
from dagster_ckpt.spark.attempt.query_sources import have_moved, options_of_sources, sources_in
from dagster_ckpt.spark.attempt.state_aggregates import state_aggregates, why_other_aggregates
from dagster_ckpt.spark.attempt.state_columns import state_columns
from dagster_ckpt.spark.attempt.state_fields import state_fields, why_other_fields
from dagster_ckpt.spark.attempt.state_variables import variables_in, why_other_variables
from dagster_ckpt.spark.attempt.time_zones import refuse_another_machines_zone, zone_of_reading, zones_of
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["check_plan", "operators_in", "watermarks_in", "with_state"]

FORMAT = 3
"""Of the texts: those of another format, or of another Spark, are replaced and not compared."""


def check_plan(
    uid: StageUid,
    directory: StageDirectory,
    frame: DataFrame,
    *,
    output_mode: str = "",
    stages: Sequence[str] = (),
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Compare the query with the one its state was made by, or write down what it is. Raises ChangedQuery.

    ``stages``: of a chain, the stage that reads each source, in Spark's order. ``renamed``: stages by earlier uids.
    """
    plan = analyzed(frame)
    if plan is None:
        return
    stateful, sources = list(with_state(plan)), sources_in(plan, frame)
    now: dict[str, Any] = {
        "written_by": f"format {FORMAT}, Spark {frame.sparkSession.version}",
        "operators": operators_in(plan),
        "state_columns": state_columns(frame, plan),
        "state_fields": state_fields(frame, stateful),
        "aggregates": state_aggregates(frame, plan),
        "variables": variables_in(frame, plan),
        "origins": origins_in(plan, stateful),
        "source_columns": columns_of_sources(plan) if stateful else [],
        "watermarks": _watermarks_of(plan, stateful),
        "groups_closed_by": _watermarks_of(plan, list(filter(_is_of_groups, stateful))),
        "output_mode": output_mode,
        "time_zones": zones_of(plan, stateful, frame),
        "read_in_zone": zone_of_reading(plan, frame),
        "sources": sources,
        "source_options": options_of_sources(sources, frame),
    }
    before = _written(directory)
    if stages:
        now["stages"] = list(stages)
        before |= {"stages": [renamed.get(one, one) for one in before.get("stages", ())]}
    goes_on = latest_committed_batch(directory.query) is not None
    if goes_on and now["variables"] is None:  # nobody could be asked today
        now["variables"] = before.get("variables")
    if before == now:
        return
    if goes_on:
        _compare_chain(uid, before.get("stages", []), now.get("stages", []))
        if before.get("written_by") == now["written_by"]:
            _compare(uid, before, now)
        _compare_files(uid, directory.query, before.get("sources", []), now["sources"])
        refuse_another_machines_zone(uid, frame, before.get("read_in_zone", ""), now["read_in_zone"])
    directory.root.mkdir(parents=True, exist_ok=True)
    replace_whole(directory.plan, json.dumps(now, indent=1).encode())


def _compare(uid: StageUid, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    was, are = before.get("operators", []), now["operators"]
    if was != are:
        old, new = _different(was, are)
        raise ChangedQuery(
            f"stage {uid!r} cannot go on from its state: it was made by {old or 'no operator'}, the stage has "
            f"{new or 'no operator'} now. {WAY_OUT}"
        )
    if are:
        _compare_columns(uid, before.get("state_columns"), now["state_columns"])
        _compare_modes(uid, before, now)
        if why := (
            why_other_aggregates(before.get("aggregates"), now["aggregates"])
            or why_other_variables(before.get("variables"), now["variables"])
            or why_other_fields(before.get("state_fields"), now["state_fields"])
            or why_other_columns(before, now)
        ):
            raise ChangedQuery(f"stage {uid!r} cannot go on from its state: {why}. {WAY_OUT}")
        _compare_times(uid, before, now)
    sources = before.get("sources", [])
    if have_moved(before.get("source_options", []), now["source_options"]):
        raise ChangedQuery(
            f"stage {uid!r} cannot go on from its positions: the order of its sources was another one, of those of "
            f"{', '.join(sources)} that only their options tell apart, and Spark goes by their order only. {WAY_OUT}"
        )
    if have_moved(sources, now["sources"]):
        raise ChangedQuery(
            f"stage {uid!r} cannot go on from its positions: the order of its sources was {', '.join(sources)} and is "
            f"{', '.join(now['sources'])} now, and Spark tells sources apart by their order only. {WAY_OUT}"
        )


def _compare_columns(uid: StageUid, before: Sequence[str] | None, now: Sequence[str] | None) -> None:
    if before is None or now is None or before == now:
        return
    old, new = _different(before, now)
    raise ChangedQuery(
        f"stage {uid!r} cannot go on from its state: it has the columns of {old or 'nothing'}, the stage has "
        f"{new or 'nothing'} now, and Spark tells columns of state apart by their order only. {WAY_OUT}"
    )


def _compare_modes(uid: StageUid, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare when groups are passed on: those that are open in append mode would not be in another one, and complete
    mode would leave out those that a watermark has closed.
    """
    was, are = str(before.get("output_mode", "")), str(now["output_mode"])
    leaves_out = (was == "append" and are in ("update", "complete")) or (
        (was, are) == ("update", "complete") and bool(before.get("groups_closed_by"))
    )
    if leaves_out and any(one.startswith("groupBy(") for one in now["operators"]):
        raise ChangedQuery(
            f"stage {uid!r} cannot go on from its state: its output_mode was {was!r} and is {are!r} now, which would "
            f"leave out groups {'that are open' if are == 'update' else 'that were closed'}. {WAY_OUT}"
        )


def _different(was: Sequence[str], are: Sequence[str]) -> tuple[str, str]:
    """Return the first two texts that differ; where there are more or less than before, all of them."""
    different = [(a, b) for a, b in zip(was, are, strict=False) if a != b]
    return different[0] if len(was) == len(are) else ("; ".join(was), "; ".join(are))


def _compare_files(uid: StageUid, query_dir: Path, before: Sequence[str], now: Sequence[str]) -> None:
    if before != now and (moved := why_moved(query_dir, before, now)):
        raise ChangedQuery(
            f"stage {uid!r} cannot go on from its positions: {moved}. Spark knows files by their absolute paths and "
            f"would read all of them again: move them back, or mount them where they were. Else {WAY_OUT}"
        )


def _compare_times(uid: StageUid, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare what says of a row with state when it was: Spark asks neither."""
    (was, are), (zones, mine) = ((before.get(name, []), now[name]) for name in ("watermarks", "time_zones"))
    if set(was) - set(are) and set(are) - set(was):
        raise ChangedQuery(
            f"stage {uid!r} cannot go on from its state: its watermark was of {', '.join(was)} and is of "
            f"{', '.join(are)} now, and goes on from where the old one stood: rows that lie before it would be dropped "
            f"as late. {WAY_OUT}"
        )
    if zones and mine and zones != mine:
        raise ChangedQuery(
            f"stage {uid!r} cannot go on from its state: days and hours in it are those of the time zone "
            f"{', '.join(zones)}, and the session's is {', '.join(mine)} now: set spark.sql.session.timeZone back. "
            f"Else {WAY_OUT}"
        )


def _compare_chain(uid: StageUid, before: Sequence[str], now: Sequence[str]) -> None:
    """Compare which stages read the sources of a chain: their order means the same to every Spark."""
    if before != now:
        raise ChangedQuery(
            f"stage {uid!r} cannot go on from its positions: the sources of its chain were read by "
            f"{', '.join(before) or 'stages that nobody wrote down'} and are by {', '.join(now) or 'no other stage'} "
            f"now, and Spark tells sources apart by their order only. {WAY_OUT}"
        )


def _written(directory: StageDirectory) -> dict[str, Any]:
    try:
        found = parse_json(directory.plan.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# --- operators ----------------------------------------------------------------------------------------------


def operators_in(plan: Tree) -> list[str]:
    """Return the stateful operators of a plan, one text each, in the order of the plan."""
    named = definitions(plan)
    return [_operator(node, named) for node in with_state(plan)]


def with_state(plan: Tree) -> Iterator[Tree]:
    """Yield the nodes of a plan that keep state, in the order of the plan."""
    nothing = Names()
    return (node for node in walk(plan) if is_streaming(node) and _operator(node, nothing))


def watermarks_in(plan: Tree) -> list[str]:
    """Return the columns that streams have watermarks on."""
    return list(dict.fromkeys(str(column["name"]) for column in _with_watermark(plan)))


def _watermarks_of(plan: Tree, operators: Sequence[Tree]) -> list[str]:
    """Return those of them that say of rows of these operators which are late."""
    named = definitions(plan)
    asked = (
        str(column["name"])
        for column in _with_watermark(plan)
        if any(is_bounded_by(one, {named.first(column_id(column))}, named) for one in operators)
    )
    return list(dict.fromkeys(asked))


def _is_of_groups(operator: Tree) -> bool:
    return kind_of(operator) == "Aggregate"


def _with_watermark(plan: Tree) -> Iterator[Tree]:
    nodes = (node for node in walk(plan) if kind_of(node) == "EventTimeWatermark" and is_streaming(node))
    return (expression(node["eventTime"]) for node in nodes)


def _operator(node: Tree, named: Names) -> str:
    match kind_of(node):
        case "Aggregate":
            keys = [_key(expression(e), named) for e in node["groupingExpressions"]]
            kept = [
                text_of(a, named) for e in node["aggregateExpressions"] for a in aggregates_in(expression(e))
            ]
            return f"groupBy({', '.join(keys)}).agg({', '.join(dict.fromkeys(kept))})"
        case "Deduplicate" | "DeduplicateWithinWatermark" as kind:
            keys = sorted(text_of(expression(e), named) for e in node["keys"])
            name = "dropDuplicates" if kind == "Deduplicate" else "dropDuplicatesWithinWatermark"
            return f"{name}({', '.join(keys)})"
        case "Distinct":
            return "distinct()"
        case "Join" if all(is_streaming(child) for child in node["_children"]):
            condition = expression(node["condition"]) if node.get("condition") else None
            equal = (
                []
                if condition is None
                else [_equality(e, named) for e in walk(condition) if kind_of(e) in EQUAL]
            )
            how = simple(str((node.get("joinType") or {}).get("object", "")))
            return f"join({' AND '.join(equal)}, {how})"
        case (
            "FlatMapGroupsInPandasWithState"
            | "TransformWithStateInPySpark"
            | "TransformWithStateInPandas" as kind
        ):
            keys = [text_of(expression(e), named) for e in node.get("groupingAttributes") or ()]
            return f"{kind}({', '.join(keys)})"
    return ""


def _key(node: Tree, named: Names) -> str:
    """Return an expression that tells rows apart: literals in it count, for another one makes other groups.

    One that is a literal itself does not: it is the same for all rows, such as the day of the run.
    """
    while kind_of(node) == "Alias":
        node = node["_children"][0]
    return text_of(node, named, with_values=kind_of(node) != "Literal")


def _equality(node: Tree, named: Names) -> str:
    return f"{kind_of(node).lower()}({', '.join(_key(side, named) for side in node['_children'])})"
