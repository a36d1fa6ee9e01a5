"""Setup of a run of a pipeline: what its host gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.runtime.attempt_setup import RunSetup
from dagster_ckpt.spark.attempt.stage_query import StageArguments
from dagster_ckpt.spark.cluster.probe import prove_executors
from dagster_ckpt.spark.exchange.mounts import exchange_of
from dagster_ckpt.spark.exchange.probe import prove_reached
from dagster_ckpt.spark.plan.chains import Choose, choose_chains
from dagster_ckpt.spark.stage_report import Reporter, TableChanged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


def proven_session(
    given: Callable[[], SparkSession],
    places: Mapping[str, Path],
    say: Callable[[str], None],
    bounded: Callable[[SparkSession], AbstractContextManager[None]],
) -> Callable[[], SparkSession]:
    """Return a function that gives an attempt's session, once every executor there is by then was probed.

    Calling it raises InvalidRequest for an executor that could lose rows, or cannot run stages. ``bounded`` says how
    long executors are waited for.
    """

    def session() -> SparkSession:
        for name, place in places.items():
            exchange = exchange_of(place)
            if exchange is not None:
                prove_reached(exchange, name)
        spark = given()
        with bounded(spark):
            prove_executors(spark, places, say)
        return spark

    return session


def shared_places(pipeline: CheckpointedPipeline, *, work_dir: Path, table_dir: Path) -> dict[str, Path]:
    """Return the folders that executors write to, by the name people know them by."""
    places = {"work_dir": work_dir / pipeline.name}
    for uid, stage in pipeline.stages.items():
        folder = None if stage.table is None else stage.target.local_folder(stage.table.name)
        if folder is None:
            continue  # staged below work_dir
        table = Path(folder)
        if table.is_absolute():
            places[f"the table of sink {uid}"] = table if table.is_dir() else table.parent
        else:
            places["table_dir"] = table_dir
    if pipeline.derived:
        places["table_dir"] = table_dir
    return places


@dataclass(frozen=True, kw_only=True)
class PipelineSetup(RunSetup):
    """Setup of a run of a pipeline: what its attempts are opened with."""

    pipeline: CheckpointedPipeline
    spark: Callable[[], SparkSession]
    """Returns the session, started when it is first wanted."""
    work_dir: Path
    table_dir: Path
    reporter: Reporter
    set_aside: Sequence[StageUid] = ()
    """Sinks whose waiting rows are written to files instead of being shown."""
    tell_tables: Callable[[TableChanged], None] = lambda change: None
    """Told of every sink whose rows have changed."""
    hook_resources: Any = None
    """Dagster resources for the pipeline's hooks."""
    arguments: Callable[[StageUid], StageArguments] = lambda uid: StageArguments()
    """Config and resources of a stage."""
    choose: Choose = choose_chains
    """Chooses the chains of a pipeline that begins."""
    bounded: Callable[[SparkSession], AbstractContextManager[None]] = lambda spark: nullcontext()
    """Bounds the wait for executors; an epoch waits until the cluster has room."""

    @cached_property
    def session(self) -> Callable[[], SparkSession]:
        """Returns the session, whose executors were proven before anybody has it."""
        places = shared_places(self.pipeline, work_dir=self.work_dir, table_dir=self.table_dir)
        return proven_session(self.spark, places, self.reporter.info, self.bounded)
