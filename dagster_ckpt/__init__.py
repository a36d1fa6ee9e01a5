"""Coordinated checkpoints and savepoints for PySpark pipelines, operated from Dagster.

This module is the public surface: everything in ``__all__`` may be relied on. It is light, because it also
runs on Spark executors and in every sensor tick: a name is imported from its module when it is first used.

| file | what it owns |
|---|---|
| ``authoring/`` | what authors write: stages and how they are connected |
| ``core/`` | every decision, pure |
| ``ports`` | what the runtime needs from outside, as Protocols |
| ``runtime/`` | the coordinator: load, decide, compare-and-set, run effects |
| ``adapters/`` | the ports on SQL databases and fsspec storages |
| ``spark/`` | everything that touches Spark's files or PySpark |
| ``operations/`` | what people do to snapshots, as functions |
| ``page/`` | the checkpoint page of a pipeline: its facts, as HTML and for the terminal |
| ``dagster/`` | everything that imports Dagster: resources, jobs, asset, checks, sensors, components |
| ``running`` | the host of a run: an op of Dagster's, a plain program, a program that Dagster launched |
| ``programs`` | runs of a pipeline in a plain program |
| ``pipes`` | a run in a program that Dagster launched through Pipes |
| ``cli/`` | the program ``dagster-ckpt`` |
| ``sinks`` | public names of sinks: targets, and the port for one of your own |
| ``testing/`` | fakes, faults and the harness for tests, yours included |
| ``ext/`` | extensions: a folder for each foreign system, behind a port of the kernel |
| ``extensions`` | entry points by which extensions are found |
| ``errors`` | the exception tree, by what the caller does next |
| ``digests`` | size and checksum of content |
| ``version`` | the version |
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dagster_ckpt.version import __version__ as __version__

if TYPE_CHECKING:  # the same names as in _HOMES, for type checkers and editors; a test holds the two together
    from dagster_ckpt.authoring.own_objects import HookContext as HookContext
    from dagster_ckpt.authoring.own_objects import StageContext as StageContext
    from dagster_ckpt.authoring.own_objects import pipeline_hook as pipeline_hook
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline as CheckpointedPipeline
    from dagster_ckpt.authoring.pipeline import checkpointed_pipeline as checkpointed_pipeline
    from dagster_ckpt.authoring.stage_settings import SourceBatch as SourceBatch
    from dagster_ckpt.authoring.stages import spark_sink as spark_sink
    from dagster_ckpt.authoring.stages import spark_source as spark_source
    from dagster_ckpt.authoring.stages import spark_stage as spark_stage
    from dagster_ckpt.core.config import CheckpointConfig as CheckpointConfig
    from dagster_ckpt.core.config import CheckpointingMode as CheckpointingMode
    from dagster_ckpt.core.config import ClaimMode as ClaimMode
    from dagster_ckpt.core.config import ExternalizedCheckpointRetention as ExternalizedCheckpointRetention
    from dagster_ckpt.core.config import RestoreOptions as RestoreOptions
    from dagster_ckpt.core.messages import CheckpointFailureReason as CheckpointFailureReason
    from dagster_ckpt.core.model import CheckpointKind as CheckpointKind
    from dagster_ckpt.core.model import CheckpointMetadata as CheckpointMetadata
    from dagster_ckpt.dagster.components.checkpointed_pipeline import (
        CheckpointedPipelineComponent as CheckpointedPipelineComponent,
    )
    from dagster_ckpt.dagster.definitions import build_location_definitions as build_location_definitions
    from dagster_ckpt.dagster.definitions import build_pipeline_definitions as build_pipeline_definitions
    from dagster_ckpt.dagster.options import EpochSchedule as EpochSchedule
    from dagster_ckpt.dagster.options import Launch as Launch
    from dagster_ckpt.dagster.options import PipelineOptions as PipelineOptions
    from dagster_ckpt.dagster.options import SavepointSchedule as SavepointSchedule
    from dagster_ckpt.dagster.pipeline_jobs import build_savepoint_schedule as build_savepoint_schedule
    from dagster_ckpt.dagster.reports.asset import checkpoints_asset_key as checkpoints_asset_key
    from dagster_ckpt.dagster.resources.coordinator import (
        CheckpointCoordinatorResource as CheckpointCoordinatorResource,
    )
    from dagster_ckpt.dagster.resources.spark import SparkSessionResource as SparkSessionResource
    from dagster_ckpt.dagster.sensors.alarms import AlarmMessage as AlarmMessage
    from dagster_ckpt.dagster.sensors.runs import SavepointWanted as SavepointWanted
    from dagster_ckpt.dagster.sensors.runs import after_checkpoints as after_checkpoints
    from dagster_ckpt.dagster.sensors.runs import build_savepoint_sensor as build_savepoint_sensor
    from dagster_ckpt.dagster.supervision import AlarmPolicy as AlarmPolicy
    from dagster_ckpt.dagster.supervision import RestartPolicy as RestartPolicy
    from dagster_ckpt.dagster.tables import (
        published_tables_io_manager as published_tables_io_manager,
    )
    from dagster_ckpt.errors import CheckpointError as CheckpointError
    from dagster_ckpt.errors import Corrupt as Corrupt
    from dagster_ckpt.errors import Declined as Declined
    from dagster_ckpt.errors import Fenced as Fenced
    from dagster_ckpt.errors import InvalidRequest as InvalidRequest
    from dagster_ckpt.errors import NotFound as NotFound
    from dagster_ckpt.errors import OutcomeUnknown as OutcomeUnknown
    from dagster_ckpt.errors import Unavailable as Unavailable
    from dagster_ckpt.ext.attach.attachment import attach as attach
    from dagster_ckpt.ext.attach.definitions import attached_program as attached_program
    from dagster_ckpt.ext.kafka.topics import KafkaTopics as KafkaTopics
    from dagster_ckpt.ext.spark_pipelines.adoption import adopt_spark_project as adopt_spark_project
    from dagster_ckpt.ext.spark_pipelines.project import (
        pipeline_from_spark_project as pipeline_from_spark_project,
    )
    from dagster_ckpt.operations.deployment import Deployment as Deployment
    from dagster_ckpt.operations.deployment import checkpoint_statistics as checkpoint_statistics
    from dagster_ckpt.operations.readers.blue_green import compare_readers as compare_readers
    from dagster_ckpt.operations.readers.blue_green import swap_back as swap_back
    from dagster_ckpt.operations.readers.blue_green import swap_readers as swap_readers
    from dagster_ckpt.operations.readers.diff_tables import TablesDiff as TablesDiff
    from dagster_ckpt.operations.readers.diff_tables import diff_tables as diff_tables
    from dagster_ckpt.operations.readers.load_table import load_table as load_table
    from dagster_ckpt.operations.readers.load_table import load_tables as load_tables
    from dagster_ckpt.operations.restores.preview import preview_restore as preview_restore
    from dagster_ckpt.operations.snapshots.catalog import find_snapshot as find_snapshot
    from dagster_ckpt.operations.snapshots.catalog import list_snapshots as list_snapshots
    from dagster_ckpt.operations.snapshots.contents import verify_snapshot as verify_snapshot
    from dagster_ckpt.operations.snapshots.diff import diff_snapshots as diff_snapshots
    from dagster_ckpt.operations.snapshots.inspect import diff_state as diff_state
    from dagster_ckpt.operations.snapshots.inspect import open_state as open_state
    from dagster_ckpt.pipes import run_launched as run_launched
    from dagster_ckpt.programs import run_epoch as run_epoch
    from dagster_ckpt.programs import run_stream as run_stream

_HOMES: dict[str, str] = {
    # what authors write
    "checkpointed_pipeline": "authoring.pipeline",
    "CheckpointedPipeline": "authoring.pipeline",
    "pipeline_from_spark_project": "ext.spark_pipelines.project",
    "adopt_spark_project": "ext.spark_pipelines.adoption",
    "spark_source": "authoring.stages",
    "KafkaTopics": "ext.kafka.topics",
    "spark_stage": "authoring.stages",
    "spark_sink": "authoring.stages",
    "pipeline_hook": "authoring.own_objects",
    "HookContext": "authoring.own_objects",
    "StageContext": "authoring.own_objects",
    "SourceBatch": "authoring.stage_settings",
    # what a code location needs
    "build_pipeline_definitions": "dagster.definitions",
    "build_location_definitions": "dagster.definitions",
    "CheckpointCoordinatorResource": "dagster.resources.coordinator",
    "SparkSessionResource": "dagster.resources.spark",
    "checkpoints_asset_key": "dagster.reports.asset",
    "CheckpointedPipelineComponent": "dagster.components.checkpointed_pipeline",
    "PipelineOptions": "dagster.options",
    "SavepointSchedule": "dagster.options",
    "EpochSchedule": "dagster.options",
    "RestartPolicy": "dagster.supervision",
    "AlarmPolicy": "dagster.supervision",
    "AlarmMessage": "dagster.sensors.alarms",
    "build_savepoint_schedule": "dagster.pipeline_jobs",
    "build_savepoint_sensor": "dagster.sensors.runs",
    "SavepointWanted": "dagster.sensors.runs",
    "after_checkpoints": "dagster.sensors.runs",
    # runs without Dagster
    "attach": "ext.attach.attachment",
    "attached_program": "ext.attach.definitions",
    "run_epoch": "programs",
    "run_stream": "programs",
    "run_launched": "pipes",
    "Launch": "dagster.options",
    # reading what was published
    "TablesDiff": "operations.readers.diff_tables",
    "diff_tables": "operations.readers.diff_tables",
    "load_table": "operations.readers.load_table",
    "load_tables": "operations.readers.load_table",
    "compare_readers": "operations.readers.blue_green",
    "swap_readers": "operations.readers.blue_green",
    "swap_back": "operations.readers.blue_green",
    "published_tables_io_manager": "dagster.tables",
    # looking at snapshots
    "Deployment": "operations.deployment",
    "list_snapshots": "operations.snapshots.catalog",
    "find_snapshot": "operations.snapshots.catalog",
    "verify_snapshot": "operations.snapshots.contents",
    "preview_restore": "operations.restores.preview",
    "open_state": "operations.snapshots.inspect",
    "checkpoint_statistics": "operations.deployment",
    "diff_snapshots": "operations.snapshots.diff",
    "diff_state": "operations.snapshots.inspect",
    # settings and records
    "CheckpointConfig": "core.config",
    "CheckpointingMode": "core.config",
    "RestoreOptions": "core.config",
    "ClaimMode": "core.config",
    "ExternalizedCheckpointRetention": "core.config",
    "CheckpointKind": "core.model",
    "CheckpointMetadata": "core.model",
    "CheckpointFailureReason": "core.messages",
    # errors
    "CheckpointError": "errors",
    "Corrupt": "errors",
    "Declined": "errors",
    "Fenced": "errors",
    "InvalidRequest": "errors",
    "NotFound": "errors",
    "OutcomeUnknown": "errors",
    "Unavailable": "errors",
}
"""Public name -> the module that owns it. To publish a name: one line here and one import above."""

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - every key of the table is a name this module answers to


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, and keep it. Raises AttributeError for all others."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{home}")
    except AttributeError as error:  # "from … import" would hide it behind "cannot import name"
        raise ImportError(f"importing {__name__}.{home} failed: {error}") from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, whether imported yet or not."""
    return sorted({*globals(), *__all__})
