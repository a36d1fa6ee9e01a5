"""Calls of a project's files on their session while they are loaded: as Spark's own runner has it, or refused.

That runner gives them a session of Spark Connect, in the project's schema, which nothing may be changed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.elements import Namespace
from dagster_ckpt.spark.java.sessions import as_active, catalog_of
from dagster_ckpt.spark.session import session_settings
from dagster_ckpt.spark.wrapped import Wrap, wrapped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
