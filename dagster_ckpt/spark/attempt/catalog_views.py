"""Views in Spark's catalog on a pipeline's tables, made again with each publish.

A view and no table: it names exactly the files of what is published, so that a reader sees all of a publish or nothing
of it; Spark refuses to read it as a stream, and nobody can write through it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.derived import CatalogView
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.sink.plain_files import empty_query
from dagster_ckpt.spark.sink.port import Sink
from dagster_ckpt.spark.stage_report import Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


_OWNER = "dagster_ckpt.pipeline"
_DEFINITION = "dagster_ckpt.definition"
_HOW = "take the dataset out of catalog_views"


@dataclass(slots=True)
class CatalogViews:
    """The views of one attempt; ``shown``: the definition each of them has, by name."""

    shown: dict[str, str] = field(default_factory=dict)

    def show(
        self,
        pipeline: CheckpointedPipeline,
        table: Callable[[StageUid], Sink],
        session: Callable[[], SparkSession],
        unpublished: dict[str, str],
        reporter: Reporter,
    ) -> None:
        """Make the views that are to be other ones than they are; one that fails is in ``unpublished``."""
        for view in pipeline.views:
            try:
                wanted = definition_of(view, table(view.uid))
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
