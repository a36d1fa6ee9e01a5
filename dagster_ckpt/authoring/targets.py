"""Targets of sinks, ``@spark_sink(to=...)``: where the rows end, as data.

A target is opened for each attempt by the class it names; a sink of your own needs no other registration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal

from dagster_ckpt.core.location import local_path
from dagster_ckpt.errors import InvalidRequest

META_FOLDER = "_dagster_ckpt"
"""Folder within a table that readers do not see."""


def listed(whose: str, setting: str, value: Any) -> tuple[str, ...]:
    """Return a setting that is a list of names, each once; one text would be taken for a list of letters."""
    if isinstance(value, str):
        raise InvalidRequest(f"{whose} has {setting}={value!r}: give a list, {setting}=[{value!r}]")
    names = tuple(value)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"{whose} has {setting}={list(names)!r}: name {twice[0]!r} once")
    return names


class SinkTarget:
    """Base of all targets; a frozen dataclass, so that definitions can be compared and printed."""

    opened_by: ClassVar[str] = ""
    """``module:class`` of the sink; it is called with the target and a ``SinkContext``."""
    named_by: ClassVar[str] = ""
    """Field that names the table: with another name in it, readers find another table. Empty: none does."""

    @property
    def needs(self) -> tuple[str, str] | None:
        """Package that its sink imports, and the extra that installs it; None: none."""
        return None

    def open(self, context: Any) -> Any:
        """Return the ``Sink`` in a ``SinkContext``. Nothing outside is changed by opening it."""
        module, _, name = self.opened_by.partition(":")
        return getattr(import_module(module), name)(self, context)

    def local_folder(self, name: str) -> str | None:
        """Return the folder on a disk that tasks write the rows of ``table=name`` to, below the resource's
        ``table_dir`` unless it is absolute; None: they write to the working directory alone.
        """
        return None


@dataclass(frozen=True, slots=True)
class DeltaTable(SinkTarget):
    """A Delta table, which a sink without a target writes: a checkpoint's rows are one commit, a restore goes back.

    Written by delta-rs, so Spark needs no Delta jars. It may be there already, others may write to it too, and one that
    is missing is made with the first rows. How: docs/extensions/delta-tables.md.
    """

    opened_by: ClassVar[str] = "dagster_ckpt.ext.delta.sink:DeltaSink"
    named_by: ClassVar[str] = "uri"

    uri: str = ""
    """Path or URI (``s3://…``); a relative one lies below the resource's ``table_dir``; default: the sink's
    ``table``."""
    partition_by: tuple[str, ...] = ()
    """Columns of text, whole numbers, booleans or dates; the same as in a table that is there already."""
    storage_options: dict[str, str] = field(default_factory=dict, repr=False, hash=False)
    """For object stores, as delta-rs takes them. Give secrets by the environment."""
    properties: dict[str, str] = field(default_factory=dict, hash=False)
    """Of a table that is made here, as Delta has them (``delta.logRetentionDuration``)."""
    shared_with: tuple[str, ...] = ()
    """Other pipelines that write to it with sinks of theirs: their rows are no reason to refuse it."""
    upkeep: Literal["auto", "manual"] = "auto"
    """``auto``: small files are merged, and old entries of its log removed, beside publishing; ``manual``: by
    ``dagster-ckpt maintain`` alone."""

    @property
    def needs(self) -> tuple[str, str]:
        """The client of Delta tables."""
        return "deltalake", "spark"

    def __post_init__(self) -> None:
        """Take a list as well. Raises InvalidRequest for one text, and a column that is named twice."""
        object.__setattr__(self, "partition_by", listed("DeltaTable", "partition_by", self.partition_by))

    def local_folder(self, name: str) -> str | None:
        """Return the table's folder, unless it lies in an object store."""
        return local_path(self.uri or name)


def target_at(place: str, kind: str = "delta") -> SinkTarget | None:
    """Return the target of a table that its place alone leads to; None: it takes more than that to open it."""
    return DeltaTable(place) if kind == "delta" else None


@dataclass(frozen=True, slots=True)
class IcebergTable(SinkTarget):
    """An Iceberg table: a checkpoint's rows are one snapshot, and a restore goes back to one.

    Written by pyiceberg, so Spark needs no Iceberg jar: needs the extra ``iceberg``. It may be there already, others
    may write to it too, and one that is missing is made with the first rows. How: docs/extensions/iceberg-tables.md.
    """

    opened_by: ClassVar[str] = "dagster_ckpt.ext.iceberg.sink:IcebergSink"
    named_by: ClassVar[str] = "table"

    table: str = ""
    """``db.orders``; default: the sink's uid. Without a namespace it lies in ``default``."""
    catalog: Any = field(default=None, repr=False, hash=False)
    """Properties of the catalog as pyiceberg takes them (``{"type": "rest", "uri": ...}``), each as text, as
    ``"env:NAME"`` or as Dagster's ``EnvVar``; or the name of a catalog in ``.pyiceberg.yaml``. Default: a catalog in
    SQLite, with its tables, in the folder ``iceberg`` below the resource's ``table_dir``."""
    partition_by: tuple[str, ...] = ()
    """Columns of text, whole numbers, booleans or dates; the same as in a table that is there already."""
    location: str = ""
    """Where the files of a table lie that is made here, for catalogs that do not say it; default: below their
    ``warehouse``."""
    properties: dict[str, str] = field(default_factory=dict, hash=False)
    """Of a table that is made here, as Iceberg has them."""
    shared_with: tuple[str, ...] = ()
    """Other pipelines that write to it with sinks of theirs: their rows are no reason to refuse it."""
    upkeep: Literal["auto", "manual"] = "auto"
    """``auto``: small files are merged and old snapshots expired beside publishing; ``manual``: by ``dagster-ckpt
    maintain`` alone."""

    @property
    def needs(self) -> tuple[str, str]:
        """The client of Iceberg tables."""
        return "pyiceberg", "iceberg"

    def __post_init__(self) -> None:
        """Take a list as well. Raises InvalidRequest for one text, and a column that is named twice."""
        object.__setattr__(self, "partition_by", listed("IcebergTable", "partition_by", self.partition_by))


@dataclass(frozen=True, slots=True)
class SqlTable(SinkTarget):
    """A table of PostgreSQL or SQLite: rows and position in one transaction.

    PostgreSQL needs the extra ``postgres``.
    """

    opened_by: ClassVar[str] = "dagster_ckpt.ext.sql.sink:SqlSink"
    named_by: ClassVar[str] = "table"

    url: Any = field(repr=False)
    """``postgresql://user@host/database`` or ``sqlite:////absolute/path.db``: as text, as ``"env:NAME"``, as
    Dagster's ``EnvVar``, or as SQLAlchemy's ``URL``. Nothing prints it."""
    table: str = ""
    """``orders`` or ``schema.orders``; default: the sink's uid. Created from the rows' schema when it is missing."""
    keep_before_images: bool | None = None
    """Keep what each publish changes until no snapshot needs it, so that a restore can take rows back. Default: for
    tables by key. Appended rows need a column of ours for it, ``_dagster_ckpt_checkpoint``, so that is asked for."""

    @property
    def needs(self) -> tuple[str, str] | None:
        """The driver of PostgreSQL, where the URL says so."""
        return ("psycopg", "postgres") if str(self.url).startswith("postgres") else None


@dataclass(frozen=True, slots=True)
class ForEachCheckpoint(SinkTarget):
    """A function that gets the rows of each checkpoint once the checkpoint is complete: at least once, in order."""

    opened_by: ClassVar[str] = "dagster_ckpt.spark.sink.for_each_checkpoint:FunctionSink"

    fn: Callable[[Any, Any], Any]
    """``fn(rows, token)``, called on the driver: ``rows`` is a ``pyarrow.RecordBatchReader``, ``token`` a
    ``CheckpointToken``. A process that ends during the call repeats it with the same token, and so with the same rows:
    give ``token.idempotency_key`` to what you call. An OSError (of which network errors are) repeats it too; any other
    error fails the run."""


@dataclass(frozen=True, slots=True)
class KafkaTopic(SinkTarget):
    """A topic of Kafka: the rows of a checkpoint and the position in one transaction. Needs the extra ``kafka``.

    Readers see each row once with ``isolation.level=read_committed``. Rows with a column ``value`` (and ``key``), as
    text or binary, are the messages; all other rows are written as JSON, with the sink's key columns as key.
    """

    opened_by: ClassVar[str] = "dagster_ckpt.ext.kafka.sink:KafkaSink"

    bootstrap_servers: str
    topic: str = ""
    """Default: the sink's uid. Created when it is missing; ``<topic>.dagster_ckpt`` beside it holds the position."""
    options: dict[str, str] = field(default_factory=dict, repr=False, hash=False)
    """Further settings of librdkafka, for producers and consumers; ``"env:NAME"`` for secrets."""

    @property
    def needs(self) -> tuple[str, str]:
        """The client of Kafka."""
        return "confluent_kafka", "kafka"
