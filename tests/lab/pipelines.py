"""Pipelines in few words: each stage reads those that its function's parameters are named after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dagster_ckpt import CheckpointedPipeline, checkpointed_pipeline, spark_sink, spark_source, spark_stage


def source(uid: str, fn: Callable[..., Any], **settings: Any) -> Any:
    """Return a source whose function gets the session."""
    return spark_source(uid=uid, **settings)(fn)


def reads(uid: str, schema: str, folder: Path | str, *, at_once: int = 0, **settings: Any) -> Any:
    """Return a source of the JSON files in a folder; ``at_once``: files of a batch, 0: all there are."""

    def read(spark: Any) -> Any:
        reader = spark.readStream.schema(schema)
        limited = reader.option("maxFilesPerTrigger", at_once) if at_once else reader
        return limited.json(str(folder))

    return source(uid, read, **settings)


def stage(uid: str, fn: Callable[..., Any], **settings: Any) -> Any:
    """Return a stage between others."""
    return spark_stage(uid=uid, **settings)(fn)


def sink(uid: str, fn: Callable[..., Any], **settings: Any) -> Any:
    """Return a sink; its table is named after it where the settings say nothing else."""
    return spark_sink(uid=uid, **settings)(fn)


def wired(
    name: str, *stages: Any, checkpointing: Mapping[str, Any] | None = None, hooks: Sequence[Any] = ()
) -> CheckpointedPipeline:
    """Return the pipeline of these stages, each behind the ones whose uids its parameters name."""

    def compose() -> None:
        outputs: dict[str, Any] = {}
        for made in stages:
            outputs[made.uid] = made(*(outputs[read] for read in made.inputs))

    pipeline: CheckpointedPipeline = checkpointed_pipeline(
        name=name, checkpointing=checkpointing, hooks=hooks
    )(compose)
    return pipeline
