"""Columns of the sources behind the columns that state is made of, where only their names changed.

An operator with ``sum(p)`` is the same to Spark, and by its text, whether ``p`` is the source's ``a`` or its ``b``.
Only names are followed: what is computed on the way has no origin, and nothing is compared. Nor is it where a name may
really have changed: the source has lost the old column since, or gained the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    walk,
)

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


def why_other_columns(
    before: Sequence[Mapping[str, Origin]],
    now: Sequence[Mapping[str, Origin]],
    had: Sequence[Sequence[str]],
    has: Sequence[Sequence[str]],
    operators: Sequence[str],
) -> str:
    """Return which column of a state is another one of its source now; empty: none, or nobody knows.

    ``had`` and ``has``: columns of each source as they were and are; ``operators``: the operators as texts.
    """
    for was, are, operator in zip(before, now, operators, strict=False):
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
    """Yield the columns that an operator tells rows apart by, and those that it aggregates, or keeps whole rows of."""
    if kind_of(operator) == "Join" or "State" in kind_of(operator):
        sides = _SIDES if kind_of(operator) == "Join" else ("",)
        for side, child in zip(sides, operator["_children"], strict=False):
            yield from ({**one, "name": f"{side}{one.get('name')}"} for one in _given(child))
    for part in _parts(operator):
        for node in walk(part):
            window = named.window(column_id(node)) if kind_of(node) == "AttributeReference" else None
            inside = (node,) if window is None else walk(window)
            yield from (one for one in inside if kind_of(one) == "AttributeReference")


_SIDES = ("left ", "right ")
"""Inputs of a join, columns of which may have one name."""


def _given(node: Tree) -> Iterator[Tree]:
    """Yield the columns of a node's rows, as far as they are those of nodes below."""
    listed = node["output"] if is_source(node) else node.get("projectList")
    if listed is not None:
        yield from map(expression, listed)
    elif "aggregateExpressions" not in node:
        for child in node["_children"]:
            yield from _given(child)


def _parts(operator: Tree) -> Iterator[Tree]:
    for name in ("groupingExpressions", "keys", "groupingAttributes"):
        yield from map(expression, operator.get(name) or ())
    for one in operator.get("aggregateExpressions") or ():
        yield from aggregates_in(expression(one))
    if kind_of(operator) == "DeduplicateWithinWatermark":
        yield from (expression(one["eventTime"]) for one in walk(operator) if "eventTime" in one)
    if operator.get("condition"):
        yield from (one for one in walk(expression(operator["condition"])) if kind_of(one) in EQUAL)


def _sources(plan: Tree) -> Iterator[Tree]:
    return (node for node in walk(plan) if is_source(node))


def _has(columns: Sequence[str], name: str) -> bool:
    return name.lower() in map(str.lower, columns)


# --- columns that state is made of ----------------------------------------------------------------------------

# Which columns of a query its state is made of, followed down to where they come from.
#
# A column that is only read, or only passed on beside state, may be another one after a restart: it meets none of
# before.

_PASS_ON = ("SubqueryAlias", "View", "SubqueryColumnAliases")
_ALL = None

Columns = frozenset[Any] | None
"""Ids of columns; None: all there are."""


def made_into_state(plan: Tree, operators: Sequence[Tree]) -> Iterator[Tree]:
    """Yield nodes of a plan, each without its children and with those of its columns only that state is made of.

    ``operators``: those of its nodes that keep state.
    """
    is_timed = any(is_bounded_by(one, (), Names()) for one in operators)
    return _asked_parts(plan, _AskedColumns(passed=_ALL, kept=frozenset(), is_timed=is_timed))


@dataclass(frozen=True, slots=True)
class _AskedColumns:
    """Columns that the nodes above ask of a node."""

    passed: Columns
    """What they need at all."""
    kept: Columns
    """What of it becomes state."""
    is_timed: bool
    """Tell whether rows of a watermark are late for state without its column."""

    makes_state: bool = False
    """Tell whether state is made of their rows."""

    def also(self, columns: frozenset[Any]) -> _AskedColumns:
        """Ask also for columns that decide which rows there are: state is made of them as well."""
        kept = _both(self.kept, columns) if self.makes_state else self.kept
        return replace(self, passed=_both(self.passed, columns), kept=kept)

    def for_state(self, passed: Columns, kept: Columns) -> _AskedColumns:
        """Ask for the columns that a node with state needs and keeps."""
        return replace(self, passed=passed, kept=kept, makes_state=True)


def _asked_parts(node: Tree, asked: _AskedColumns) -> Iterator[Tree]:
    alone = {**node, "_children": []}
    if is_source(node):
        alone["output"] = _of(node["output"], asked.kept)
    elif kind_of(node) == "Project":
        alone["projectList"] = _of(node["projectList"], asked.kept)
    below = _below(node, asked)
    if below.makes_state:
        yield alone
    for child in node["_children"]:
        yield from _asked_parts(child, below)


def _below(node: Tree, asked: _AskedColumns) -> _AskedColumns:
    """Return the columns that a node asks of the nodes below it."""
    below = replace(asked, passed=_ALL, kept=_ALL if asked.makes_state else asked.kept)
    match kind_of(node):
        case "Project":
            passed, kept = (
                _used(_of(node["projectList"], columns)) for columns in (asked.passed, asked.kept)
            )
            below = replace(asked, passed=passed, kept=kept)
        case "Aggregate" if is_streaming(node):
            used = _used([*node["groupingExpressions"], *node["aggregateExpressions"]])
            below = asked.for_state(used, used)
        case "Deduplicate" | "DeduplicateWithinWatermark" if is_streaming(node):
            keys = _used(node["keys"])
            below = asked.for_state(_both(asked.passed, keys), _both(asked.kept, keys))
        case "Join" if all(map(is_streaming, node["_children"])):
            needed = _both(asked.passed, _condition(node))
            below = asked.for_state(needed, needed)
        case "Filter" | "Join":  # the other side of this one is no stream
            below = asked.also(_condition(node))
        case "EventTimeWatermark":
            below = asked.also(_used([node["eventTime"]])) if asked.is_timed else asked
        case kind if kind in _PASS_ON:
            below = asked
        case kind if is_streaming(node) and (kind == "Distinct" or "State" in kind):
            below = asked.for_state(_ALL, _ALL)
    return below


def _condition(node: Tree) -> frozenset[Any]:
    return _used([node["condition"]] if node.get("condition") else [])


def _of(listed: Sequence[list[Tree]], columns: Columns) -> list[list[Tree]]:
    return [one for one in listed if columns is _ALL or column_id(one[0]) in columns]


def _used(expressions: Sequence[list[Tree]]) -> frozenset[Any]:
    return frozenset(
        column_id(node) for one in expressions for node in one if kind_of(node) == "AttributeReference"
    )


def _both(one: Columns, other: Columns) -> Columns:
    return _ALL if one is _ALL or other is _ALL else one | other
