"""Settings of a project (``configuration`` of its spec file), as its queries are to have them."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_ckpt.spark_project.spec import ProjectSpec

__all__ = ["settings_of"]

_NOT_OURS = ("pipelines.", "spark.sql.connect.", "spark.connect.", "spark.remote", "spark.api.mode")
"""Of Spark's own runner of pipelines."""


def settings_of(spec: ProjectSpec) -> Mapping[str, str]:
    """Return what a session shall have while a flow of the project is started."""
    return {key: value for key, value in spec.configuration.items() if not key.startswith(_NOT_OURS)}
