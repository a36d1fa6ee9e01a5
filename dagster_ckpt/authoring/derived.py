"""Derived tables: computed from what sinks have published, each time that has changed.

They are no part of a checkpoint, because they are a function of tables that are: a restore computes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_ckpt.authoring.targets import SinkTarget, table_in_folder
from dagster_ckpt.core.ids import StageUid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTable:
    """A table whose rows are replaced whole, in one commit."""

    uid: StageUid
    reads: tuple[StageUid, ...]
    """Sinks, and derived tables before it."""
    fn: Callable[[SparkSession, Mapping[StageUid, DataFrame | None]], DataFrame]
    """Called with the rows of what it reads; None: nothing was published there yet."""
    definition: str = ""
    """Other for another function: then it is computed again."""
    each_run: bool = False
    """Computed once in every run also where what it reads has not changed: it depends on more than that."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of the session from the call of ``fn`` until its rows are written: Spark plans and executes it late."""
    description: str = ""


def derived_target() -> SinkTarget:
    """Return the target of derived tables, in folders of their uids.

    Rows of before are kept for readers that are at work, and no restore needs them.
    """
    return table_in_folder(properties={"delta.deletedFileRetentionDuration": "interval 1 hour"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogView:
    """A view on a sink's table, or on a derived one."""

    uid: StageUid
    name: str
    """``catalog.schema.table``."""
    row_schema: str
    """Its columns, as Spark writes schemas."""
