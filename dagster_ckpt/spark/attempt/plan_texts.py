"""Expressions of a plan as texts that are the same at every start of a query."""

from __future__ import annotations

from collections.abc import Iterator

from dagster_ckpt.spark.attempt.plan_tree import Names, Tree, column_id, kind_of, walk

__all__ = ["aggregates_in", "text_of"]

_ENDS = ("start", "end")
"""Names of a window's fields, which are literals in its definition."""
_FIELDS = ("GetMapValue", "GetArrayItem", "ElementAt", "GetJsonObject", "JsonTuple", "VariantGet")
"""Expressions that take a part of a value: the literal in them is its name."""


def aggregates_in(expression: Tree) -> Iterator[Tree]:
    """Yield what an expression asks of all rows of a group."""
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
    return f"{name}({inner})"


def _parts(window: Tree) -> list[str]:
    """Return what a window is made of: its time column, and the literals of its definition (size, slide, offset)."""
    nodes = list(walk(window))
    columns = [str(node["name"]) for node in nodes if kind_of(node) == "AttributeReference"]
    sizes = [n for n in nodes if kind_of(n) == "Literal" and n.get("value") not in _ENDS]
    return list(dict.fromkeys([*columns, *(str(size.get("value")) for size in sizes)]))
