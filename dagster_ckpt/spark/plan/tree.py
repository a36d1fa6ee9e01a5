"""Plans of queries as trees of plain values: what Spark tells of them as JSON.

Metadata of columns is not in there (SPARK-17356): columns are followed by their ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.spark.java.plans import analyzed_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Tree = dict[str, Any]
"""A node as ``TreeNode.toJSON`` writes it, with its children under ``_children``."""
EQUAL = ("EqualTo", "EqualNullSafe")

_WINDOWS = ("window", "session_window")


def analyzed(frame: DataFrame) -> Tree | None:
    """Return the analyzed plan; None where Spark does not show it (Connect, a node it cannot write)."""
    try:
        return tree_of(analyzed_plan(frame))
    except Exception:  # nothing is compared then, as before there was a comparison
        return None


def tree_of(plan: Any) -> Tree:
    """Return a plan of the JVM's as a tree of plain values."""
    nodes: list[Tree] = parse_json(plan.toJSON())
    return _tree(iter(nodes))


def _tree(nodes: Iterator[Tree]) -> Tree:
    """Put a list of nodes in pre-order together again."""
    node = dict(next(nodes))
    node["_children"] = [_tree(nodes) for _ in range(node.get("num-children", 0))]
    return node


def expression(nodes: list[Tree]) -> Tree:
    """Return an expression, which plans have as the list of its nodes."""
    return _tree(iter(nodes))


def walk(node: Tree) -> Iterator[Tree]:
    """Yield a node and all below it, in Spark's order."""
    yield node
    for child in node["_children"]:
        yield from walk(child)


def has_processing_timers(frame: DataFrame) -> bool:
    """Tell whether a query keeps state whose timers, or time to live, go by processing time."""
    plan = analyzed(frame)
    return plan is not None and any(
        "ProcessingTime" in mode for node in walk(plan) for mode in _time_modes(node)
    )


def is_source(node: Tree) -> bool:
    """Tell whether a node reads a stream."""
    return kind_of(node).startswith("StreamingRelation")


def is_streaming(node: Tree) -> bool:
    """Tell whether rows of a stream come through a node."""
    return any(map(is_source, walk(node)))


def columns_of(source: Tree) -> tuple[int, ...]:
    """Return the ids of a source's columns, which tell it from others of a query."""
    return tuple(int(column[0]["exprId"]["id"]) for column in source["output"])


def kind_of(node: Tree) -> str:
    """Return the name of a node's class."""
    return simple(str(node.get("class", "")))


def simple(name: str) -> str:
    """Return the name of a class of Scala without its package."""
    return name.rpartition(".")[2].removesuffix("$")


def column_id(node: Tree) -> Any:
    """Return the id of a column that an expression makes or names."""
    return (node.get("exprId") or {}).get("id")


@dataclass(frozen=True, slots=True)
class Names:
    """Expressions behind the columns that hold windows, by expression id."""

    windows: dict[Any, Tree] = field(default_factory=dict)
    others: dict[Any, Any] = field(default_factory=dict)
    """Columns under another name, and the id of the one they are."""

    def first(self, column: Any) -> Any:
        """Return the id that a column had before it got other names."""
        while column in self.others:
            column = self.others[column]
        return column

    def window(self, column: Any) -> Tree | None:
        """Return the window that a column holds, under whatever name; None: it holds none."""
        return self.windows.get(self.first(column))


def definitions(plan: Tree) -> Names:
    """Return the columns of a plan that are windows, or others under another name."""
    names = Names()
    for node in walk(plan):
        if kind_of(node) == "Expand":  # windows that overlap: a row is in several
            names.windows.update(_overlapping(node))
        for listed in node.get("projectList") or ():
            one = expression(listed)
            if kind_of(one) != "Alias":
                continue
            if kind_of(one["_children"][0]) == "AttributeReference":
                names.others[column_id(one)] = column_id(one["_children"][0])
            elif one.get("name") in _WINDOWS:
                names.windows[column_id(one)] = one["_children"][0]
    return names


def _overlapping(node: Tree) -> Iterator[tuple[Any, Tree]]:
    for place, column in enumerate(node["output"]):
        if column[0].get("name") in _WINDOWS:
            together = [expression(projection[place]) for projection in node["projections"]]
            yield column_id(column[0]), {"class": "", "_children": together}


def is_bounded_by(operator: Tree, columns: Collection[Any], named: Names) -> bool:
    """Tell whether watermarks on these columns say which rows are late for an operator, and when its state goes.

    Spark asks for the watermark of columns that rows are grouped or told apart by, and of all in a join's condition.
    ``columns``: by their first ids.
    """
    if operator.get("condition"):
        return any(_is_one_of(node, columns, named) for node in walk(expression(operator["condition"])))
    has_timers = any("EventTime" in mode for mode in _time_modes(operator))
    if has_timers or kind_of(operator) == "DeduplicateWithinWatermark":
        return True
    keys = [*(operator.get("groupingExpressions") or ()), *(operator.get("keys") or ())]
    if kind_of(operator) == "Distinct":  # by all columns
        keys += next((below["projectList"] for below in walk(operator) if "projectList" in below), [])
    return any(_is_one_of(_unnamed(expression(key)), columns, named) for key in keys)


def _time_modes(operator: Tree) -> Iterator[str]:
    """Yield by which time an operator has timers."""
    modes = (operator.get(name) for name in ("timeMode", "timeout"))
    return (str(mode.get("object", "")) for mode in modes if isinstance(mode, dict))


def _unnamed(key: Tree) -> Tree:
    while kind_of(key) == "Alias":
        key = key["_children"][0]
    return key


def _is_one_of(node: Tree, columns: Collection[Any], named: Names) -> bool:
    """Tell whether a column is one of these, under whatever name, or a window over one."""
    window = named.window(column_id(node))
    asked = (node,) if window is None else walk(window)
    return any(named.first(column_id(one)) in columns for one in asked)


# --- expressions as texts -------------------------------------------------------------------------------------

# Expressions of a plan as texts that are the same at every start of a query.

_ENDS = ("start", "end")
"""Names of a window's fields, which are literals in its definition."""
_FIELDS = ("GetMapValue", "GetArrayItem", "ElementAt", "GetJsonObject", "JsonTuple", "VariantGet")
"""Expressions that take a part of a value: the literal in them is its name."""
_PARAMETERS = ("ignoreNulls", "relativeSD")
"""Parameters of aggregates that are no expressions, and change what is kept."""


def aggregates_in(expression: Tree) -> Iterator[Tree]:
    """Yield the aggregates of an expression over all rows of a group."""
    return (node for node in walk(expression) if kind_of(node) == "AggregateExpression")


def text_of(node: Tree, named: Names, *, with_values: bool = False) -> str:
    """Return an expression without what differs from one start to the next: ids, qualifiers, values of literals."""
    kind = kind_of(node)
    if kind == "AttributeReference":
        window = named.window(column_id(node))
        return str(node["name"]) if window is None else f"{node['name']}({', '.join(_parts(window))})"
    if kind == "Literal":
        return str(node.get("value")) if with_values else "?"
    exact = with_values or kind in _FIELDS
    inner = ", ".join(text_of(child, named, with_values=exact) for child in node["_children"])
    if kind in ("AggregateExpression", "Alias"):
        return f"distinct {inner}" if node.get("isDistinct") else inner
    name = str(node.get("name") or kind.lower())
    told = [f", {one}={node[one]}" for one in _PARAMETERS if node.get(one) not in (None, False)]
    told += [f", {part['name']}"] if isinstance(part := node.get("field"), dict) else []
    return f"{name}({inner}{''.join(told)})"


def _parts(window: Tree) -> list[str]:
    """Return a window's parts: its time column, and the literals of its definition (size, slide, offset)."""
    nodes = list(walk(window))
    columns = [str(node["name"]) for node in nodes if kind_of(node) == "AttributeReference"]
    sizes = [n for n in nodes if kind_of(n) == "Literal" and n.get("value") not in _ENDS]
    return list(dict.fromkeys([*columns, *(str(size.get("value")) for size in sizes)]))
