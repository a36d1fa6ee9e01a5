"""Elements that a project's files register, what of them is refused, and the files' calls on their session.

That runner gives them a session of Spark Connect, in the project's schema, which nothing may be changed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.wrapped import Wrap, wrapped
from dagster_ckpt.spark.java.sessions import as_active, catalog_of
from dagster_ckpt.spark.session import session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")
_PLAIN = re.compile(r"[A-Za-z0-9_]+")


def parts_of(text: str) -> tuple[str, ...] | None:
    """Return the parts of a name as Spark's parser does; None for what is no name."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            return None
        parts.append(found.group(1).replace("``", "`") if found.group(1) else found.group(2).strip())
        at = found.end()
        if at < len(text) and text[at] != ".":
            return None
        at += 1
    return tuple(parts) if parts and not text.endswith(".") else None


@dataclass(frozen=True, slots=True)
class Namespace:
    """Where names without a catalog or a schema belong."""

    catalog: str = "spark_catalog"
    database: str = "default"

    def table(self, text: str, *, what: str) -> str:
        """Return the full name of a table, ``catalog.schema.table``. Raises InvalidRequest."""
        parts = parts_of(text)
        if parts is None or len(parts) > 3 or not all(_PLAIN.fullmatch(part) for part in parts):
            raise InvalidRequest(
                f"{what} {text!r}: a name is made of letters, digits and '_' here, with a catalog and a schema before "
                "it at most, because it names files and the steps of a job"
            )
        return ".".join((*(self.catalog, self.database)[: 3 - len(parts)], *parts))

    def single(self, text: str, *, what: str) -> str:
        """Return the name of a view or a sink, which has no schema. Raises InvalidRequest."""
        parts = parts_of(text)
        if parts is None or len(parts) != 1 or not _PLAIN.fullmatch(parts[0]):
            raise InvalidRequest(f"{what} {text!r}: its name is one word of letters, digits and '_'")
        return parts[0]

    def uid(self, name: str) -> str:
        """Return the uid of a dataset: its name, without what the project has as defaults."""
        parts = name.split(".")
        if parts[:-1] == [self.catalog, self.database]:
            return parts[-1]
        kept = parts[1:] if parts[0] == self.catalog and len(parts) == 3 else parts
        return "__".join(kept)

    def full(self, text: str) -> str | None:
        """Return the full name of a table that is read; None for what is no name."""
        parts = parts_of(text)
        if parts is None or len(parts) > 3:
            return None
        return ".".join((*(self.catalog, self.database)[: 3 - len(parts)], *parts))

    def find(self, text: str, known: Collection[str]) -> str | None:
        """Return which of the project's datasets a read means; None: none of them.

        A view or sink hides a table of the same name, as in Spark. Raises InvalidRequest for a name that differs from
        a dataset's in case only: Spark would read whatever its catalog has under that name.
        """
        parts, full = parts_of(text), self.full(text)
        if parts is None or full is None:
            return None
        for wanted in (parts[0], full) if len(parts) == 1 else (full,):
            if wanted in known:
                return wanted
        folded = {name.casefold(): name for name in known}
        for wanted in (parts[0], full) if len(parts) == 1 else (full,):
            if wanted.casefold() in folded:
                raise InvalidRequest(
                    f"{text!r} is read, and the project has {folded[wanted.casefold()]!r}: write the name as it was "
                    "defined, or Spark reads an old table of its catalog"
                )
        return None


class Kind(StrEnum):
    """Kind of an output."""

    STREAMING_TABLE = "streaming table"
    MATERIALIZED_VIEW = "materialized view"
    TEMPORARY_VIEW = "temporary view"
    SINK = "sink"


STORED = (Kind.STREAMING_TABLE, Kind.SINK)
"""Kinds that flows write as streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputElement:
    """A dataset or sink, as it was registered."""

    name: str
    """Full name of a table; one word for views and sinks."""
    kind: Kind
    where: str
    comment: str = ""
    format: str = ""
    schema: Any = None
    """``StructType``, or DDL."""
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of tables their properties, of sinks their options."""

    @property
    def title(self) -> str:
        """The output as people are told of it."""
        return f"{self.kind} {self.name!r} ({self.where})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowElement:
    """A flow, as it was registered."""

    name: str
    target: str
    """As it was written."""
    where: str
    func: Callable[[], DataFrame]
    """Of an Auto CDC flow: reads its source."""
    is_default: bool = True
    """It has the name of its target."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    cdc: Any = None
    """``pyspark.pipelines.flow.AutoCdcFlow``."""
    space: Namespace | None = None
    """What completes the names it reads; None: what the project says."""

    @property
    def key(self) -> tuple[str, str]:
        """Identity within the project."""
        return (self.target, self.name)

    @property
    def title(self) -> str:
        """The flow as people are told of it."""
        return f"flow {self.name!r} ({self.where})"


@dataclass(kw_only=True)
class Elements:
    """Everything one pass over a project's files has registered."""

    namespace: Namespace
    outputs: dict[str, OutputElement] = field(default_factory=dict)
    flows: dict[tuple[str, str], FlowElement] = field(default_factory=dict)
    """By target, as it was written, and name."""

    def add_output(self, output: OutputElement) -> None:
        """Take an output. Raises InvalidRequest for a second one of that name, in whatever case."""
        other = self.outputs.setdefault(output.name, output)
        if other is not output:
            raise InvalidRequest(f"{output.title} is there already: {other.title}")
        folded = output.name.casefold()
        twin = next(
            (o for o in self.outputs.values() if o is not output and o.name.casefold() == folded), None
        )
        if twin is not None:
            raise InvalidRequest(
                f"{output.title} and {twin.title} differ in case only: Spark's catalog has one table for both names"
            )

    def add_flow(self, flow: FlowElement) -> None:
        """Take a flow. Raises InvalidRequest for a second one of that name."""
        other = self.flows.setdefault(flow.key, flow)
        if other is not flow:
            raise InvalidRequest(f"{flow.title} is there already: {other.title}")

    def flows_of(self, target: str) -> tuple[FlowElement, ...]:
        """Return the flows that write an output, in the order of their names."""
        found = [flow for flow in self.flows.values() if self.target_of(flow) == target]
        return tuple(sorted(found, key=lambda flow: (not flow.is_default, flow.name)))

    def target_of(self, flow: FlowElement) -> str:
        """Return the full name of what a flow writes. Raises InvalidRequest where there is none."""
        found = self.namespace.find(flow.target, self.outputs)
        if found is None:
            raise InvalidRequest(
                f"{flow.title} writes {flow.target!r}, which the project does not define: create_streaming_table or "
                "create_sink does"
            )
        return found


class NotInPipelinesError(Exception):
    """A call that Spark's own runner refuses as well."""


_is_loading: ContextVar[bool] = ContextVar("dagster_ckpt_is_loading", default=False)
_homeless: ContextVar[str] = ContextVar("dagster_ckpt_homeless", default="")
"""The project's schema, where there is no such schema."""

_CURRENT = ("setCurrentCatalog", "setCurrentDatabase")
_VIEWS = (
    "createTempView",
    "createOrReplaceTempView",
    "createGlobalTempView",
    "createOrReplaceGlobalTempView",
)
_FUNCTIONS = ("register", "registerJavaFunction", "registerJavaUDAF")


@contextmanager
def as_sparks_runner_has_it(spark: SparkSession, space: Namespace) -> Iterator[None]:
    """Let calls of this thread be those of a pipeline's definition files; one thread at a time."""
    with ExitStack() as stack:
        stack.enter_context(_patched())
        stack.enter_context(at_home(spark, space))
        stack.enter_context(as_active(spark))
        token = _is_loading.set(True)
        stack.callback(_is_loading.reset, token)
        yield


def refuse_homeless(name: str) -> None:
    """Raise InvalidRequest for a table without a schema, outside of the project, where the project's is not there."""
    if _homeless.get():
        raise InvalidRequest(
            f"{name!r} is read, which is no dataset of the project, and the schema {_homeless.get()}, where Spark "
            "looks for it then, does not exist: make the schema, or write the table with its own"
        )


@contextmanager
def at_home(spark: SparkSession, space: Namespace) -> Iterator[None]:
    """Let names without a schema be of this one, as far as they are tables of Spark's catalog."""
    catalog = catalog_of(spark)
    before = str(catalog.currentCatalog()), str(catalog.currentDatabase())
    home = space.catalog, space.database
    missing = home != before and not _exists(catalog, *home)
    token = _homeless.set(".".join(home) if missing else "")
    try:
        if home != before and not missing:
            _go(catalog, *home)
        yield
    finally:
        _homeless.reset(token)
        if home != before and not missing:
            _go(catalog, *before)


@contextmanager
def settled(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Let a flow's function find the settings of the flow, which it may not change itself."""
    changed = session_settings(spark, conf)
    with _by_us():
        changed.__enter__()
    try:
        yield
    finally:
        with _by_us():
            changed.__exit__(None, None, None)


@contextmanager
def _by_us() -> Iterator[None]:
    token = _is_loading.set(False)
    try:
        yield
    finally:
        _is_loading.reset(token)


def _exists(catalog: Any, name: str, schema: str) -> bool:
    try:
        return bool(catalog.databaseExists(f"`{name}`.`{schema}`"))
    except Exception:  # no such catalog, or one that cannot tell
        return False


def _go(catalog: Any, name: str, schema: str) -> None:
    catalog.setCurrentCatalog(name)
    catalog.setCurrentDatabase(schema)


@contextmanager
def _patched() -> Iterator[None]:
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.conf import RuntimeConfig
    from pyspark.sql.session import SparkSession
    from pyspark.sql.udf import UDFRegistration

    places: list[tuple[type, str, Wrap]] = [
        (
            RuntimeConfig,
            "set",
            _refusing("write the setting in the spec file's configuration, or in spark_conf"),
        ),
        *((Catalog, name, _refusing("write it in the spec file")) for name in _CURRENT),
        *((Catalog, name, _refusing("leave it out")) for name in ("dropTempView", "dropGlobalTempView")),
        *((DataFrame, name, _refusing("define a temporary_view")) for name in _VIEWS),
        *(
            (UDFRegistration, name, _refusing("use the function itself (functions.udf)"))
            for name in _FUNCTIONS
        ),
        (SparkSession, "createDataFrame", _create_data_frame),
    ]
    with wrapped(places):
        yield


def _refusing(instead: str) -> Wrap:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if not _is_loading.get():
                return original(*args, **more)
            raise NotInPipelinesError(
                f"{original.__qualname__} changes the session, and with it whatever runs next, and Spark's pipelines "
                f"refuse it too: {instead}"
            )

        return call

    return wrap


def _create_data_frame(original: Callable[..., Any]) -> Callable[..., Any]:
    def create(self: Any, data: Any, schema: Any = None, *args: Any, **more: Any) -> Any:
        from pyspark.errors import PySparkTypeError, PySparkValueError

        if not _is_loading.get() or schema is None:
            return original(self, data, schema, *args, **more)
        rows = list(data) if isinstance(data, list | tuple | Iterator) else None
        try:
            return original(self, data if rows is None else rows, schema, *args, **more)
        except (PySparkTypeError, PySparkValueError):
            struct = _struct_of(schema)
            if not rows or struct is None:
                raise
            return original(self, _as_connect_takes_them(rows, struct), struct)

    return create


def _struct_of(schema: Any) -> Any:
    from pyspark.sql.types import DataType, StructType, _parse_datatype_string

    kind = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    if isinstance(kind, StructType):
        return kind
    return StructType().add("value", kind) if isinstance(kind, DataType) else None


def _as_connect_takes_them(rows: list[Any], schema: Any) -> Any:
    """Return rows as a table of Arrow's, made as Spark Connect makes it: a 450 is a float as well."""
    from pyspark.sql.conversion import LocalDataToArrowConversion

    plain = not isinstance(rows[0], tuple | list | dict) and not hasattr(rows[0], "__dict__")
    return LocalDataToArrowConversion.convert([[row] for row in rows] if plain else rows, schema, False)
