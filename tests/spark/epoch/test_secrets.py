"""What is given by EnvVar stands nowhere in Dagster's storage, nor in what the library prints of itself."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, build_pipeline_definitions
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.cli.context import Locations
from dagster_ckpt.dagster.names import COORDINATOR_KEY
from dagster_ckpt.errors import CheckpointError
from tests.lab.lab import Lab
from tests.spark.epoch.small_pipeline import Feed, shop

SECRET = "x7Qm-not-to-be-seen"


def texts(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder; of a SQLite file every value, unpacked where Dagster has packed it."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        yield str(path), path.read_bytes()
        if path.read_bytes()[:15] != b"SQLite format 3":
            continue
        with closing(sqlite3.connect(path)) as database:
            for (table,) in database.execute(
                "select name from sqlite_master where type = 'table'"
            ).fetchall():
                for row in database.execute(f"select * from [{table}]"):
                    for value in row:
                        yield f"{path}: {table}", _unpacked(value)


def _unpacked(value: object) -> bytes:
    packed = value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
    with suppress(zlib.error):
        return zlib.decompress(packed)
    return packed


def found_in(instance: dg.DagsterInstance) -> list[str]:
    return [where for where, text in texts(Path(instance.root_directory)) if SECRET.encode() in text]


def test_a_run_leaves_no_secret_that_came_from_the_environment_in_dagsters_storage(
    lab: Lab, small_feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_URL", f"sqlite:///{lab.folder}/{SECRET}.db")
    monkeypatch.setenv("STORAGE_SECRET", SECRET)
    settings = {
        "store_url": dg.EnvVar("STORE_URL"),
        "storage_options": {"secret": dg.EnvVar("STORAGE_SECRET")},
    }
    careful = replace(lab, settings=settings, spark_conf={"spark.hadoop.key": dg.EnvVar("STORAGE_SECRET")})
    pipeline = shop(small_feed.folder)
    assert careful.run(pipeline).success
    assert (lab.folder / f"{SECRET}.db").is_file(), "the run used it"
    assert len(careful.materializations(pipeline)) == 1
    assert found_in(lab.instance) == []
    careless = build_pipeline_definitions(
        pipeline,
        coordinator=CheckpointCoordinatorResource(storage_options={"secret": SECRET}),
        spark=SparkSessionResource(),
    )
    job = careless.resolve_job_def(pipeline.name)
    lab.instance.create_run_for_job(job_def=job)
    assert found_in(lab.instance) == [], "a pipeline's own job says nothing of its resources' settings"
    written = {"resources": {COORDINATOR_KEY: {"config": {"storage_options": {"secret": SECRET}}}}}
    lab.instance.create_run_for_job(job_def=job, run_config=written)
    assert found_in(lab.instance), "what is written in a Launchpad is recorded, and this test finds it"


# --- what we print ----------------------------------------------------------------------------------------------

URL = f"postgresql://me:{SECRET}@nowhere.invalid:1/db"


def test_neither_resources_nor_stores_show_a_secret_of_theirs() -> None:
    shown = [
        repr(CheckpointCoordinatorResource(store_url=URL, storage_options={"secret": SECRET})),
        repr(SparkSessionResource(conf={"spark.hadoop.key": SECRET})),
        repr(SqlCoordinatorStore(URL)),
        repr(Locations(store=URL, storage_options={"secret": SECRET})),
    ]
    assert [text for text in shown if SECRET in text] == []


@pytest.mark.parametrize(
    "locations",
    [
        Locations(store=URL, storage="/somewhere"),
        Locations(store=f"no url at all {SECRET}", storage="/somewhere"),
        Locations(store=f"mysql://me:{SECRET}@host/db", storage="/somewhere"),
        Locations(store=f"sqlite:////tmp/x.db?key={SECRET}", storage="/somewhere"),
        Locations(store=f"postgresql://nowhere.invalid:1/db?password={SECRET}", storage="/somewhere"),
        Locations(base=f"s3://me:{SECRET}@bucket/x"),
        Locations(base="/somewhere", storage=f"s3://me:{SECRET}@bucket/x", store="sqlite:////dev/null"),
        Locations(base="/somewhere", storage=f"simplecache::s3://{SECRET}@b", store="sqlite:////dev/null"),
    ],
    ids=[
        "refused",
        "no url",
        "other database",
        "options",
        "password as option",
        "base",
        "storage",
        "chained",
    ],
)
def test_what_is_said_of_a_location_that_cannot_be_used_shows_no_password(locations: Locations) -> None:
    with pytest.raises(CheckpointError) as refused:
        locations.open().store.pipelines()
    error: BaseException | None = refused.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__
