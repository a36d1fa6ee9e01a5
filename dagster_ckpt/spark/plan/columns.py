"""Columns, fields of structs and aggregates of a query's state, by their places: Spark keeps them without names.

A restarted query is compared by types only. A join that keeps ``cost`` where it kept ``price``, duplicates by
``(b, a)`` instead of ``(a, b)``, or a state whose two counts have changed places, would take the one for the other.
A restarted query is compared by types only. The newest row of a key, ``max_by(row, at)``, would come out of its state
with ``cost`` under the name of ``price``, where the two have changed places or the one has taken the other's.
Their places are not those in which a stage names them. Spark leaves out what nothing behind the groups asks for, and
puts the rest in the order in which a ``select`` behind them asks: one that swaps two sums, or takes one for the other,
would have each go on from what the other has seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.spark.java.plans import analyzed_plan, nodes_of, optimized_plan
from dagster_ckpt.spark.plan.tree import (
    EQUAL,
    Names,
    Tree,
    aggregates_in,
    column_id,
    definitions,
    expression,
    is_streaming,
    kind_of,
    simple,
    text_of,
    tree_of,
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


_READ_OUT = ("ApproximatePercentile", "Percentile", "PercentileCont", "PercentileDisc")
"""Aggregates whose arguments behind the first say what is read out of a state that is the same for all of them."""

Kept = list[list[str]]
"""Of each aggregate of an operator its text without values of literals, and with them."""


def state_aggregates(frame: DataFrame, plan: Tree) -> list[Kept] | None:
    """Return the aggregates of each operator that groups, in the order of their state; ``plan`` is the analyzed one.

    None: Spark does not show them, and nothing is compared.
    """
    groups = [node for node in walk(plan) if kind_of(node) == "Aggregate"]
    asked = [node for node in groups if is_streaming(node)]
    if not asked:
        return []
    try:
        places = _places(tree_of(optimized_plan(frame)))
    except Exception:
        return None
    found = [_by_id(node) for node in groups]
    if not set(places) <= {one for each in found for one in each}:  # some were made others
        return None
    named = definitions(plan)
    return [_state_of(_by_id(node), places, named) for node in asked]


def why_other_aggregates(before: Sequence[Kept] | None, now: Sequence[Kept] | None) -> str:
    """Return the aggregates that the state was not made by, in a sentence; empty: none, or nobody knows."""
    for was, are in zip(before or (), now or (), strict=False):
        if [shape for shape, _ in was] != [shape for shape, _ in are] or _have_moved(was, are):
            old, new = (", ".join(exact for _, exact in some) or "nothing" for some in (was, are))
            return (
                f"it keeps {old} of each group, and what the stage uses of its groups is {new} now; Spark tells "
                "aggregates apart by their order only"
            )
    return ""


def _have_moved(was: Kept, are: Kept) -> bool:
    """Tell whether an aggregate would go on from what another one in its place has seen: values may change else."""
    return any(one != other and other in was for one, other in zip(was, are, strict=True))


def _state_of(aggregates: Mapping[Any, Tree], places: Collection[Any], named: Names) -> Kept:
    once: dict[str, list[str]] = {}
    for one in places:
        if one in aggregates:
            node = aggregates[one]
            once.setdefault(_identity(node, named), [text_of(node, named), _meaning(node, named)])
    return list(once.values())


def _identity(node: Tree, named: Names) -> str:
    """Return the aggregate that Spark keeps once, however often a query asks for it."""
    parts = [(part.get("dataType"), part.get("exprId")) for part in walk(node)]
    return f"{text_of(node, named, with_values=True)} {json.dumps(parts)}"


def _meaning(node: Tree, named: Names) -> str:
    """Return an aggregate as text: its function, arguments and filters."""
    of, *filters = node["_children"]
    if kind_of(of) in _READ_OUT:
        of = {**of, "_children": of["_children"][:1]}
    return ", ".join(text_of(one, named, with_values=True) for one in (of, *filters))


def _places(plan: Tree) -> list[Any]:
    """Return the ids of the aggregates of an optimized plan, in the order in which it asks for them."""
    nodes = (node for node in walk(plan) if kind_of(node) == "Aggregate")
    return list(dict.fromkeys(one for node in nodes for one in _by_id(node)))


def _by_id(node: Tree) -> dict[Any, Tree]:
    return {_id(one): one for one in _of_group(node)}


def _of_group(node: Tree) -> Iterator[Tree]:
    return (one for written in node["aggregateExpressions"] for one in aggregates_in(expression(written)))


def _id(aggregate: Tree) -> Any:
    return (aggregate.get("resultId") or {}).get("id")
