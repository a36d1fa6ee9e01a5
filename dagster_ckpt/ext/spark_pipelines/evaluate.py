"""Runs functions of flows, each where it is registered, with inputs that the caller gives.

A function that reads what is not there yet is called again in the next pass over the project's files: then its
variables have the values of its own registration again, which they would not have later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.ext.spark_pipelines.elements import Elements, FlowElement, Kind, parts_of, settled
from dagster_ckpt.ext.spark_pipelines.graph import ProjectSpec
from dagster_ckpt.ext.spark_pipelines.reads import answering
from dagster_ckpt.ext.spark_pipelines.registry import load_elements
from dagster_ckpt.spark.java.plans import analyzed_plan, leaves_of, scala_items
from dagster_ckpt.spark.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


Key = tuple[str, str]
Conf = tuple[tuple[str, str], ...]
"""Settings of a flow, sorted: those that its columns may depend on among them."""


_PLAN = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
"""What Spark puts behind its sentences: the plan, which is of stand-ins here."""


class NotYet(BaseException):
    """A dataset's rows are not known in this pass; no Exception, so that no function of a user catches it."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Datasets that a flow reads, those of its views among them."""

    streams: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()

    def __or__(self, other: Reads) -> Reads:
        return Reads(self.streams | other.streams, self.tables | other.tables)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A flow's function has returned."""

    frame: DataFrame
    reads: Reads


Read = Callable[[str, bool, Mapping[Key, Evaluated]], "DataFrame"]
"""Given a table's full name, whether it is read as a stream, and what is evaluated: its rows. Raises NotYet."""


def known_elements(spec: ProjectSpec, spark: SparkSession, elements: Elements) -> Elements:
    """Return ``elements`` with everything the project defines; no function is called.

    Raises InvalidRequest where a dataset is read outside of a function: Spark looks it up when it is used, a classic
    session looks into its catalog at once, and might find an old table of that name.
    """
    read: list[str] = []

    def note(text: str, streaming: bool) -> None:
        read.append(text)

    with answering(note):
        load_elements(spec, spark, elements, lambda flow: None)
    for text in read:
        found = elements.namespace.find(text, elements.outputs)
        if found is not None:
            raise InvalidRequest(
                f"{elements.outputs[found].title} is read where its file is imported: read it in the functions of flows"
            )
    return elements


def evaluate(
    spec: ProjectSpec, spark: SparkSession, known: Elements, *, wanted: Iterable[Key], read: Read
) -> dict[Key, Evaluated]:
    """Return the frames of the flows' functions, by ``FlowElement.key``.

    Raises InvalidRequest for a function that fails, for flows that wait for one another, and as ``read`` does.
    """
    calls: dict[tuple[Key, Conf], Evaluated | None] = {
        (key, _conf_of(known.flows[key])): None for key in wanted
    }
    passes = _Passes(spark=spark, known=known, read=read, calls=calls)
    while passes.waiting():
        before = passes.state()
        again = Elements(namespace=known.namespace)
        load_elements(spec, spark, again, passes.registered)
        passes.refuse_changed(again)
        if passes.waiting() and passes.state() == before:
            names = ", ".join(sorted(known.flows[key].title for key in passes.waiting()))
            raise InvalidRequest(f"{names}: these read one another in a circle, so that none can be first")
    return passes.done


@dataclass(kw_only=True)
class _Passes:
    spark: SparkSession
    known: Elements
    read: Read
    calls: dict[tuple[Key, Conf], Evaluated | None]
    """By flow and settings: a view is called with those of each flow that reads it, as Spark analyzes it again. None:
    something that is read is not there yet."""
    answered: set[str] = field(default_factory=set)
    """Tables of a catalog in rows that were given: where they are kept in one."""

    @property
    def done(self) -> dict[Key, Evaluated]:
        """Flows with their own settings."""
        return {
            key: found
            for (key, conf), found in self.calls.items()
            if found is not None and conf == _conf_of(self.known.flows[key])
        }

    def waiting(self) -> set[Key]:
        return {key for (key, _), found in self.calls.items() if found is None}

    def state(self) -> tuple[int, int]:
        return len(self.calls), sum(found is not None for found in self.calls.values())

    def refuse_changed(self, again: Elements) -> None:
        """Raise InvalidRequest where two imports of the same files define different things."""
        if again.outputs.keys() != self.known.outputs.keys() or again.flows.keys() != self.known.flows.keys():
            different = {*again.outputs, *again.flows} ^ {*self.known.outputs, *self.known.flows}
            raise InvalidRequest(
                f"the project's files define other datasets at each import: {sorted(map(str, different))[0]}"
            )

    def registered(self, flow: FlowElement) -> None:
        for (key, conf), found in list(self.calls.items()):
            if key == flow.key and found is None:
                self.calls[key, conf] = self._called(flow, conf)

    def _called(self, flow: FlowElement, conf: Conf) -> Evaluated | None:
        """Return a flow's frame with these settings; None: a dataset that it reads is not there yet."""
        reads, waits, before = [Reads()], list[str](), set[str]()
        space = flow.space or self.known.namespace

        def answer(text: str, streaming: bool) -> tuple[str, DataFrame] | None:
            found = space.find(text, self.known.outputs)
            try:
                if found is None:
                    return None
                rows = self._answer(flow, found, streaming, reads, conf)
                rows = rows if found not in before else _with_columns_of_its_own(rows, found)
                before.add(found)
                return found, rows
            except NotYet:  # which a thread of the function would keep to itself
                waits.append(text)
                raise

        try:
            with settled(self.spark, dict(conf)), answering(answer):
                frame = flow.func()
        except NotYet:
            return None
        except InvalidRequest as error:
            if repr(flow.name) in str(error):
                raise
            raise InvalidRequest(f"{flow.title}: {error}") from error
        except CheckpointError:
            raise
        except Exception as error:
            if waits:
                return None
            self._refuse_unrecognized(flow, {missing_table(error)})
            said = _PLAN.sub("", str(error))
            raise InvalidRequest(f"{flow.title} fails: {type(error).__name__}: {said}") from error
        if waits:
            return None
        if not hasattr(frame, "isStreaming"):
            raise InvalidRequest(f"{flow.title} returns {type(frame).__name__}, and no DataFrame")
        self._refuse_unrecognized(flow, tables_of_catalog(frame) - self.answered)
        return Evaluated(frame, reads[0])

    def _refuse_unrecognized(self, flow: FlowElement, names: Collection[str]) -> None:
        """Raise InvalidRequest where the catalog was asked for a dataset: it may have an old table of that name."""
        datasets = {one.casefold(): one for one in self.known.outputs}
        for name in names:
            space = flow.space or self.known.namespace
            parts, full = parts_of(name) or ("",), space.full(name) or ""
            found = datasets.get(
                full.casefold(), datasets.get(parts[0].casefold()) if len(parts) == 1 else None
            )
            if found is not None:
                raise InvalidRequest(
                    f"{flow.title} reads {found!r} within an expression, or through a view of the "
                    "catalog, where it is not recognized as the project's: read it with spark.read.table, "
                    "spark.readStream.table or spark.sql, and join it"
                )

    def _answer(
        self, flow: FlowElement, found: str, streaming: bool, reads: list[Reads], conf: Conf
    ) -> DataFrame:
        output = self.known.outputs[found]
        if output.kind is Kind.SINK:
            raise InvalidRequest(f"{flow.title} reads {output.title}: Spark cannot read a sink")
        if output.kind is Kind.TEMPORARY_VIEW:
            view = self._view(found, conf)
            if view.frame.isStreaming != streaming:
                method = "spark.readStream.table" if view.frame.isStreaming else "spark.read.table"
                raise InvalidRequest(f"{flow.title} reads {output.title} as what it is not: use {method}")
            reads[0] |= view.reads
            return view.frame.alias(found)
        if output.kind is Kind.MATERIALIZED_VIEW and streaming:
            raise InvalidRequest(
                f"{flow.title} reads {output.title} as a stream: it is computed again each time, so it has no new rows"
            )
        one = frozenset({found})
        reads[0] |= Reads(streams=one) if streaming else Reads(tables=one)
        rows = self.read(found, streaming, self.done)
        self.answered |= tables_of_catalog(rows)
        return rows.alias(found.rpartition(".")[2])

    def _view(self, name: str, conf: Conf) -> Evaluated:
        [flow] = self.known.flows_of(name)
        found = self.calls.setdefault((flow.key, conf), None)
        if found is None:
            raise NotYet(name)
        return found


def _conf_of(flow: FlowElement) -> Conf:
    return tuple(sorted(flow.spark_conf.items()))


def _with_columns_of_its_own(rows: DataFrame, name: str) -> DataFrame:
    """Return rows whose columns are no others', so that a function may join a dataset that it reads twice."""
    from pyspark.sql import functions as f

    columns = rows.columns
    if len({column.casefold() for column in columns}) < len(columns):
        return rows
    return rows.select(*(f.col(quoted(column)).alias(column) for column in columns)).alias(
        name.rpartition(".")[2]
    )
