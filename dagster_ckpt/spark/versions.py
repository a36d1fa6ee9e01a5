"""Versions of Spark, and what each can run; ``docs/extensions/attach.md`` shows the same table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from dagster_ckpt.errors import InvalidRequest


class Stages(StrEnum):
    """Stages of ours that a version of Spark can run."""

    NONE = "no"
    IN_ONE_CHAIN = "epochs, all stages in one chain"
    """Its readers of Python data sources have no limits: a channel could not hold a query at a barrier."""
    ALL = "yes"


_STREAMING = "org.apache.spark.sql.execution.streaming"


@dataclass(frozen=True, slots=True)
class SparkVersion:
    """Minor version of Spark on which programs can be attached."""

    number: tuple[int, int]
    stages: Stages
    file_manager: str = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    """Class that writes the files of a query's checkpoint by a stream and a rename."""

    @property
    def row(self) -> str:
        """Row of the table for people."""
        return f"| {self.name} | yes | {self.stages} |"

    @property
    def name(self) -> str:
        """Number as people write it."""
        return ".".join(map(str, self.number))


VERSIONS = (
    SparkVersion((3, 5), Stages.NONE, f"{_STREAMING}.FileSystemBasedCheckpointFileManager"),
    SparkVersion((4, 0), Stages.IN_ONE_CHAIN, f"{_STREAMING}.FileSystemBasedCheckpointFileManager"),
    SparkVersion((4, 1), Stages.IN_ONE_CHAIN),
    SparkVersion((4, 2), Stages.ALL),
    SparkVersion((4, 3), Stages.ALL),
)
"""Oldest first; a newer one than these is taken to be as the last."""


def version_of(version: str) -> SparkVersion:
    """Return the row of a version as PySpark spells it; one older than all is taken to be as the first."""
    known = [one for one in VERSIONS if one.number <= _number(version)]
    return known[-1] if known else VERSIONS[0]


def refuse_pipelines(version: str) -> None:
    """Raise InvalidRequest for a version of Spark that runs no stages of ours."""
    if version_of(version).stages is Stages.NONE:
        oldest = next(one for one in VERSIONS if one.stages is not Stages.NONE)
        raise InvalidRequest(
            f"PySpark {version} is too old for stages: install pyspark>={oldest.name}, or attach a program as it is "
            f"(dagster_ckpt.attach), from PySpark {VERSIONS[0].name} on"
        )


def refuse_streams(version: str) -> None:
    """Raise InvalidRequest for a version of Spark on which stages run in epochs only."""
    if version_of(version).stages is not Stages.ALL:
        raise InvalidRequest(f"PySpark {version} runs stages in epochs only: {_NEWER}")


def refuse_channels(version: str, channels: Iterable[tuple[str, str]]) -> None:
    """Raise InvalidRequest for a version of Spark that cannot read a channel, where there is one."""
    if version_of(version).stages is Stages.ALL:
        return
    for upstream, downstream in channels:
        raise InvalidRequest(
            f"PySpark {version} cannot hold a channel at a barrier, through which stage {downstream!r} reads "
            f"{upstream!r}: let all stages run in one chain, or {_NEWER}"
        )


def refuse_attached(version: str) -> None:
    """Raise InvalidRequest for a version of Spark whose programs cannot be attached."""
    if _number(version) < VERSIONS[0].number:
        raise InvalidRequest(
            f"a program on PySpark {version} cannot be attached: install pyspark>={VERSIONS[0].name}"
        )


_NEWER = f"install pyspark>={next(one for one in VERSIONS if one.stages is Stages.ALL).name}"


def _number(version: str) -> tuple[int, int]:
    major, minor = (int(part) for part in version.split(".")[:2])
    return major, minor
