"""Aggregates that a query's state keeps, by their places: Spark keeps what each has seen of a group without its name.

Their places are not those in which a stage names them. Spark leaves out what nothing behind the groups asks for, and
puts the rest in the order in which a ``select`` behind them asks: one that swaps two sums, or takes one for the other,
would have each go on from what the other has seen.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster_ckpt.spark.java.plans import optimized_plan
from dagster_ckpt.spark.plan.tree import (
    Names,
    Tree,
    aggregates_in,
    definitions,
    expression,
    is_streaming,
    kind_of,
    text_of,
    tree_of,
    walk,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    return [_kept(_by_id(node), places, named) for node in asked]


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


def _kept(aggregates: Mapping[Any, Tree], places: Collection[Any], named: Names) -> Kept:
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
