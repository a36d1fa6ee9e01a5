"""Definitions in SQL, read by Spark's own parser, which a classic session has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark_project.elements import Elements, FlowElement, Kind, OutputElement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register_sql_file", "scala_items"]

Add = Callable[[FlowElement], None]

_REFUSED = {
    "SetCommand": "SET: write the setting in the spec file's configuration",
    "SetCatalogAndNamespace": "USE: write the schema in the spec file, or before the names",
    "SetNamespaceCommand": "USE: write the schema in the spec file, or before the names",
    "SetCatalogCommand": "SET CATALOG: write the catalog in the spec file, or before the names",
    "CreateView": "CREATE VIEW: a persisted view belongs to the catalog; CREATE TEMPORARY VIEW works",
}
_BY_NAME = re.compile(r"\bINSERT\s+INTO\b.*?\bBY\s+NAME\b", re.IGNORECASE | re.DOTALL)


def scala_items(found: Any) -> Iterator[Any]:
    """Yield the elements of a Scala collection."""
    items = found.iterator()
    while items.hasNext():
        yield items.next()


def register_sql_file(spark: SparkSession, elements: Elements, text: str, shown: str, add: Add) -> None:
    """Register what a SQL file defines. Raises InvalidRequest for a statement that is not supported."""
    context: Any = spark._jvm.org.apache.spark.sql.pipelines.graph.SqlGraphRegistrationContext
    try:
        found = list(scala_items(context.splitSqlFileIntoQueries(spark._jsparkSession, text, shown)))
    except Exception as error:
        raise InvalidRequest(f"{shown}: Spark cannot read it: {error}") from error
    for statement in found:
        origin = statement.queryOrigin()
        _Statement(
            spark=spark,
            elements=elements,
            text=str(origin.sqlText().get()),
            plan=statement.plan(),
            where=f"{shown}:{origin.line().get()}",
            add=add,
        ).register()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """One statement of a file."""

    spark: SparkSession
    elements: Elements
    text: str
    plan: Any
    where: str
    add: Add

    def register(self) -> None:
        """Register the outputs and flows of the statement."""
        kind = str(self.plan.getClass().getSimpleName())
        match kind:
            case "CreateStreamingTableAsSelect":
                self._table(Kind.STREAMING_TABLE)
                self._flow(self._name(self.plan.name()), self.plan.originalText())
            case "CreateMaterializedViewAsSelect":
                self._table(Kind.MATERIALIZED_VIEW)
                self._flow(self._name(self.plan.name()), self.plan.originalText())
            case "CreateStreamingTable":
                self._table(Kind.STREAMING_TABLE)
            case "CreateViewCommand":
                self._view()
            case "CreateFlowCommand":
                self._create_flow()
            case _:
                raise InvalidRequest(f"{self.where} has {_REFUSED.get(kind, kind)}, which is not supported")

    def _name(self, identifier: Any) -> str:
        return ".".join(
            f"`{part}`" if not part.isidentifier() else part for part in scala_items(identifier.nameParts())
        )

    def _table(self, kind: Kind) -> None:
        spec = self.plan.tableSpec()
        if spec.location().isDefined() or spec.external():
            raise InvalidRequest(
                f"{self.where} has LOCATION, which is not supported: the table lies in the table_dir"
            )
        self.elements.add_output(
            OutputElement(
                name=self.elements.namespace.table(self._name(self.plan.name()), what=str(kind)),
                kind=kind,
                where=self.where,
                comment=_or_empty(spec.comment()),
                format=_or_empty(spec.provider()),
                schema=self._columns(),
                partition_cols=self._partitioning(),
                properties={str(pair._1()): str(pair._2()) for pair in scala_items(spec.properties())},
            )
        )

    def _columns(self) -> Any:
        from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string

        columns = list(scala_items(self.plan.columns()))
        for column in columns:
            if column.defaultValue().isDefined() or column.generationExpression().isDefined():
                raise InvalidRequest(
                    f"{self.where}: column {column.name()} has a default or is generated, which is not supported"
                )
        fields = [
            StructField(column.name(), _parse_datatype_json_string(column.dataType().json()))
            for column in columns
        ]
        return StructType(fields) if fields else None

    def _partitioning(self) -> tuple[str, ...]:
        found = []
        for transform in scala_items(self.plan.partitioning()):
            if str(transform.name()) == "cluster_by":
                continue
            if str(transform.name()) != "identity":
                raise InvalidRequest(
                    f"{self.where} is partitioned by {transform}: Spark's pipelines take columns only"
                )
            found += [str(part) for part in transform.references()[0].fieldNames()]
        return tuple(found)

    def _view(self) -> None:
        name = str(self.plan.name().table())
        if self.plan.viewType().toString() != "LocalTempView":
            raise InvalidRequest(
                f"{self.where} creates a {self.plan.viewType()}: only CREATE TEMPORARY VIEW is supported"
            )
        if not self.plan.userSpecifiedColumns().isEmpty():
            raise InvalidRequest(f"{self.where}: name the columns of view {name!r} in its query")
        self.elements.add_output(
            OutputElement(
                name=self.elements.namespace.single(name, what="view"),
                kind=Kind.TEMPORARY_VIEW,
                where=self.where,
                comment=_or_empty(self.plan.comment()),
            )
        )
        self._flow(name, self.plan.originalText().get())

    def _create_flow(self) -> None:
        operation = self.plan.flowOperation()
        inside = str(operation.getClass().getSimpleName())
        found = _BY_NAME.search(self.text)
        if (
            inside != "InsertIntoStatement"
            or found is None
            or not operation.byName()
            or operation.overwrite()
        ):
            raise InvalidRequest(
                f"{self.where}: a flow in SQL is CREATE FLOW ... AS INSERT INTO ... BY NAME here; for Auto CDC write "
                "create_auto_cdc_flow in Python"
            )
        target = ".".join(scala_items(operation.table().multipartIdentifier()))
        self._flow(target, self.text[found.end() :], name=self._name(self.plan.name()))

    def _flow(self, target: str, query: str, *, name: str = "") -> None:
        spark = self.spark
        self.add(
            FlowElement(
                name=name or target,
                target=target,
                where=self.where,
                func=lambda: spark.sql(query),
                is_default=not name,
            )
        )


def _or_empty(option: Any) -> str:
    return str(option.get()) if option.isDefined() else ""
