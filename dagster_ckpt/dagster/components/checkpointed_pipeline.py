"""``dagster_ckpt.CheckpointedPipelineComponent``. Annotations are evaluated: Dagster resolves YAML by them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import dagster as dg
from pydantic import BaseModel, Field

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.paths import scheme_of
from dagster_ckpt.core.settings import NamedSettings
from dagster_ckpt.dagster.components.attributes import (
    AlarmAttributes,
    Attributes,
    ExecutorAttributes,
    LaunchAttributes,
    RestartAttributes,
    SavepointAttributes,
    Secret,
    SparkAttributes,
    function_named,
    secret,
    secrets,
)
from dagster_ckpt.dagster.definitions import SharedSensors, build_pipeline_definitions
from dagster_ckpt.dagster.options import PipelineOptions
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.extensions import COMPONENTS, extension

_STAGES = '''"""Pipeline {name}: replace the source and the sink by your own."""

from pathlib import Path

from pyspark.sql import functions as f

from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source


ARRIVALS = Path(__file__).with_name("arrivals")


@spark_source
def numbers(spark):
    """Files of JSON lines, each read once; any source of Spark fits here that can read again from where it was."""
    return spark.readStream.schema("value LONG").json(str(ARRIVALS))


@spark_sink(key=["bucket"])
def totals(numbers):
    """One row per bucket, kept up to date; a Delta table."""
    return numbers.groupBy((f.col("value") % 10).alias("bucket")).count()


@checkpointed_pipeline(name="{name}")
def {function}() -> None:
    """Count numbers per bucket."""
    totals(numbers())
'''

_NUMBERS = 100
"""In the file that the scaffolded pipeline reads first."""

_SECRETS = """
# Passwords and keys are named, not written here: Dagster records attributes with every run.
#   store_url: {env: CHECKPOINT_STORE_URL}
#   storage_options: {secret: {env: S3_SECRET}}
"""


class PipelineParams(BaseModel):
    """Options of ``dg scaffold defs``."""

    pipeline: str = Field(default="my_pipeline", description="Name of the pipeline.")
    savepoint_cron: str = Field(
        default="", description="Cron schedule of savepoints; empty: none are scheduled."
    )


class PipelineScaffolder(dg.Scaffolder[PipelineParams]):
    """Writes ``defs.yaml``, ``stages.py`` and the first file the pipeline reads."""

    @classmethod
    def get_scaffold_params(cls) -> type[PipelineParams]:
        """Return the options."""
        return PipelineParams

    def scaffold(self, request: dg.ScaffoldRequest[PipelineParams]) -> None:
        """Write them. Raises InvalidRequest for a name that could not name a folder."""
        # Dagster hands over None where no option was given.
        params = request.params or PipelineParams()
        name = pipeline_id(params.pipeline)
        attributes: dict[str, object] = {"pipeline": str(name), "base_dir": f"./.checkpointed/{name}"}
        if params.savepoint_cron:
            attributes["savepoints"] = {"cron_schedule": params.savepoint_cron, "retain": 7}
        dg.scaffold_component(request, attributes)
        with (request.target_path / "defs.yaml").open("a") as file:
            file.write(_SECRETS)
        function = "".join(c if c.isalnum() else "_" for c in name)
        if not function[0].isalpha():
            function = f"pipeline_{function}"
        (request.target_path / "stages.py").write_text(_STAGES.format(name=name, function=function))
        arrivals = request.target_path / "arrivals"
        arrivals.mkdir(exist_ok=True)
        lines = "".join(f'{{"value": {value}}}\n' for value in range(_NUMBERS))
        (arrivals / "0001.json").write_text(lines)


_FOLDERS = ("base_dir", "checkpoint_dir", "savepoint_dir", "work_dir", "table_dir")


@dg.scaffold_with(PipelineScaffolder)
class CheckpointedPipelineComponent(dg.Component, Attributes):
    """A PySpark pipeline with checkpoints and savepoints; begin with

    ``dg scaffold defs dagster_ckpt.CheckpointedPipelineComponent my_pipeline --pipeline my_pipeline``.

    Override ``options`` to change how the pipeline shows in Dagster, or ``build_defs`` to add to what there is.
    """

    pipeline: str = Field(description="Name of the pipeline.", examples=["orders"])
    stages: str = Field(
        default="stages.py",
        description="File beside defs.yaml, or package.module, that defines it; or kind:file, of an extension.",
    )
    spark_project: str = Field(
        default="",
        description="Instead of stages: a Spark declarative pipeline, its spec file or folder, from beside defs.yaml.",
        examples=["../pipeline/spark-pipeline.yml"],
    )
    program: str = Field(
        default="",
        description="Instead of stages: a program that starts its queries itself, from beside defs.yaml.",
        examples=["job.py"],
    )
    arguments: list[str] = Field(default_factory=list, description="Of the program.")
    base_dir: str = Field(default="", description="Folder the other locations default into.")
    checkpoint_dir: str = Field(
        default="", description="fsspec URI of checkpoint storage.", examples=["./checkpoints"]
    )
    checkpoint_storage: str = Field(
        default="filesystem",
        description="filesystem: checkpoint_dir; store: the coordinator store, for small state.",
        examples=["store"],
    )
    savepoint_dir: str = Field(default="", description="fsspec URI under which savepoints are written.")
    work_dir: str = Field(default="", description="Folder for running queries.")
    table_dir: str = Field(default="", description="Folder of the tables sinks write.")
    store_url: Secret = Field(
        default="",
        description="SQLAlchemy URL of the coordinator store; one with a password as {env: NAME}.",
        examples=["postgresql://host/db", {"env": "CHECKPOINT_STORE_URL"}],
    )
    storage_options: dict[str, Secret] = Field(
        default_factory=dict,
        description="fsspec options of checkpoint storage; a secret as {env: NAME}.",
        examples=[{"key": {"env": "S3_KEY"}, "secret": {"env": "S3_SECRET"}}],
    )
    interval_seconds: float | None = Field(
        default=None, description="Between periodic checkpoints of a streaming run.", examples=[10]
    )
    checkpointing: dict[str, Any] = Field(
        default_factory=dict,
        description="Further settings, under our names or Flink's.",
        examples=[{"num_retained": 5, "execution.checkpointing.timeout": "2 min"}],
    )
    concurrent_runs: str = Field(
        default="",
        description="A run that finds another one alive: queue (the default), skip or take_over.",
        examples=["skip"],
    )
    tables: str = Field(
        default="external",
        description="external, or materializable: Materialize, asset jobs and automation run an epoch.",
        examples=["materializable"],
    )
    table_freshness_seconds: float | None = Field(
        default=None, description="Older than this the rows of a table are stale."
    )
    report: str = Field(
        default="changed",
        description="A stream's checkpoints that become events: changed, every: 10, or all.",
        examples=["every: 10"],
    )
    spark: SparkAttributes = Field(default_factory=SparkAttributes)
    savepoints: SavepointAttributes | None = Field(default=None, description="Scheduled savepoints.")
    alarm: AlarmAttributes = Field(default_factory=AlarmAttributes)
    restart: RestartAttributes | None = Field(default=None, description="Adds the restart sensor.")
    publish_facts: str = Field(
        default="",
        description="File that each epoch writes its checkpoint's facts to, for dagster-ckpt plan.",
    )
    executor: ExecutorAttributes | None = Field(
        default=None, description="What executes the steps of a run; default: the run's own process."
    )
    launch: LaunchAttributes | None = Field(
        default=None, description="The stages run in a program launched elsewhere by a Pipes client."
    )

    def options(self) -> PipelineOptions:
        """Return how the pipeline shows in Dagster and is looked after."""
        age, fresh = self.alarm.max_age_seconds, self.table_freshness_seconds
        return PipelineOptions(
            max_checkpoint_age=None if age is None else timedelta(seconds=age),
            alarm_after_failures=self.alarm.after_failures,
            notify=function_named(self.alarm.notify, attribute="notify") if self.alarm.notify else None,
            restart=None if self.restart is None else self.restart.policy(),
            savepoints=None if self.savepoints is None else self.savepoints.schedule(),
            concurrent_runs=self.concurrent_runs,
            tables=self.tables,
            report=self.report,
            publish_facts=self.publish_facts,
            table_freshness=None if fresh is None else timedelta(seconds=fresh),
            launch=None if self.launch is None else self.launch.launch(),
            executor=dg.in_process_executor if self.executor is None else self.executor.executor(),
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return everything that operates the pipeline."""
        found = self._pipeline(context)
        settings = dict(self.checkpointing)
        if self.interval_seconds is not None:
            settings["interval"] = self.interval_seconds
        CheckpointConfig.layered(found.checkpointing, settings)
        checkpointing = NamedSettings.of(found.checkpointing).under(NamedSettings.of(settings)).values
        return build_pipeline_definitions(
            replace(found, checkpointing=checkpointing),
            coordinator=self._coordinator(context.project_root),
            spark=self.spark.resource(
                "dagster_ckpt", located=lambda folder: _located(folder, context.project_root)
            ),
            options=self.options(),
            shared=_shared_in(context),
        )

    def _pipeline(self, context: dg.ComponentLoadContext) -> CheckpointedPipeline:
        kind, _, file = self.stages.partition(":")
        if self.spark_project:
            kind, file = "spark_project", self.spark_project
        more: dict[str, Any] = {}
        if self.program:
            kind, file = "program", self.program
            more = {"base_dir": _located(self.base_dir, context.project_root), "arguments": self.arguments}
        if not file:
            return _pipeline_named(self.pipeline, self._module(context))
        folder = context.path if context.path.is_dir() else context.path.parent
        made = extension(COMPONENTS, kind)(folder / file, name=self.pipeline, **more)
        if not isinstance(made, CheckpointedPipeline):
            raise InvalidRequest(f"{kind!r} of {COMPONENTS} made {made!r}, not a pipeline: tell its author")
        return made

    def _module(self, context: dg.ComponentLoadContext) -> ModuleType:
        if self.stages.endswith(".py"):
            folder = context.path if context.path.is_dir() else context.path.parent
            return context.load_defs_relative_python_module(folder / self.stages)
        return import_module(self.stages)

    def _coordinator(self, root: Path) -> CheckpointCoordinatorResource:
        folders: dict[str, Any] = {name: _located(getattr(self, name), root) for name in _FOLDERS}
        return CheckpointCoordinatorResource(
            **folders,
            checkpoint_storage=self.checkpoint_storage,
            store_url=secret(self.store_url, attribute="store_url"),
            storage_options=secrets(self.storage_options, attribute="storage_options"),
        )


_SENSORS: WeakKeyDictionary[Any, SharedSensors] = WeakKeyDictionary()
"""Sensors of each tree of components that was loaded: all pipelines of a project share them."""


def _shared_in(context: dg.ComponentLoadContext) -> SharedSensors:
    return _SENSORS.setdefault(context.component_tree.state_tracker, SharedSensors())


def _located(folder: str, root: Path) -> str:
    """Return a folder or URI; relative ones are taken from the project's root, not from wherever Dagster starts."""
    if not folder or scheme_of(folder):
        return folder
    return str((root / folder).resolve())


def _pipeline_named(name: str, module: ModuleType) -> CheckpointedPipeline:
    there = [value for value in vars(module).values() if isinstance(value, CheckpointedPipeline)]
    found = next((pipeline for pipeline in there if pipeline.name == name), None)
    if found is None:
        names = ", ".join(sorted(str(pipeline.name) for pipeline in there)) or "none"
        raise InvalidRequest(
            f"{module.__name__} defines no pipeline {name!r}; its pipelines: {names}. Compose one with "
            "@checkpointed_pipeline, or correct the attribute 'pipeline'"
        )
    return found
