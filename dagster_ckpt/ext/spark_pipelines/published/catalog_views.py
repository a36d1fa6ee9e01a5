"""Views in Spark's catalog on a pipeline's tables, made again with each publish.

A view and no table: it names exactly the files of what is published, so that a reader sees all of a publish or nothing
of it; Spark refuses to read it as a stream, and nobody can write through it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.sink.plain_files import empty_query
from dagster_ckpt.spark.sink.port import Sink
from dagster_ckpt.spark.stage_report import Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.spark.attempt.sinks import PipelineSinks


_OWNER = "dagster_ckpt.pipeline"
_DEFINITION = "dagster_ckpt.definition"
_HOW = "take the dataset out of catalog_views"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogView:
    """A view on a sink's table, or on a derived one."""

    uid: StageUid
    name: str
    """``catalog.schema.table``."""
    row_schema: str
    """Its columns, as Spark writes schemas."""


@dataclass(frozen=True, slots=True)
class CatalogViews:
    """Participant in publishes that makes the views which are to be other ones than they are. A fork makes none."""

    views: tuple[CatalogView, ...]
    is_forked: bool = False

    def open(self, tables: PipelineSinks) -> Callable[..., None]:
        """Return the function that makes them in one attempt; a view that fails is in ``unpublished``."""
        shown: dict[str, str] = {}

        def show(_checkpoint: int, reporter: Reporter, *, only_existing: bool = False) -> None:
            for view in self.views:
                name = f"view {view.name}"
                try:
                    wanted = definition_of(view, tables.of(view.uid))
                    if shown.get(view.name) == wanted:
                        continue
                    show_in_catalog(tables.session(), view, wanted, owner=str(tables.pipeline.name))
                except Exception as error:
                    tables.unpublished[name] = str(error)
                    reporter.warn(
                        f"{name} is not in Spark's catalog, the next checkpoint tries again: {error}"
                    )
                    continue
                shown[view.name] = wanted
                tables.unpublished.pop(name, None)
                reporter.info(f"{name} is in Spark's catalog")

        return show


def definition_of(view: CatalogView, table: Sink) -> str:
    """Return the query of a view on what a table shows. Raises InvalidRequest for rows that Spark cannot be told of."""
    try:
        files = table.rows().files()
    except NotFound:
        return empty_query(view.row_schema)
    if files is None:
        raise InvalidRequest(f"Spark reads {table.place} with a reader of its own only: {_HOW}")
    return files.query(view.row_schema)


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
                f"(ALTER TABLE {view.name} RENAME TO ...), or {_HOW}"
            )
        if there.get(_DEFINITION) == digest:
            return
    properties = f"'{_OWNER}' = '{owner}', '{_DEFINITION}' = '{digest}'"
    spark.sql(f"CREATE OR REPLACE VIEW {name} TBLPROPERTIES ({properties}) AS {definition}")


def _properties(spark: SparkSession, name: str) -> dict[str, Any]:
    return {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
