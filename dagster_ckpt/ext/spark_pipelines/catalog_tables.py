"""Tables of Spark's catalog that a plan reads, whichever way it came to them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dagster_ckpt.spark.java.plans import analyzed_plan, leaves_of, scala_items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["missing_table", "tables_of_catalog"]

_VIEW = re.compile(r"\bView \(((?:`(?:[^`]|``)+`\.)+`(?:[^`]|``)+`)")
"""Of a view of the catalog in the text of a plan; one of the session has a name of one part."""


def tables_of_catalog(frame: DataFrame) -> set[str]:
    """Return the names of the catalog's tables and views that are read, also within expressions and by its views."""
    plan = analyzed_plan(frame)
    names = (_name(leaf) for part in (plan, *scala_items(plan.subqueriesAll())) for leaf in leaves_of(part))
    return {name for name in names if name} | set(_VIEW.findall(str(plan.toString())))


def missing_table(error: Exception) -> str:
    """Return the name of the table that an error of Spark's misses; empty: it is another error."""
    told = getattr(error, "getMessageParameters", None)
    kind = getattr(error, "getCondition", None)
    if told is None or kind is None or kind() != "TABLE_OR_VIEW_NOT_FOUND":
        return ""
    return str((told() or {}).get("relationName", ""))


def _name(leaf: Any) -> str:
    match str(leaf.getClass().getSimpleName()):
        case "HiveTableRelation" | "UnresolvedCatalogRelation":
            return str(leaf.tableMeta().identifier().quotedString())
        case "LogicalRelation":
            return _of_table(leaf.catalogTable())
        case "StreamingRelation":
            return _of_table(leaf.dataSource().catalogTable())
        case "DataSourceV2Relation" | "StreamingRelationV2":
            if leaf.catalog().isEmpty() or leaf.identifier().isEmpty():
                return ""
            place = leaf.identifier().get()
            return ".".join(
                f"`{part}`" for part in (leaf.catalog().get().name(), *place.namespace(), place.name())
            )
        case _:
            return ""


def _of_table(table: Any) -> str:
    return "" if table.isEmpty() else str(table.get().identifier().quotedString())
