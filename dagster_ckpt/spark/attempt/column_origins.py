"""Which columns of its sources the columns are that an operator's state is made of, where only their names changed.

An operator with ``sum(p)`` is the same to Spark, and by its text, whether ``p`` is the source's ``a`` or its ``b``.
Only names are followed: what is computed on the way has no origin, and nothing is compared. Nor is it where a name may
really have changed: the source has lost the old column since, or gained the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dagster_ckpt.spark.attempt.plan_texts import aggregates_in
from dagster_ckpt.spark.attempt.plan_tree import (
    EQUAL,
    Names,
    Tree,
    column_id,
    definitions,
    expression,
    is_source,
    kind_of,
    walk,
)

__all__ = ["columns_of_sources", "origins_in", "why_other_columns"]

Origin = list[Any]
"""Number of a source in the plan, and its column."""


def columns_of_sources(plan: Tree) -> list[list[str]]:
    """Return the names of each source's columns, in the order of the plan."""
    return [[str(column[0]["name"]) for column in source["output"]] for source in _sources(plan)]


def origins_in(plan: Tree, operators: Sequence[Tree]) -> list[dict[str, Origin]]:
    """Return, by operator, what columns of sources its columns are; those whose name is of several are left out."""
    named = definitions(plan)
    leaves: dict[Any, Origin] = {}
    for place, source in enumerate(_sources(plan)):
        leaves |= {column_id(column[0]): [place, str(column[0]["name"])] for column in source["output"]}
    return [_origins(operator, leaves, named) for operator in operators]


def why_other_columns(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return which column of a state is another one of its source now; empty: none, or nobody knows."""
    had, has = before.get("source_columns", []), now["source_columns"]
    for was, are, operator in zip(before.get("origins", []), now["origins"], now["operators"], strict=False):
        for name in was.keys() & are.keys():
            (place, old), (there, new) = was[name], are[name]
            is_same_source = place == there and place < len(had)
            if is_same_source and not _has([old], new) and _has(had[place], new) and _has(has[there], old):
                return (
                    f"column {name!r} of {operator} was column {old!r} of its source, and is {new!r} now, under the "
                    "same name"
                )
    return ""


def _origins(operator: Tree, leaves: Mapping[Any, Origin], named: Names) -> dict[str, Origin]:
    found: dict[str, list[Origin | None]] = {}
    for column in _attributes(operator, named):
        origin = leaves.get(named.first(column_id(column)))
        origins = found.setdefault(str(column["name"]).lower(), [])
        if origin not in origins:
            origins.append(origin)
    return {name: one for name, (one, *others) in found.items() if one is not None and not others}


def _attributes(operator: Tree, named: Names) -> Iterator[Tree]:
    """Yield the columns that an operator tells rows apart by, and those that it aggregates."""
    for part in _parts(operator):
        for node in walk(part):
            window = named.window(column_id(node)) if kind_of(node) == "AttributeReference" else None
            inside = (node,) if window is None else walk(window)
            yield from (one for one in inside if kind_of(one) == "AttributeReference")


def _parts(operator: Tree) -> Iterator[Tree]:
    for name in ("groupingExpressions", "keys", "groupingAttributes"):
        yield from map(expression, operator.get(name) or ())
    for one in operator.get("aggregateExpressions") or ():
        yield from aggregates_in(expression(one))
    if operator.get("condition"):
        yield from (one for one in walk(expression(operator["condition"])) if kind_of(one) in EQUAL)


def _sources(plan: Tree) -> Iterator[Tree]:
    return (node for node in walk(plan) if is_source(node))


def _has(columns: Sequence[str], name: str) -> bool:
    return name.lower() in map(str.lower, columns)
