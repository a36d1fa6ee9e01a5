"""Which columns of a query its state is made of, followed down to where they come from.

A column that is only read, or only passed on beside state, may be another one after a restart: it meets none of before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dagster_ckpt.spark.attempt.plan_tree import (
    Names,
    Tree,
    column_id,
    is_bounded_by,
    is_source,
    is_streaming,
    kind_of,
)

__all__ = ["made_into_state"]

_PASS_ON = ("SubqueryAlias", "View", "SubqueryColumnAliases")
_ALL = None

Columns = frozenset[Any] | None
"""Ids of columns; None: all there are."""


def made_into_state(plan: Tree, operators: Sequence[Tree]) -> Iterator[Tree]:
    """Yield nodes of a plan, each without its children and with those of its columns only that state is made of.

    ``operators``: those of its nodes that keep state.
    """
    is_timed = any(is_bounded_by(one, (), Names()) for one in operators)
    return _parts(plan, _Asked(passed=_ALL, kept=frozenset(), is_timed=is_timed))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked of a node by those above it."""

    passed: Columns
    """What they need at all."""
    kept: Columns
    """What of it becomes state."""
    is_timed: bool
    """Tell whether rows of a watermark are late for state without its column."""

    makes_state: bool = False
    """Tell whether state is made of their rows."""

    def also(self, columns: frozenset[Any]) -> _Asked:
        """Ask for what decides which rows there are: state is made of that as well."""
        kept = _both(self.kept, columns) if self.makes_state else self.kept
        return replace(self, passed=_both(self.passed, columns), kept=kept)

    def for_state(self, passed: Columns, kept: Columns) -> _Asked:
        """Ask for what a node with state needs and keeps."""
        return replace(self, passed=passed, kept=kept, makes_state=True)


def _parts(node: Tree, asked: _Asked) -> Iterator[Tree]:
    alone = {**node, "_children": []}
    if is_source(node):
        alone["output"] = _of(node["output"], asked.kept)
    elif kind_of(node) == "Project":
        alone["projectList"] = _of(node["projectList"], asked.kept)
    below = _below(node, asked)
    if below.makes_state:
        yield alone
    for child in node["_children"]:
        yield from _parts(child, below)


def _below(node: Tree, asked: _Asked) -> _Asked:
    """Return what a node asks of those below it."""
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
