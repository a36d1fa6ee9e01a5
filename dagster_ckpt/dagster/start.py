"""Facts of a start as Dagster's resources and definitions tell them: the code, and the machine before Java starts."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dagster._core.definitions.utils import DISALLOWED_NAMES

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.restore.start_checks import refuse_start
from dagster_ckpt.core.restore.start_facts import (
    CodeFacts,
    JavaFound,
    Look,
    MachineFacts,
    Package,
    Place,
    StartFacts,
    finds_nothing,
)
from dagster_ckpt.dagster import names as of
from dagster_ckpt.dagster.reports.asset import checkpoints_asset_key
from dagster_ckpt.dagster.reports.tables import table_asset_key
from dagster_ckpt.dagster.resources.pipeline import has_variables, places_of, why_not_written
from dagster_ckpt.errors import CheckpointError, install_extra
from dagster_ckpt.spark.java.process import has_gateway
from dagster_ckpt.spark.versions import refuse_channels, refuse_pipelines, refuse_streams

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
    from dagster_ckpt.dagster.resources.spark import SparkSessionResource


log = logging.getLogger("dagster_ckpt.definitions")
_CHECKING = "DAGSTER_IS_DEFS_VALIDATION_CLI"
"""Set by Dagster where definitions are loaded only to be checked."""


def refuse_impossible(
    resource: CheckpointCoordinatorResource,
    pipeline: CheckpointedPipeline,
    spark: SparkSessionResource | None = None,
    *,
    streams: bool = False,
) -> None:
    """Raise the first reason not to start that needs no data: of this machine, and of the coordinator store.

    ``spark``: how this process starts a session; None: it starts none. ``streams``: the run is a stream. Raises
    InvalidRequest, Unavailable.
    """
    machine = machine_facts(resource, pipeline, spark, streams=streams)
    refuse_start(StartFacts(machine=machine, store=partial(_opens, resource)))


def _opens(resource: CheckpointCoordinatorResource) -> None:
    resource.store()


def look_ahead(
    resource: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline, spark: SparkSessionResource
) -> None:
    """Raise what ``refuse_impossible`` would on this machine; nothing is made, and no schema is brought up to date."""
    from dagster_ckpt.adapters.sql_engine import refuse_silent

    store = partial(refuse_silent, resource.resolved_store_url)
    refuse_start(StartFacts(machine=machine_facts(resource, pipeline, spark), store=store))


def warn_where_checked(
    resource: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline, spark: SparkSessionResource
) -> None:
    """Warn of what would keep a run from starting on this machine, where ``dg check defs`` loads the definitions.

    It is no error there: definitions are often checked on another machine than the one that runs them.
    """
    settings = [getattr(resource, name) for name in resource.model_fields_set]
    if not os.environ.get(_CHECKING) or not resource.base_dir or has_variables(settings):
        return
    try:
        look_ahead(resource, pipeline, spark)
    except CheckpointError as error:
        log.warning("pipeline %s could not start on this machine: %s", pipeline.name, error)


# --- the code ---------------------------------------------------------------------------------------------------


def code_facts(
    pipelines: Sequence[CheckpointedPipeline], settings: Mapping[PipelineId, Look] | None = None
) -> CodeFacts:
    """Return the names and keys of a code location's pipelines; ``settings``: refuses those of each."""
    sinks = [
        (one, uid, stage) for one in pipelines for uid, stage in one.stages.items() if stage.table is not None
    ]
    return CodeFacts(
        pipelines=[one.name for one in pipelines],
        stages={one.name: list(one.stages) for one in pipelines},
        keys={(one.name, uid): stage.table.key for one, uid, stage in sinks if stage.table is not None},
        reserved=frozenset(DISALLOWED_NAMES),
        jobs={one.name: frozenset(_jobs_of(one)) for one in pipelines},
        assets={(one.name, uid): table_asset_key(one, uid).to_user_string() for one, uid, _ in sinks},
        checkpoint_assets={one.name: checkpoints_asset_key(one.name).to_user_string() for one in pipelines},
        settings={str(name): look for name, look in (settings or {}).items()},
    )


def _jobs_of(pipeline: CheckpointedPipeline) -> Iterator[str]:
    """Yield the names that jobs of a pipeline have, or may have, beside its own."""
    for label, name in vars(of).items():
        if label.endswith("_job_name") and label != "epoch_job_name":
            job: Callable[[PipelineId], str] = name
            yield job(pipeline.name)


# --- the machine ------------------------------------------------------------------------------------------------


def machine_facts(
    resource: CheckpointCoordinatorResource,
    pipeline: CheckpointedPipeline,
    spark: SparkSessionResource | None = None,
    *,
    streams: bool = False,
) -> MachineFacts:
    """Return the facts of this machine that the pipeline needs; nothing is made, nobody is asked."""
    return MachineFacts(
        places=[
            Place(setting=setting, path=path, why=why_not_written(path))
            for setting, path in places_of(resource, pipeline).items()
        ],
        missing=[package for package in _needed(resource, pipeline) if find_spec(package.name) is None],
        java=None if spark is None or _runs_spark() else _java(os.environ),
        spark=finds_nothing if spark is None else partial(_refuse_version, resource, pipeline, streams),
    )


def _refuse_version(
    resource: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline, streams: bool
) -> None:
    """Refuse the PySpark that is installed; which stages are chained is known without a session where none are."""
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        return
    refuse_pipelines(installed)
    if streams:
        refuse_streams(installed)
    if not resource.checkpoint_config(pipeline).operator_chaining:
        refuse_channels(installed, [(one.upstream, one.downstream) for one in pipeline.graph.edges])


def _needed(resource: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline) -> Iterator[Package]:
    from dagster_ckpt.adapters.remote_keys import client_of
    from dagster_ckpt.adapters.sql_engine import is_sqlite, store_url

    if not is_sqlite(store_url(resource.resolved_store_url)):
        yield _package("the coordinator store", "psycopg", "postgres")
    for setting in ("checkpoint_dir", "savepoint_dir", "work_dir"):
        place = str(getattr(resource, setting) or "")
        if client := client_of(place):
            yield _package(f"`{setting}` ({place})", *client)
    for uid, stage in pipeline.stages.items():
        if stage.table is not None and (needs := stage.target.needs):
            yield _package(f"sink {uid!r} ({type(stage.target).__name__})", *needs)


def _package(needed_by: str, name: str, extra: str) -> Package:
    return Package(needed_by=needed_by, name=name, install=install_extra(extra))


def _runs_spark() -> bool:
    """Tell whether this process has a JVM already, or is given one."""
    return has_gateway() or bool(os.environ.get("PYSPARK_GATEWAY_PORT"))


def _java(environment: Mapping[str, str]) -> JavaFound:
    """Return the Java that Spark would take, by its files: its program is not run."""
    home = environment.get("JAVA_HOME", "")
    looked = f"JAVA_HOME ({home})" if home else "the PATH (JAVA_HOME is not set)"
    program = shutil.which(f"{home}/bin/java" if home else "java", path=environment.get("PATH"))
    if program is None:
        return JavaFound(looked=looked, version=None)
    release = Path(os.path.realpath(program)).parents[1] / "release"
    try:
        said = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        said = None
    return JavaFound(looked=looked, version=int(said[1]) if said else 0)
