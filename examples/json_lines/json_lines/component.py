"""Pipelines made of a file: ``stages: json-lines:copy.toml`` in ``defs.yaml`` copies a folder of JSON files."""

import tomllib
from pathlib import Path

from dagster_ckpt import CheckpointedPipeline, InvalidRequest, checkpointed_pipeline, spark_sink, spark_source
from json_lines import JsonLines


def pipeline_of_file(file: Path, *, name: str = "") -> CheckpointedPipeline:
    """Return the pipeline that a TOML file describes: ``read``, ``columns`` (as Spark's DDL) and ``write``."""
    told = tomllib.loads(file.read_text())
    if missing := {"read", "columns", "write"} - told.keys():
        raise InvalidRequest(f"{file} has no {sorted(missing)[0]}: it needs read, columns and write")

    @spark_source
    def files(spark):
        return spark.readStream.schema(told["columns"]).json(told["read"])

    @spark_sink(to=JsonLines(told["write"]))
    def copied(files):
        return files

    @checkpointed_pipeline(name=name or file.stem)
    def pipeline():
        copied(files())

    return pipeline
