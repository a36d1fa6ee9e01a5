"""Views in Spark's catalog on a pipeline's tables: by them readers find tables under the names they know."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.core.ids import StageUid

__all__ = ["CatalogView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogView:
    """A view on a sink's table, or on a derived one."""

    uid: StageUid
    name: str
    """``catalog.schema.table``."""
    row_schema: str
    """Its columns, as Spark writes schemas."""
