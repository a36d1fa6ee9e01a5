"""Definitions in SQL, read by Spark's own parser, which a classic session has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.elements import (
    Elements,
    FlowElement,
    Kind,
    Namespace,
    OutputElement,
    at_home,
)
from dagster_ckpt.spark.java.plans import scala_items, sql_file_statements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Add = Callable[[FlowElement], None]

_REFUSED = {
    "SetCatalogAndNamespace": "USE: write USE SCHEMA, as Spark's pipelines ask for, or the schema before the names",
    "SetCatalogCommand": "SET CATALOG: write the catalog in the spec file, or before the names",
    "CreateTableAsSelect": "CREATE TABLE: write CREATE MATERIALIZED VIEW or CREATE STREAMING TABLE",
    "CreateTable": "CREATE TABLE: write CREATE STREAMING TABLE",
    "CreateView": "CREATE VIEW: a persisted view belongs to the catalog; CREATE TEMPORARY VIEW works",
}
_BY_NAME = re.compile(r"\bINSERT\s+INTO\b.*?\bBY\s+NAME\b", re.IGNORECASE | re.DOTALL)
_TEXT_OR_COMMENT = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|(?P<comment>--[^\n]*|/\*.*?\*/)""", re.DOTALL
)


def register_sql_file(spark: SparkSession, elements: Elements, text: str, shown: str, add: Add) -> None:
    """Register what a SQL file defines. Raises InvalidRequest for a statement that is not supported."""
    try:
        found = list(sql_file_statements(spark, text, shown))
    except Exception as error:
        raise InvalidRequest(f"{shown}: Spark cannot read it: {error}") from error
    told = _SettingsSoFar(space=elements.namespace)
    for statement in found:
        origin = statement.queryOrigin()
        told = _Statement(
            spark=spark,
            elements=elements,
            text=str(origin.sqlText().get()),
            plan=statement.plan(),
            where=f"{shown}:{origin.line().get()}",
            add=add,
            told=told,
        ).register()


@dataclass(frozen=True, slots=True, kw_only=True)
class _SettingsSoFar:
    """Settings that a file's statements give to those after them."""

    space: Namespace
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """One statement of a file."""

    spark: SparkSession
    elements: Elements
    text: str
    plan: Any
    where: str
    add: Add
    told: _SettingsSoFar

    def register(self) -> _SettingsSoFar:
        """Register the outputs and flows of the statement, and return what holds for the next one."""
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
            case "CreateStreamingTableAutoCdc":
                self._table(Kind.STREAMING_TABLE)
                self._auto_cdc(self.plan, self._name(self.plan.name()))
            case "CreateViewCommand":
                self._view()
            case "CreateFlowCommand":
                self._create_flow()
            case "SetCommand":
                return self._set()
            case "SetNamespaceCommand":
                return self._use()
            case _:
                raise InvalidRequest(f"{self.where} has {_REFUSED.get(kind, kind)}, which is not supported")

        return self.told

    def _set(self) -> _SettingsSoFar:
        pair = self.plan.kv().get() if self.plan.kv().isDefined() else None
        if pair is None or not pair._2().isDefined():
            raise InvalidRequest(f"{self.where} has SET without a value: write SET key = value")
        return replace(self.told, conf={**self.told.conf, str(pair._1()): str(pair._2().get())})

    def _use(self) -> _SettingsSoFar:
        parts = [str(part) for part in scala_items(self.plan.namespace())]
        if len(parts) > 2:
            raise InvalidRequest(
                f"{self.where} has USE SCHEMA {'.'.join(parts)}: a catalog and a schema at most"
            )
        catalog, database = (self.told.space.catalog, *parts)[-2:]
        return replace(self.told, space=Namespace(catalog=catalog, database=database))

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
        if spec.collation().isDefined():
            raise InvalidRequest(f"{self.where} has DEFAULT COLLATION, which is not supported")
        self.elements.add_output(
            OutputElement(
                name=self.told.space.table(self._name(self.plan.name()), what=str(kind)),
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
            StructField(
                column.name(), _parse_datatype_json_string(column.dataType().json()), column.nullable()
            )
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
                name=self.told.space.single(name, what="view"),
                kind=Kind.TEMPORARY_VIEW,
                where=self.where,
                comment=_or_empty(self.plan.comment()),
            )
        )
        self._flow(name, self.plan.originalText().get())

    def _create_flow(self) -> None:
        operation = self.plan.flowOperation()
        inside = str(operation.getClass().getSimpleName())
        if inside == "AutoCdcInto":
            target = self._name(operation.targetTable())
            self._auto_cdc(operation, target, name=self._name(self.plan.name()))
            return
        found = _BY_NAME.search(_without_comments(self.text))
        if (
            inside != "InsertIntoStatement"
            or found is None
            or not operation.byName()
            or operation.overwrite()
        ):
            raise InvalidRequest(
                f"{self.where}: a flow in SQL is CREATE FLOW ... AS INSERT INTO ... BY NAME, or AS AUTO CDC INTO ..."
            )
        target = ".".join(scala_items(operation.table().multipartIdentifier()))
        self._flow(target, self.text[found.end() :], name=self._name(self.plan.name()))

    def _auto_cdc(self, plan: Any, target: str, *, name: str = "") -> None:
        relation = plan.source()
        if str(relation.getClass().getSimpleName()) == "NamedStreamingRelation":
            relation = relation.child()
        if str(relation.getClass().getSimpleName()) != "UnresolvedRelation":
            raise InvalidRequest(
                f"{self.where}: AUTO CDC reads FROM STREAM name here: make a temporary view of what it is to read"
            )
        source = ".".join(f"`{part}`" for part in scala_items(relation.multipartIdentifier()))
        spark = self.spark
        self._add(target, lambda: spark.readStream.table(source), name=name, cdc=_changes_of(plan, source))

    def _flow(self, target: str, query: str, *, name: str = "") -> None:
        spark = self.spark
        self._add(target, lambda: spark.sql(query), name=name)

    def _add(self, target: str, rows: Callable[[], DataFrame], *, name: str, cdc: Any = None) -> None:
        spark, space = self.spark, self.told.space
        if space != self.elements.namespace and target not in self.elements.outputs:
            target = space.full(target) or target

        def func() -> DataFrame:
            with at_home(spark, space):
                return rows()

        self.add(
            FlowElement(
                name=name or target,
                target=target,
                where=self.where,
                func=func,
                is_default=not name,
                spark_conf=dict(self.told.conf),
                space=space,
                cdc=cdc,
            )
        )


def _changes_of(plan: Any, source: str) -> SimpleNamespace:
    """Return the statement's fields as ``pyspark.pipelines.flow.AutoCdcFlow`` has them."""
    from pyspark.sql import functions as f

    def columns(found: Any) -> list[Any] | None:
        return [f.expr(one.sql()) for one in scala_items(found.get())] if found.isDefined() else None

    deletes = plan.deleteCondition()
    return SimpleNamespace(
        source=source,
        keys=[f.expr(one.sql()) for one in scala_items(plan.keys())],
        sequence_by=f.expr(plan.sequenceByExpr().sql()),
        apply_as_deletes=f.expr(deletes.get().sql()) if deletes.isDefined() else None,
        column_list=columns(plan.includeColumns()),
        except_column_list=columns(plan.excludeColumns()),
        stored_as_scd_type=int(plan.storedAsScdType()),
        track_history_column_list=columns(plan.trackHistoryColumns()),
        track_history_except_column_list=columns(plan.trackHistoryExceptColumns()),
    )


def _without_comments(text: str) -> str:
    """Return a statement of the same length with blanks in place of comments."""
    return _TEXT_OR_COMMENT.sub(
        lambda found: " " * len(found[0]) if found["comment"] is not None else found[0], text
    )


def _or_empty(option: Any) -> str:
    return str(option.get()) if option.isDefined() else ""
