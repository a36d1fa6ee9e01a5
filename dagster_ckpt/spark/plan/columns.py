"""Columns that a query's state is made of, by their places: Spark keeps rows of state without names.

A restarted query is compared by types only. A join that keeps ``cost`` where it kept ``price``, duplicates by
``(b, a)`` instead of ``(a, b)``, or a state whose two counts have changed places, would take the one for the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dagster_ckpt.spark.java.plans import analyzed_plan, nodes_of, optimized_plan
from dagster_ckpt.spark.plan.tree import (
    EQUAL,
    Tree,
    column_id,
    expression,
    is_streaming,
    kind_of,
    simple,
    walk,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OPERATORS = (
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "Join",
    "TransformWithStateInPySpark",
)
_NUMBERED = re.compile(r"(_gen_alias)_\d+")
"""A name that Spark's optimizer gives, with a number of this very plan."""
_GROUPING = "spark_grouping_id"

Columns = Sequence[tuple[str, Any]]
"""Name and id of each column."""


def state_columns(frame: DataFrame, plan: Tree) -> list[str] | None:
    """Return the columns of each stateful operator in their order, one text each; ``plan`` is the analyzed one.

    None: Spark does not show them, and nothing is compared.
    """
    nodes = list(walk(plan))
    if not any(_is_asked(node) for node in nodes):
        return []
    try:
        return _columns(frame, nodes)
    except Exception:
        return None


def types_of(made_of: Sequence[Tree]) -> list[str]:
    """Return the columns in the nodes that state is made of, each with its type, sorted."""
    found = (column for node in made_of for column in _columns_in(list(node.values())))
    ends = {'timeoutTimestamp "long"' for node in made_of if _has_timeout(node)}
    groups = (field for node in made_of for field in (node.get("stateType") or {}).get("fields", ()))
    ends |= {f"state.{field['name']} {json.dumps(field['type'])}" for field in groups}
    return sorted(ends | {f"{column['name']} {json.dumps(column['dataType'])}" for column in found})


def _has_timeout(node: Tree) -> bool:
    """Tell whether Spark keeps with each group when its state ends."""
    chosen = node.get("timeout") if kind_of(node) == "FlatMapGroupsInPandasWithState" else None
    return isinstance(chosen, dict) and simple(str(chosen.get("object", ""))) != "NoTimeout"


def _columns_in(value: Any) -> Iterator[Tree]:
    """Yield the columns in a node's fields, in which expressions are lists of nodes."""
    if isinstance(value, list):
        for one in value:
            yield from _columns_in(one)
    elif isinstance(value, dict) and str(value.get("class", "")).endswith(".AttributeReference"):
        yield value


def _columns(frame: DataFrame, nodes: Sequence[Tree]) -> list[str]:
    pairs = zip(nodes, nodes_of(analyzed_plan(frame)), strict=True)
    found = [text for node, there in pairs if _is_asked(node) and (text := _text(node, there))]
    if any(kind_of(node) == "Join" and _is_asked(node) for node in nodes):
        found += _of_joins(optimized_plan(frame))
    return found


def _is_asked(node: Tree) -> bool:
    kind = kind_of(node)
    if kind not in _OPERATORS or not is_streaming(node):
        return False
    return kind != "Join" or all(is_streaming(child) for child in node["_children"])


def _text(node: Tree, there: Any) -> str:
    match kind_of(node):
        case "Aggregate":
            keys = [expression(one) for one in node["groupingExpressions"]]
            results = [part for one in node["aggregateExpressions"] for part in walk(expression(one))]
            kept = [part for part in results if kind_of(part) == "AggregateExpression"]
            return ", ".join([*_namesakes(keys + kept, there), *_grouping_sets(node)])
        case "Join":
            parts = walk(expression(node["condition"])) if node.get("condition") else ()
            equal = [part for part in parts if kind_of(part) in EQUAL]
            return f"join on {', '.join(_sides(equal, there))}"
        case "Distinct":
            return f"distinct({', '.join(_selected(node, there))})"
        case "FlatMapGroupsInPandasWithState":
            return f"state({', '.join(str(field['name']) for field in node['stateType']['fields'])})"
        case "TransformWithStateInPySpark":
            given = _output(there.children().apply(0))
            return f"state by {_names(given[: int(node['groupingAttributesLen'])])}"
        case kind:
            names = ", ".join(str(expression(key)["name"]) for key in node["keys"])
            return f"{kind[0].lower()}{kind[1:]}({names})"


def _selected(node: Tree, there: Any) -> Iterator[str]:
    """Yield the columns that DISTINCT is of, by the names they had before it."""
    listed = node["_children"][0].get("projectList") or ()
    given = [name for name, _ in _output(there.child())]
    for name, one in zip(given, listed, strict=True) if listed else ((name, None) for name in given):
        of = expression(one)["_children"][:1] if one is not None else []
        yield str(of[0]["name"]) if of and kind_of(of[0]) == "AttributeReference" else name


def _grouping_sets(node: Tree) -> Iterator[str]:
    """Yield which columns each grouping of a rollup or cube leaves out, as Spark numbers it."""
    for below in node["_children"]:
        if kind_of(below) == "Expand":
            names = [column[0].get("name") for column in below["output"]]
            if _GROUPING in names:
                place = names.index(_GROUPING)
                numbers = [str(expression(one[place]).get("value")) for one in below["projections"]]
                yield f"grouping sets {', '.join(numbers)}"


def _namesakes(expressions: Sequence[Tree], there: Any) -> Iterator[str]:
    """Yield, where it is not the first of its name that an operator is given, which of them a column is."""
    given = _output(there.child())
    for node in _attributes(expressions):
        same = [number for name, number in given if name.lower() == str(node["name"]).lower()]
        if column_id(node) in same[1:]:
            yield f"{node['name']} {same.index(column_id(node)) + 1}"


def _sides(equalities: Sequence[Tree], there: Any) -> Iterator[str]:
    """Yield the columns of each equality, the left side's first: Spark makes the same keys of both orders."""
    left = {number for _, number in _output(there.left())}
    for one in equalities:
        sides = [(column_id(node) not in left, str(node["name"])) for node in _attributes([one])]
        for is_right, name in sorted(sides, key=itemgetter(0)):
            yield f"{'right' if is_right else 'left'} {name}"


def _attributes(expressions: Sequence[Tree]) -> Iterator[Tree]:
    return (node for one in expressions for node in walk(one) if kind_of(node) == "AttributeReference")


def _of_joins(plan: Any) -> Iterator[str]:
    """Yield which columns of its sides each join keeps: those that the query still needs behind it."""
    for node in nodes_of(plan):
        if node.nodeName() == "Join" and node.left().isStreaming() and node.right().isStreaming():
            yield f"join of ({_names(_output(node.left()))}) with ({_names(_output(node.right()))})"


def _output(plan: Any) -> Columns:
    columns = plan.output()
    return [
        (str(column.name()), int(column.exprId().id()))
        for column in (columns.apply(place) for place in range(columns.size()))
    ]


def _names(columns: Columns) -> str:
    return ", ".join(_NUMBERED.sub(r"\1", name) for name, _ in columns)
