"""Target of a sink: a Delta table, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from dagster_ckpt.authoring.targets import SinkTarget, listed
from dagster_ckpt.core.paths import local_path
from dagster_ckpt.errors import InvalidRequest


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

    @classmethod
    def at(cls, place: str) -> DeltaTable:
        """Return the table in a folder, or at a URI."""
        return cls(place)

    def refuse_unless_whole(self) -> None:
        """Raise InvalidRequest for a path that a ``table_dir`` makes whole."""
        if "://" not in self.uri and not Path(self.uri).is_absolute():
            raise InvalidRequest(
                f"{self.uri!r} is no whole path: give one, or the pipeline and its coordinator resource"
            )

    def local_folder(self, name: str) -> str | None:
        """Return the table's folder, unless it lies in an object store."""
        return local_path(self.uri or name)
