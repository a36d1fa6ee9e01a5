"""Stateful operators of a plan, and the watermarks that bound them: what Spark compares by types only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from dagster_ckpt.spark.plan.tree import (
    EQUAL,
    Names,
    Tree,
    aggregates_in,
    column_id,
    definitions,
    expression,
    is_bounded_by,
    is_source,
    is_streaming,
    kind_of,
    simple,
    text_of,
    walk,
)


def operators_in(plan: Tree) -> list[str]:
    """Return the stateful operators of a plan, one text each, in the order of the plan."""
    named = definitions(plan)
    return [_operator(node, named) for node in with_state(plan)]


def with_state(plan: Tree) -> Iterator[Tree]:
    """Yield the nodes of a plan that keep state, in the order of the plan."""
    nothing = Names()
    return (node for node in walk(plan) if is_streaming(node) and _operator(node, nothing))


_PASSED = ("projectList", "groupingExpressions", "aggregateExpressions", "keys")
"""Lists of expressions of nodes that rows come through."""


def branches_in(plan: Tree, operators: Sequence[Tree]) -> list[str]:
    """Return a digest of each operator's input, in their order: all that its rows come through, values included."""
    named = definitions(plan)
    inputs = (
        [_passed(node, named) for node in walk(child)] for one in operators for child in one["_children"]
    )
    return [hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] for texts in inputs]


def _passed(node: Tree, named: Names) -> str:
    listed = [one for name in _PASSED for one in node.get(name) or ()]
    listed += [node[name] for name in ("condition", "generator", "functionExpr") if node.get(name)]
    return " ".join((kind_of(node), *(text_of(expression(one), named, with_values=True) for one in listed)))


def filters_ahead(plan: Tree) -> list[str]:
    """Return, of each operator, the conditions behind it that Spark asks before rows become its state."""
    return list(_ahead(plan, (), definitions(plan), {}))


def _ahead(node: Tree, behind: Sequence[Tree], named: Names, made_of: Mapping[Any, Tree]) -> Iterator[str]:
    """Yield the operators of a node and all below it; ``made_of``: expressions of columns made behind it."""
    if kind_of(node) == "Filter":
        behind = [*behind, *_conjuncts(node["condition"])]
    elif kind_of(node) == "Project":
        listed = map(expression, node["projectList"])
        made_of = {**made_of, **{column_id(one): one for one in listed if kind_of(one) == "Alias"}}
    elif is_streaming(node) and _operator(node, Names()):
        given = [*behind, *(_conjuncts(node["condition"]) if node.get("condition") else ())]
        asked = [one for one in given if _is_asked_ahead(node, set(_columns_of(one, made_of)))]
        exact = kind_of(node) == "Join"  # behind groups a bound may move, as the day of a run does
        yield " AND ".join(sorted(text_of(one, named, with_values=exact) for one in asked))
        behind, made_of = (), {}
    for child in node["_children"]:
        yield from _ahead(child, behind, named, made_of)


def _conjuncts(condition: list[Tree]) -> Iterator[Tree]:
    waiting = [expression(condition)]
    while waiting:
        one = waiting.pop()
        if kind_of(one) == "And":
            waiting += one["_children"]
        else:
            yield one


def _columns_of(one: Tree, made_of: Mapping[Any, Tree]) -> Iterator[Any]:
    """Yield the ids of the columns that an expression is made of, at last."""
    for node in walk(one):
        if kind_of(node) == "AttributeReference":
            made = made_of.get(column_id(node))
            yield from (column_id(node),) if made is None else _columns_of(made, made_of)


def _is_asked_ahead(operator: Tree, columns: Set[Any]) -> bool:
    """Tell whether a condition on these columns is one on rows of one side, or on keys of groups."""
    if kind_of(operator) == "Aggregate":
        results = map(expression, operator["aggregateExpressions"])
        return bool(columns) and not columns & {column_id(one) for one in results if any(aggregates_in(one))}
    sides = operator["_children"] if kind_of(operator) == "Join" else ()
    return bool(columns) and any(columns <= set(_made_in(side)) for side in sides)


def matches_in(plan: Tree) -> list[str]:
    """Return, of each join that passes on rows which have met none, what they have to meet one by besides their keys.

    Spark keeps with each row whether it has met one, by the condition that was asked then.
    """
    named = definitions(plan)
    return [_match(node, named) for node in with_state(plan) if _join_type(node) not in ("", "Inner")]


def _match(join: Tree, named: Names) -> str:
    left = set(_made_in(join["_children"][0]))
    parts = [one for one in _conjuncts(join["condition"]) if kind_of(one) not in EQUAL]
    return " AND ".join(sorted(text_of(_sided(one, left), named, with_values=True) for one in parts))


def _sided(one: Tree, left: Set[Any]) -> Tree:
    """Return an expression whose columns say of which side of a join they are."""
    sided = {**one, "_children": [_sided(child, left) for child in one["_children"]]}
    if kind_of(one) == "AttributeReference":
        sided["name"] = f"{'left' if column_id(one) in left else 'right'} {one['name']}"
    return sided


def _join_type(node: Tree) -> str:
    return simple(str((node.get("joinType") or {}).get("object", "")))


def _made_in(plan: Tree) -> Iterator[Any]:
    """Yield the ids of all columns that are made in a plan."""
    for node in walk(plan):
        lists = ("output",) if is_source(node) else ("projectList", "aggregateExpressions")
        yield from (column_id(one[0]) for name in lists for one in node.get(name) or ())


_MAPS = ("MapInPandas", "MapInArrow", "PythonMapInArrow")
_ROW_BY_ROW = frozenset({"Project", "Filter", "Generate", "Union", "Join", "SubqueryAlias", "View", *_MAPS})
_ROW_BY_ROW |= {"EventTimeWatermark", "Repartition", "RepartitionByExpression", "ResolvedHint"}


def other_than_row_by_row(plan: Tree) -> str:
    """Return an operator whose rows depend on several rows of a stream; empty: each row is processed by itself."""
    keeping = {id(node) for node in with_state(plan)}
    nodes = (node for node in walk(plan) if is_streaming(node) and not is_source(node))
    return next((kind_of(n) for n in nodes if id(n) in keeping or kind_of(n) not in _ROW_BY_ROW), "")


def watermarks_in(plan: Tree) -> list[str]:
    """Return the columns that streams have watermarks on."""
    return list(dict.fromkeys(str(column["name"]) for column in _with_watermark(plan)))


def watermarks_of(plan: Tree, operators: Sequence[Tree]) -> list[str]:
    """Return the columns of watermarks that say which rows are late for these operators."""
    named = definitions(plan)
    asked = (
        str(column["name"])
        for column in _with_watermark(plan)
        if any(is_bounded_by(one, {named.first(column_id(column))}, named) for one in operators)
    )
    return list(dict.fromkeys(asked))


def groups_in(operators: Sequence[Tree]) -> list[Tree]:
    """Return the operators that group rows."""
    return [operator for operator in operators if kind_of(operator) == "Aggregate"]


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
            return f"join({' AND '.join(equal)}, {_join_type(node)})"
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
