"""Views in Spark's catalog on a pipeline's tables, made once there are rows, and again when their columns change.

A view and no table: it is resolved to the published files each time it is read, Spark refuses to read it as a stream,
and nobody can write through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.catalog_view import CatalogView
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.files import spark_uri
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.stage_report import Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

__all__ = ["CatalogViews", "definition_of", "show_in_catalog"]

_OWNER = "dagster_ckpt.pipeline"
_DEFINITION = "dagster_ckpt.definition"
_GLOBS = frozenset("*?[]{}\\")
_HOW = "or take the dataset out of catalog_views"


@dataclass(slots=True)
class CatalogViews:
    """The views of one attempt; ``shown``: the definition each of them has, by name."""

    shown: dict[str, str] = field(default_factory=dict)

    def show(
        self,
        pipeline: CheckpointedPipeline,
        folders: Mapping[StageUid, Path],
        session: Callable[[], SparkSession],
        unpublished: dict[str, str],
        reporter: Reporter,
    ) -> None:
        """Make the views that are to be other ones than they are; one that fails is in ``unpublished``."""
        for view in pipeline.views:
            try:
                wanted = definition_of(view, folders[view.uid])
                if self.shown.get(view.name) == wanted:
                    continue
                show_in_catalog(session(), view, wanted, owner=str(pipeline.name))
            except Exception as error:
                unpublished[f"view {view.name}"] = str(error)
                reporter.warn(
                    f"view {view.name} is not in Spark's catalog, the next checkpoint tries again: {error}"
                )
                continue
            self.shown[view.name] = wanted
            unpublished.pop(f"view {view.name}", None)
            reporter.info(f"view {view.name} is in Spark's catalog")


def definition_of(view: CatalogView, folder: Path) -> str:
    """Return the query of a view on the published rows of a folder. Raises InvalidRequest for a path it cannot name."""
    from pyspark.sql.types import StructType

    columns = StructType.fromJson(parse_json(view.row_schema)).fields
    if not any(folder.glob("*.parquet")):  # of no file Spark learns no columns
        empty = (f"CAST(NULL AS {one.dataType.simpleString()}) AS {quoted(one.name)}" for one in columns)
        return f"SELECT {', '.join(empty)} WHERE false"
    if _GLOBS & set(str(folder)):
        raise InvalidRequest(
            f"{folder} has a character that Spark takes for a pattern of paths: choose another table_dir, {_HOW}"
        )
    names = ", ".join(quoted(one.name) for one in columns)
    return f"SELECT {names} FROM parquet.{quoted(spark_uri(folder))} WITH ('mergeSchema' = 'true')"


def show_in_catalog(spark: SparkSession, view: CatalogView, definition: str, *, owner: str) -> None:
    """Make a view, or replace it where it is ours. Raises InvalidRequest where something else has its name."""
    name, digest = ".".join(map(quoted, view.name.split("."))), digest_bytes(definition.encode()).checksum
    if spark.catalog.tableExists(name):
        there = _properties(spark, name)
        if there.get(_OWNER) != owner:
            whose = (
                f"a view of pipeline {there[_OWNER]!r}"
                if _OWNER in there
                else "a table or view of somebody else's"
            )
            raise InvalidRequest(
                f"{view.name} is to be a view on the rows of {view.uid!r}, and is {whose}: rename that first "
                f"(ALTER TABLE {view.name} RENAME TO ...), {_HOW}"
            )
        if there.get(_DEFINITION) == digest:
            return
    properties = f"'{_OWNER}' = '{owner}', '{_DEFINITION}' = '{digest}'"
    spark.sql(f"CREATE OR REPLACE VIEW {name} TBLPROPERTIES ({properties}) AS {definition}")


def _properties(spark: SparkSession, name: str) -> dict[str, Any]:
    return {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
