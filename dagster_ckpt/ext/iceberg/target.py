"""Target of a sink: an Iceberg table, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from dagster_ckpt.authoring.targets import SinkTarget, listed


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
