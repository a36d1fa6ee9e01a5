"""State in an object store: real queries over a mount table of Hadoop's, captured, restored elsewhere, and exact."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.errors import Declined, InvalidRequest
from dagster_ckpt.spark.attempt import query_state
from dagster_ckpt.spark.attempt.query_state import checkpoint_location
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.exchange.task_files import exchange_with_state, listed
from dagster_ckpt.spark.files import spark_uri
from dagster_ckpt.spark.session import default_spark_conf, session_settings
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch, plan_capture
from dagster_ckpt.spark.snapshot.remote_state import RemoteState
from dagster_ckpt.spark.snapshot.state_files import PlannedFile
from tests.adapters.servers import S3Server, spark_s3_jars
from tests.spark.exchange.places import Place, place_of
from tests.spark.snapshot.operator_workloads import with_time_to_live

UID = StageUid("totals")


@pytest.fixture(params=["folder", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, s3_apart: S3Server, spark: SparkSession
) -> Iterator[Place]:
    for name, value in default_spark_conf().items():
        if "stateStore" in name:  # what other tests have left in the shared session is theirs
            spark.conf.set(name, value)
    if request.param == "s3":
        if not spark_s3_jars():
            pytest.skip(
                "Spark's connector to S3 is not installed: scripts/bootstrap spark_s3, which needs Maven"
            )
        for name, value in s3a_settings(s3_apart.endpoint).items():
            spark.conf.set(name, value)
    with place_of(request.param, tmp_path, s3_apart) as made:
        yield made


def s3a_settings(endpoint: str) -> dict[str, str]:
    return {
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.access.key": "test",
        "fs.s3a.secret.key": "test",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
    }


@pytest.fixture(autouse=True)
def _executors_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_state, "is_local", lambda spark: False)


class Sums:
    """Sums by key over files of a folder, in a stage's directory."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder, self._files = spark, folder, 0
        folder.mkdir(exist_ok=True)
        self.shown: dict[int, int] = {}

    def put(self, **amounts: int) -> None:
        self._files += 1
        rows = "\n".join(json.dumps({"k": int(key[1:]), "v": value}) for key, value in amounts.items())
        (self._folder / f"{self._files:03}.json").write_text(rows)

    def frame(self) -> DataFrame:
        read = self._spark.readStream.schema("k INT, v INT").option("maxFilesPerTrigger", 1)
        return read.json(str(self._folder)).groupBy("k").sum("v").toDF("k", "v")

    def run(self, stage: StageDirectory, frame: DataFrame | None = None) -> None:
        def show(batch: DataFrame, _: int) -> None:
            self.shown.update({row.k: row.v for row in batch.collect()})

        frame = self.frame() if frame is None else frame
        place, settings = checkpoint_location(self._spark, UID, stage.query, frame)
        with session_settings(self._spark, settings):
            query = (
                frame.writeStream.outputMode("update")
                .option("checkpointLocation", place)
                .foreachBatch(show)
                .trigger(availableNow=True)
                .start()
            )
        query.awaitTermination()


def captured(
    stage: StageDirectory, checkpoint: int = 1, uploaded: Any = frozenset()
) -> tuple[PlannedFile, ...]:
    exchange, batch = exchange_with_state(stage.root), latest_committed_batch(stage.query)
    assert exchange is not None
    assert batch is not None
    return RemoteState(stage, exchange).plan(CheckpointId(checkpoint), batch, uploaded).files


def restored(stage: StageDirectory, files: tuple[PlannedFile, ...], target: StageDirectory) -> None:
    for file in files:
        path = target.root / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.source or stage.root / file.path, path)


def test_state_goes_on_from_a_capture_in_another_place(
    place: Place, spark: SparkSession, tmp_path: Path
) -> None:
    sums, first = Sums(spark, tmp_path / "in"), place.attempt(1).stage(UID)
    for number in range(4):
        sums.put(k1=1, k2=number)
    sums.run(first)
    assert sums.shown == {1: 4, 2: 6}
    assert not (first.query / "state").exists()
    assert {"metadata", "offsets", "commits"} <= {path.name for path in first.query.iterdir()}
    assert any(path.endswith(".changelog") for path in listed(first.query, place.exchange))

    files = captured(first)
    sums.put(k1=100)
    sums.run(first)  # what comes after the capture is not in it
    assert sums.shown[1] == 104

    second = place.attempt(2).stage(UID)
    restored(first, files, second)
    assert any(path.name.endswith(".changelog") for path in (second.query / "state").rglob("*"))
    sums.shown.clear()
    sums.put(k2=1000)
    sums.run(second)
    assert sums.shown == {1: 104, 2: 1006}
    assert exchange_with_state(second.root) is place.exchange


def test_a_capture_has_the_files_of_a_capture_on_a_disk_and_fetches_new_ones_only(
    place: Place, spark: SparkSession, tmp_path: Path
) -> None:
    sums, stage = Sums(spark, tmp_path / "in"), place.attempt(1).stage(UID)
    sums.put(k1=1)
    sums.run(stage)
    before = captured(stage, 1)
    assert all(Path(file.source).stat().st_size == file.size for file in before if file.source)
    assert all(file.source for file in before if file.path.startswith("query/state/"))
    uploaded = frozenset((file.path, file.size) for file in before)
    sums.put(k1=2)
    sums.run(stage)
    after = captured(stage, 2, uploaded)
    fetched = {file.path for file in after if file.source}
    assert fetched
    assert not {path for path in fetched if (path, 0) in uploaded}
    kept = {file.path for file in after if file.content_named and file.path in {one.path for one in before}}
    assert not kept & fetched

    state = tmp_path / "whole" / "query" / "state"
    for path, found in listed(stage.query, place.exchange).items():
        (state / path).parent.mkdir(parents=True, exist_ok=True)
        place.exchange.below(stage.query / "state").download(path, state / path, size=found.size)
    for name in ("offsets", "commits", "sources", "metadata"):
        source, target = stage.query / name, state.parent / name
        shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)
    batch = latest_committed_batch(stage.query)
    on_disk = plan_capture(state.parent, batch).files
    assert {(file.path, file.size) for file in on_disk} == {(file.path, file.size) for file in after}


def test_lost_state_is_in_no_checkpoint(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    sums, stage = Sums(spark, tmp_path / "in"), place.attempt(1).stage(UID)
    for number in range(2):
        sums.put(k1=number)
    sums.run(stage)
    with pytest.raises(Declined, match="query/state/0 is gone"):
        plan_capture(stage.query, BatchId(0))  # as if nobody knew that the state is elsewhere
    key = place.exchange.key_of(stage.query / "state")
    lost = [
        f"{key}/{path}"
        for path in listed(stage.query, place.exchange)
        if re.search(r"/2_[^/]+changelog$", path)
    ]
    place.exchange.storage.delete(lost[:1])
    with pytest.raises(Declined, match="could not be captured"):
        captured(stage)
    place.exchange.storage.delete([f"{key}/{path}" for path in listed(stage.query, place.exchange)])
    with pytest.raises(Declined, match="could not be captured"):
        captured(stage)
    sums.put(k1=2)
    with pytest.raises(Exception, match=r"CANNOT_LOAD_STATE_STORE|MISSING_STATE_DIRECTORY"):
        sums.run(stage)


def test_a_query_without_state_stays_on_the_disk(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    sums, stage = Sums(spark, tmp_path / "in"), place.attempt(1).stage(UID)
    sums.put(k1=1)
    sums.run(stage, spark.readStream.schema("k INT, v INT").json(str(tmp_path / "in")).where("v > 0"))
    assert sums.shown == {1: 1}
    assert exchange_with_state(stage.root) is None
    limited = spark.readStream.schema("k INT, v INT").json(str(tmp_path / "in")).limit(3)
    place_of_limit, _ = checkpoint_location(spark, UID, place.attempt(2).stage(UID).query, limited)
    assert place_of_limit.startswith("viewfs://")


def test_without_a_connector_state_is_refused(
    spark: SparkSession, tmp_path: Path, s3_apart: S3Server
) -> None:
    with place_of("s3", tmp_path, s3_apart) as place:
        spark.conf.set("fs.s3a.impl", "org.example.Nothing")
        sums, stage = Sums(spark, tmp_path / "in"), place.attempt(1).stage(UID)
        sums.put(k1=1)
        with pytest.raises(
            InvalidRequest, match=r"keeps state, which executors write through Spark's own connector"
        ):
            sums.run(stage)
        assert exchange_with_state(stage.root) is None


def test_state_that_names_its_folder_is_refused_where_executors_are_elsewhere_and_stays_on_one_machine(
    place: Place, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    frame, query = with_time_to_live(spark, tmp_path), place.attempt(1).stage(UID).query
    with pytest.raises(InvalidRequest, match=r"that all machines mount, or let one machine run the pipeline"):
        checkpoint_location(spark, UID, query, frame)
    monkeypatch.setattr(query_state, "is_local", lambda spark: True)
    assert checkpoint_location(spark, UID, query, frame) == (spark_uri(query), {})
