"""Places of a pipeline that executors and the driver both write to, and a session whose executors see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.spark.cluster.probe import prove_executors
from dagster_ckpt.spark.exchange.mounts import exchange_of
from dagster_ckpt.spark.exchange.probe import prove_reached

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
