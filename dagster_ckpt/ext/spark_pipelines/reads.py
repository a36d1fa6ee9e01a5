"""Reads of datasets within the functions of flows: answered by us where they mean the project's own.

A flow's function names its inputs in the middle of what it does: ``spark.readStream.table("orders")``,
``spark.table``, ``spark.sql``. While one runs, those methods of PySpark ask here first.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.elements import parts_of, refuse_homeless
from dagster_ckpt.ext.wrapped import Wrap, wrapped
from dagster_ckpt.spark.java.plans import is_command, parsed_plan, scala_items
from dagster_ckpt.spark.java.sessions import drop_view, show_as_view

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Answer = Callable[[str, bool], "tuple[str, DataFrame] | None"]
"""Given a name and whether it is read as a stream: a dataset's full name and its rows; None: not the project's."""

_NO_NAMES = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*.*?\*/"""
"""Text and comments of a statement."""

_patching = threading.RLock()
_making_views = threading.RLock()


@dataclass(slots=True)
class _Answering:
    """Answers to a function's reads, also of threads that it starts."""

    answer: Answer
    is_over: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __call__(self, name: str, streaming: bool) -> tuple[str, DataFrame] | None:
        with self.lock:
            return self.answer(name, streaming)


_answer: ContextVar[_Answering | None] = ContextVar("dagster_ckpt_reads", default=None)


def _current() -> Answer | None:
    found = _answer.get()
    if found is not None and found.is_over:
        raise InvalidRequest(
            "a table is read in a thread that another function of the project has started: let each function start, "
            "and wait for, threads of its own"
        )
    return found


@contextmanager
def answering(answer: Answer) -> Iterator[None]:
    """Let reads of this thread, and of threads it starts, be answered while a flow's function runs."""
    with _patching, _patched():
        current = _Answering(answer)
        token = _answer.set(current)
        try:
            yield
        finally:
            current.is_over = True
            _answer.reset(token)


@contextmanager
def _patched() -> Iterator[None]:
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.session import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    places: list[tuple[type, str, Wrap]] = [
        (DataFrameReader, "table", lambda original: _table(original, streaming=False)),
        (SparkSession, "table", lambda original: _table(original, streaming=False)),
        (DataStreamReader, "table", lambda original: _table(original, streaming=True)),
        (SparkSession, "sql", _sql),
        (threading.Thread, "start", _start),
    ]
    with wrapped(places):
        yield


def _start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: Any) -> Any:
        if _answer.get() is not None:
            self.run = partial(copy_context().run, self.run)
        return original(self)

    return start


def _table(original: Callable[..., Any], *, streaming: bool) -> Callable[..., Any]:
    def table(self: Any, tableName: str, *args: Any, **more: Any) -> Any:  # noqa: N803 - PySpark's own name
        answer = _current()
        found = answer(tableName, streaming) if answer is not None and isinstance(tableName, str) else None
        if found is None:
            if answer is not None and len(parts_of(str(tableName)) or ()) == 1:
                refuse_homeless(str(tableName))
            return original(self, tableName, *args, **more)
        _refuse_settings(self, found[0])
        return found[1]

    return table


def _refuse_settings(reader: Any, name: str) -> None:
    """Raise InvalidRequest for what a reader was told before: a dataset's rows come without its files."""
    told = getattr(reader, "_jreader", None)
    if told is None:
        return
    options = sorted(str(pair._1()) for pair in scala_items(told.extraOptions().toSeq()))
    if told.userSpecifiedSchema().isDefined():
        options.append("schema")
    if options:
        raise InvalidRequest(
            f"{name!r}, a dataset of the project, is read with {', '.join(options)}, which would have no effect: leave "
            "that out"
        )


def _sql(original: Callable[..., Any]) -> Callable[..., Any]:
    def sql(self: Any, sqlQuery: str, args: Any = None, **frames: Any) -> Any:  # noqa: N803 - PySpark's own name
        answer = _current()
        if answer is None:
            return original(self, sqlQuery, args, **frames)
        if frames:
            raise InvalidRequest(
                f"spark.sql({sqlQuery!r}, ...) puts DataFrames into its text: name datasets in it instead"
            )
        with _making_views:
            text, views = _with_views(self, sqlQuery, answer)
            try:
                for view, frame in views.items():
                    show_as_view(frame, view)
                return original(self, text, args)
            finally:
                for view in views:
                    drop_view(self, view)

    return sql


@dataclass(frozen=True, slots=True)
class _Relation:
    """One table that a statement names."""

    parts: tuple[str, ...]
    streaming: bool
    start: int
    stop: int
    has_alias: bool

    @property
    def view(self) -> str:
        """The view it becomes: of its last name, by which columns may call it, where it has no other one."""
        return (
            f"dagster_ckpt__{'__'.join(self.parts)}"
            if self.has_alias and len(self.parts) > 1
            else self.parts[-1]
        )

    @property
    def text(self) -> str:
        return ".".join(f"`{part}`" for part in self.parts)


def _with_views(spark: Any, text: str, answer: Answer) -> tuple[str, dict[str, DataFrame]]:
    """Return the statement, and the project's datasets in it as the views it shall find."""
    relations: list[_Relation] = []
    names: set[str] = set()
    plan = parsed_plan(spark, text)
    _refuse_command(spark, plan, text)
    _collect(plan, relations, names)
    views: dict[str, DataFrame] = {}
    datasets: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    for one in sorted(relations, key=lambda relation: -relation.start):
        answered = answer(one.text, one.streaming)
        if answered is None:
            if len(one.parts) == 1:
                elsewhere[one.parts[0].casefold()] = one.parts[0]
            continue
        name, found = answered
        view = one.view
        other = datasets.setdefault(view.casefold(), name)
        if other != name:
            raise InvalidRequest(
                f"the query reads both {name!r} and {other!r}: give both an alias (FROM ... AS a)"
            )
        if view.casefold() in names:
            raise InvalidRequest(
                f"the query names a WITH clause {view!r}, as a dataset of the project: rename the clause"
            )
        if views.setdefault(view, found).isStreaming != one.streaming:
            raise InvalidRequest(
                f"the query reads {one.parts[-1]!r} both as a stream and as it stands: use two flows"
            )
        if len(one.parts) > 1:
            qualified = text[one.start : one.stop + 1]
            text = text[: one.start] + _renamed(qualified, one.parts, view) + text[one.stop + 1 :]
    for folded in elsewhere.keys() - names:
        refuse_homeless(elsewhere[folded])
    hidden = min(elsewhere.keys() & datasets.keys(), default=None)
    if hidden is not None:
        raise InvalidRequest(
            f"the query reads {datasets[hidden]!r} and {elsewhere[hidden]!r}, which is no dataset of the project: "
            "write the latter with its schema"
        )
    for one in relations:
        if one.view in views and len(one.parts) > 1 and not one.has_alias:
            text = _columns_renamed(text, one)
    return text, views


def _refuse_command(spark: Any, plan: Any, text: str) -> None:
    """Raise InvalidRequest for a statement that would do something, each time the function is called."""
    kind = str(plan.getClass().getSimpleName())
    if kind.startswith(("Show", "Describe", "Explain")):
        return
    if is_command(spark, plan):
        raise InvalidRequest(
            f"spark.sql({_short(text)!r}) is no query: a function of a pipeline returns rows and changes nothing, and "
            "Spark's pipelines refuse it too. Do that before, in a program of its own"
        )


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) < 60 else f"{words[:57]}..."


def _columns_renamed(text: str, relation: _Relation) -> str:
    """Return the statement with columns that are called by the relation's whole name called by its view's."""
    name = r"\s*\.\s*".join(f"`?{re.escape(part)}`?" for part in relation.parts)
    column = re.compile(rf"(?P<skipped>{_NO_NAMES})|(?<![\w`.]){name}\s*\.\s*(?=[\w`*])", re.DOTALL)
    return column.sub(lambda found: found["skipped"] or f"`{relation.view}`.", text)


def _renamed(text: str, parts: tuple[str, ...], view: str) -> str:
    pattern = r"\s*\.\s*".join(f"`?{re.escape(part)}`?" for part in parts)
    written, count = re.subn(pattern, lambda _: f"`{view}`", text, count=1)
    if not count:
        raise InvalidRequest(f"the query names a dataset of the project by {text}: write {'.'.join(parts)}")
    return written


def _collect(plan: Any, relations: list[_Relation], names: set[str], *, has_alias: bool = False) -> None:
    kind = str(plan.getClass().getSimpleName())
    if kind == "PlanWithUnresolvedIdentifier":
        raise InvalidRequest(
            "the query names a table by IDENTIFIER(...) with a parameter or an expression: write the name itself"
        )
    if kind == "RelationTimeTravel":
        _collect(plan.relation(), relations, names)
    if kind == "UnresolvedRelation":
        origin = plan.origin()
        relations.append(
            _Relation(
                tuple(str(part) for part in scala_items(plan.multipartIdentifier())),
                bool(plan.isStreaming()),
                int(origin.startIndex().get()),
                int(origin.stopIndex().get()),
                has_alias,
            )
        )
    if kind == "UnresolvedWith":
        for clause in scala_items(plan.cteRelations()):
            names.add(str(clause._1()).casefold())
            _collect(clause._2(), relations, names)
    for child in scala_items(plan.children()):
        _collect(child, relations, names, has_alias=kind == "SubqueryAlias")
    for query in scala_items(plan.subqueries()):
        _collect(query, relations, names)
