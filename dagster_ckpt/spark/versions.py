"""Versions of Spark, and what each can run; ``docs/extensions/attach.md`` shows the same table."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class SparkVersion:
    """Minor version of Spark on which programs can be attached."""

    number: tuple[int, int]
    pipelines: bool
    """Stages of ours run on it, too."""

    @property
    def row(self) -> str:
        """Row of the table for people."""
        return f"| {self.name} | yes | {'yes' if self.pipelines else 'no'} |"

    @property
    def name(self) -> str:
        """Number as people write it."""
        return ".".join(map(str, self.number))


VERSIONS = (
    SparkVersion((3, 5), pipelines=False),
    SparkVersion((4, 0), pipelines=False),
    SparkVersion((4, 1), pipelines=False),
    SparkVersion((4, 2), pipelines=True),
    SparkVersion((4, 3), pipelines=True),
)
"""Oldest first; a newer one than these is taken to be as the last."""


def runs_pipelines(version: str) -> bool:
    """Tell whether stages of ours run on a version of Spark."""
    return _number(version) >= _OLDEST.number


def refuse_pipelines(version: str) -> None:
    """Raise InvalidRequest for a version of Spark that runs no stages of ours."""
    if not runs_pipelines(version):
        raise InvalidRequest(
            f"PySpark {version} is too old for stages: install pyspark>={_OLDEST.name}, or attach a program as it is "
            f"(dagster_ckpt.attach), from PySpark {VERSIONS[0].name} on"
        )


def refuse_attached(version: str) -> None:
    """Raise InvalidRequest for a version of Spark whose programs cannot be attached."""
    if _number(version) < VERSIONS[0].number:
        raise InvalidRequest(
            f"a program on PySpark {version} cannot be attached: install pyspark>={VERSIONS[0].name}"
        )


_OLDEST = next(version for version in VERSIONS if version.pipelines)


def _number(version: str) -> tuple[int, int]:
    major, minor = (int(part) for part in version.split(".")[:2])
    return major, minor
