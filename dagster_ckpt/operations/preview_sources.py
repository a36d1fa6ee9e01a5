"""Sources in a preview: how far behind their topics they would be, and whether they could read on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.source.lag import LagReader, SourceLag
from dagster_ckpt.spark.source.pins import refuse_lost
from dagster_ckpt.spark.source.positions import source_positions

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

__all__ = ["SourcePreview", "preview_sources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePreview:
    """Sources of a restore; without the pipeline's code no log is asked."""

    lags: tuple[SourceLag, ...] = ()
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class _Heard:
    """Keeps what a restore would say."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def info(self, message: str) -> None:
        """Nothing is kept of this."""

    def warn(self, message: str) -> None:
        """Keep it."""
        self.warnings.append(message)


def preview_sources(metadata: CheckpointMetadata, pipeline: CheckpointedPipeline | None) -> SourcePreview:
    """Return what the restore would decide of a snapshot's positions, and how far behind they are."""
    heard, refusals = _Heard(), []
    try:
        refuse_lost(source_positions(metadata, pipeline), heard)
    except InvalidRequest as error:
        refusals.append(str(error))
    lags = LagReader(pipeline=pipeline).read(metadata)
    return SourcePreview(lags=lags, refusals=tuple(refusals), warnings=tuple(heard.warnings))
