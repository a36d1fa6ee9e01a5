"""Settings of a project (``configuration`` of its spec file), as its queries are to have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.spec import ProjectSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["refuse_connect", "settings_of"]

_NOT_OURS = ("pipelines.", "spark.sql.connect.", "spark.connect.", "spark.remote", "spark.api.mode")
"""Of Spark's own runner of pipelines."""


def refuse_connect(spark: SparkSession) -> None:
    """Raise InvalidRequest for a session of Spark Connect: what its functions read cannot be answered."""
    if not hasattr(spark, "_jsparkSession"):
        raise InvalidRequest(
            "a Spark declarative pipeline needs a classic Spark session here, with a master: Spark Connect reads the "
            "tables of its catalog instead of the pipeline's"
        )


def settings_of(spec: ProjectSpec) -> Mapping[str, str]:
    """Return the settings of a session while a flow of the project is started."""
    return {key: value for key, value in spec.configuration.items() if not key.startswith(_NOT_OURS)}
