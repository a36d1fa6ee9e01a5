"""Target of a sink: a table of a database, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from dagster_ckpt.authoring.targets import SinkTarget
from dagster_ckpt.errors import InvalidRequest


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

    def refuse_unless_whole(self) -> None:
        """Raise InvalidRequest without a name, which a sink's uid is else."""
        if not self.table:
            raise InvalidRequest("name the table: SqlTable(url, 'orders')")
