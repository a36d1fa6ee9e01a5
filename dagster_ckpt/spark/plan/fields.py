"""Fields of structs that a query's state keeps whole, by their places: Spark keeps them without their names.

A restarted query is compared by types only. The newest row of a key, ``max_by(row, at)``, would come out of its state
with ``cost`` under the name of ``price``, where the two have changed places or the one has taken the other's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.spark.java.plans import nodes_of, optimized_plan
from dagster_ckpt.spark.plan.tree import Tree, aggregates_in, expression, kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_WHOLE = ("Alias", "CaseWhen", "Coalesce", "CreateArray", "CreateMap", "CreateNamedStruct", "If")
"""Expressions whose value holds that of a column whole; others make something new of it."""
_COUNTED = ("ApproxCountDistinct", "Count", "HyperLogLogPlusPlus")
"""Aggregates that keep nothing of what they have seen."""

Fields = dict[str, str]
"""Of each column with structs in it their fields, in order."""


def state_fields(frame: DataFrame, operators: Sequence[Tree]) -> list[Fields] | None:
    """Return the fields of structs in the state of each of the plan's stateful operators.

    None: Spark does not show them, and nothing is compared.
    """
    found = [dict(_of_tree(one)) for one in operators]
    if not any(kind_of(one) in ("Join", "Distinct") for one in operators):
        return found
    try:
        return [*found, *map(dict, _of_rows(optimized_plan(frame)))]
    except Exception:
        return None


def why_other_fields(before: Sequence[Fields] | None, now: Sequence[Fields] | None) -> str:
    """Return which struct of a state has other fields now; empty: none, or nobody knows."""
    for was, are in zip(before or (), now or (), strict=False):
        for name in sorted(was.keys() & are.keys()):
            if was[name] != are[name]:
                return (
                    f"{name!r} in it has the fields {was[name]}, and has {are[name]} now; Spark tells fields of state "
                    "apart by their order only"
                )
    return ""


def _of_tree(operator: Tree) -> Iterator[tuple[str, str]]:
    for key in ("groupingExpressions", "keys"):
        for one in operator.get(key) or ():
            yield from _kept(expression(one))
    for one in operator.get("aggregateExpressions") or ():
        for aggregate in aggregates_in(expression(one)):
            [function, *_] = aggregate["_children"]
            if kind_of(function) not in _COUNTED:
                for argument in function["_children"]:
                    yield from _kept(argument)


def _kept(node: Tree) -> Iterator[tuple[str, str]]:
    """Yield the columns that a value holds whole."""
    if kind_of(node) == "AttributeReference":
        if fields := _fields(node.get("dataType")):
            yield str(node["name"]), fields
    elif kind_of(node) in _WHOLE:
        for child in node["_children"]:
            yield from _kept(child)


def _of_rows(plan: Any) -> Iterator[Iterator[tuple[str, str]]]:
    """Yield, of each operator that keeps rows, the columns of them with structs in them."""
    for node in nodes_of(plan):
        sides = [node.children().apply(place) for place in range(node.children().size())]
        if (node.nodeName() == "Join" or _is_distinct(node)) and all(side.isStreaming() for side in sides):
            for side in sides:
                yield _of_output(side.output())


def _is_distinct(node: Any) -> bool:
    """Tell whether a node is what Spark makes of DISTINCT: groups of all columns, and nothing else."""
    if node.nodeName() != "Aggregate":
        return False
    sizes = {node.groupingExpressions().size(), node.output().size(), node.child().output().size()}
    return len(sizes) == 1


def _of_output(columns: Any) -> Iterator[tuple[str, str]]:
    for place in range(columns.size()):
        column = columns.apply(place)
        if fields := _fields(parse_json(column.dataType().json())):
            yield str(column.name()), fields


def _fields(kind: Any) -> str:
    """Return the names of the fields within a type, ``(id, price)``; empty: it has none."""
    if not isinstance(kind, Mapping):
        return ""
    match kind.get("type"):
        case "struct":
            return f"({', '.join(field['name'] + _fields(field['type']) for field in kind['fields'])})"
        case "array":
            return _fields(kind["elementType"])
        case "map":
            return _fields(kind["keyType"]) + _fields(kind["valueType"])
    return ""
