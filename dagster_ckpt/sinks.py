"""Sinks: where rows end, and what a sink of your own implements. Names are loaded when they are first used.

Targets are what ``@spark_sink(to=...)`` takes: plain data that names the class of the sink. A sink of your own is a
``SinkTarget`` and a ``Sink``: docs/how-to/own-sink.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in _HOMES, for type checkers and editors; a test holds the two together
    from dagster_ckpt.authoring.targets import ForEachCheckpoint as ForEachCheckpoint
    from dagster_ckpt.authoring.targets import SinkTarget as SinkTarget
    from dagster_ckpt.ext.delta.target import DeltaTable as DeltaTable
    from dagster_ckpt.ext.iceberg.target import IcebergTable as IcebergTable
    from dagster_ckpt.ext.kafka.topics import KafkaTopic as KafkaTopic
    from dagster_ckpt.ext.sql.target import SqlTable as SqlTable
    from dagster_ckpt.spark.sink.accepts import Accepts as Accepts
    from dagster_ckpt.spark.sink.accepts import ValueRule as ValueRule
    from dagster_ckpt.spark.sink.committables import PreparedBatch as PreparedBatch
    from dagster_ckpt.spark.sink.for_each_checkpoint import CheckpointToken as CheckpointToken
    from dagster_ckpt.spark.sink.port import AlreadyPublished as AlreadyPublished
    from dagster_ckpt.spark.sink.port import AttemptId as AttemptId
    from dagster_ckpt.spark.sink.port import LaterRows as LaterRows
    from dagster_ckpt.spark.sink.port import Published as Published
    from dagster_ckpt.spark.sink.port import RolledBack as RolledBack
    from dagster_ckpt.spark.sink.port import Sink as Sink
    from dagster_ckpt.spark.sink.port import SinkContext as SinkContext
    from dagster_ckpt.spark.sink.port import SinkCut as SinkCut
    from dagster_ckpt.spark.sink.port import SinkDescription as SinkDescription
    from dagster_ckpt.spark.sink.port import SinkPosition as SinkPosition
    from dagster_ckpt.spark.sink.rows import PublishedRows as PublishedRows
    from dagster_ckpt.spark.sink.staged_rows import StagedRows as StagedRows
    from dagster_ckpt.spark.sink.staged_rows import stage_rows as stage_rows
    from dagster_ckpt.spark.sink.staged_sink import StagedSink as StagedSink


_HOMES: dict[str, str] = {
    "DeltaTable": "ext.delta.target",
    "IcebergTable": "ext.iceberg.target",
    "SqlTable": "ext.sql.target",
    "ForEachCheckpoint": "authoring.targets",
    "KafkaTopic": "ext.kafka.topics",
    "SinkTarget": "authoring.targets",
    "Accepts": "spark.sink.accepts",
    "ValueRule": "spark.sink.accepts",
    "Sink": "spark.sink.port",
    "SinkContext": "spark.sink.port",
    "SinkPosition": "spark.sink.port",
    "SinkCut": "spark.sink.port",
    "SinkDescription": "spark.sink.port",
    "AttemptId": "spark.sink.port",
    "LaterRows": "spark.sink.port",
    "Published": "spark.sink.port",
    "AlreadyPublished": "spark.sink.port",
    "RolledBack": "spark.sink.port",
    "PublishedRows": "spark.sink.rows",
    "PreparedBatch": "spark.sink.committables",
    "CheckpointToken": "spark.sink.for_each_checkpoint",
    "StagedSink": "spark.sink.staged_sink",
    "StagedRows": "spark.sink.staged_rows",
    "stage_rows": "spark.sink.staged_rows",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"dagster_ckpt.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
