"""Columns of the sources behind the columns that state is made of, where only their names changed.

An operator with ``sum(p)`` is the same to Spark, and by its text, whether ``p`` is the source's ``a`` or its ``b``.
Only names are followed, through channels too: what is computed on the way has no origin, and nothing is compared. Nor
is it where a name may really have changed: the source has lost the old column since, or gained the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
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


@dataclass(frozen=True, slots=True)
class ChannelColumns:
    """Columns of a channel, as its writer's plan has them: each goes by the name of what it was ahead of the writer."""

    writer: str
    sources: Sequence[Sequence[str]]
    """Columns of the writer's sources."""
    passed_on: Mapping[str, Origin]
    """Columns of these that columns of the channel are; the others are computed."""

    def origin(self, column: str) -> str:
        """Return the name of what a column of the channel was."""
        origin = self.passed_on.get(column.lower())
        return f"{column} of {self.writer}" if origin is None else self._ahead(*origin)

    def all_origins(self, columns: Sequence[str]) -> list[str]:
        """Return the names of all that the channel's ``columns`` may have been."""
        ahead = [self._ahead(place, name) for place, names in enumerate(self.sources) for name in names]
        return [*ahead, *(self.origin(column) for column in columns if column.lower() not in self.passed_on)]

    def _ahead(self, place: int, column: str) -> str:
        return f"{column} ahead of {self.writer}" + (f", source {place + 1}" if place else "")


Channels = Mapping[int, ChannelColumns]
"""Columns of channels, by the place of each in the plan."""


def columns_of_sources(plan: Tree, channels: Channels) -> list[list[str]]:
    """Return the names of each source's columns, in the order of the plan; of a channel those of what it is made of."""
    every = ([str(column[0]["name"]) for column in source["output"]] for source in _sources(plan))
    return [channels[n].all_origins(own) if n in channels else own for n, own in enumerate(every)]


def origins_in(plan: Tree, operators: Sequence[Tree], channels: Channels) -> list[dict[str, Origin]]:
    """Return, by operator, what columns of sources its columns are; those whose name is of several are left out."""
    named, leaves = definitions(plan), _leaves(plan, channels)
    return [_alone(_attributes(operator, named), leaves, named) for operator in operators]


def passed_on(plan: Tree, columns: Sequence[str], channels: Channels) -> dict[str, Origin]:
    """Return columns of sources by the columns of a query's rows that they are, as far as nothing is computed."""
    given = (one for one in _given(plan, only=_AS_THEY_ARE) if one.get("name") in columns)
    return _alone(given, _leaves(plan, channels), definitions(plan))


def _leaves(plan: Tree, channels: Channels) -> dict[Any, Origin]:
    """Return the columns of sources by their ids."""
    found: dict[Any, Origin] = {}
    for place, source in enumerate(_sources(plan)):
        for column in source["output"]:
            name = str(column[0]["name"])
            name = channels[place].origin(name) if place in channels else name
            found[column_id(column[0])] = [place, name]
    return found


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


def _alone(columns: Iterable[Tree], leaves: Mapping[Any, Origin], named: Names) -> dict[str, Origin]:
    """Return the origins of columns whose name is that of one alone."""
    found: dict[str, list[Origin | None]] = {}
    for column in columns:
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


_PASS_ON = ("SubqueryAlias", "View", "SubqueryColumnAliases")
_AS_THEY_ARE = frozenset(
    {"Filter", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "EventTimeWatermark"}
)
_AS_THEY_ARE |= {"Join", "Repartition", "RepartitionByExpression", "ResolvedHint", *_PASS_ON}
"""Nodes whose rows have the columns of the nodes below."""


def _given(node: Tree, only: Set[str] = frozenset()) -> Iterator[Tree]:
    """Yield the columns of a node's rows, as far as they are those of nodes below; of ``only`` these kinds, if any."""
    listed = node["output"] if is_source(node) else node.get("projectList")
    if listed is not None:
        yield from map(expression, listed)
    elif kind_of(node) in only if only else "aggregateExpressions" not in node:
        for child in node["_children"]:
            yield from _given(child, only)


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
