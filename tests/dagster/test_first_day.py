"""Mistakes of the first day: each is one sentence with the way out, where the pipeline is defined if that can be."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    InvalidRequest,
    PipelineOptions,
    RestartPolicy,
    SavepointSchedule,
    SparkSessionResource,
    build_pipeline_definitions,
    checkpointed_pipeline,
    spark_sink,
    spark_source,
    spark_stage,
)
from dagster_ckpt.core.restore_point import restore_point
from dagster_ckpt.dagster.resources import pipeline as resources
from dagster_ckpt.dagster.resources.pipeline import gone_with_container, why_not_written
from dagster_ckpt.dagster.start import refuse_impossible
from dagster_ckpt.spark.attempt.own_objects import StageArguments, call_stage

VALID = "use letters, digits and '_', beginning with a letter and no word of Dagster's own, such as name="
NOT_VALID = "Checkpoint configuration is not valid"
CRON = (
    "is no cron schedule: give five fields, minute hour day month weekday, such as '0 3 * * *' for every night at "
    "three"
)
CARRIED = "cannot be carried by Dagster, which names its jobs after it: " + VALID

OP = (
    "stage {0!r} of pipeline 'p' cannot be carried by Dagster, which names its op after it: it is a word of Dagster's "
    "or Python's own; use another, such as uid={1!r} (previous_uids=({0!r},) keeps its state)"
)
ASSET = (
    "sink {0!r} of pipeline 'p' has the asset 'p/checkpoints', and that is the checkpoints of pipeline 'p': give the "
    "sink another uid, or an asset of its own (asset='.../{1}')"
)

LONG = (
    f"the name of pipeline '{'p' * 64}' has 64 characters, and Dagster tags runs with it, by at most 63: give it a "
    "shorter name"
)


def named(name: str, *, source: str = "rows", sink: dict[str, str] | None = None, **settings: Any) -> Any:
    @spark_source(uid=source)
    def rows(spark: Any) -> Any:
        return spark

    @spark_sink(**(sink or {}))
    def table(rows: Any) -> Any:
        return rows

    @checkpointed_pipeline(name=name, **settings)
    def pipeline() -> None:
        table(rows())

    return pipeline


def stage(**settings: Any) -> Any:
    return spark_stage(**settings)(named)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda: spark_sink(keys=["a"])(named), "@spark_sink 'named': `keys`: did you mean `key`?"),
        (lambda: stage(partition=3), "@spark_stage 'named': `partition`: did you mean `partitions`?"),
        (lambda: stage(partitions=0), "'named' has partitions=0: give a number, at least 1"),
        (lambda: stage(partitions="4"), "'named' has partitions='4': give a number, at least 1"),
        (
            lambda: stage(output_mode="upsert"),
            "'named' has output_mode='upsert': give append, update or complete",
        ),
        (
            lambda: named("p", checkpoint={"interval": 1}),
            "@checkpointed_pipeline: `checkpoint`: did you mean `checkpointing`?",
        ),
        (
            lambda: PipelineOptions(max_checkpont_age=timedelta(hours=1)),  # type: ignore[call-arg]
            "PipelineOptions: `max_checkpont_age`: did you mean `max_checkpoint_age`?",
        ),
        (
            lambda: PipelineOptions(max_checkpoint_age=3600),  # type: ignore[arg-type]
            "max_checkpoint_age=3600 is no duration: give a timedelta, such as timedelta(hours=1)",
        ),
        (
            lambda: RestartPolicy(max_restart=3),  # type: ignore[call-arg]
            "RestartPolicy: `max_restart`: did you mean `max_restarts`?",
        ),
        (
            lambda: SavepointSchedule(cron="0 3 * * *"),  # type: ignore[call-arg]
            "SavepointSchedule: `cron`: did you mean `cron_schedule`?",
        ),
        (
            lambda: SavepointSchedule(cron_schedule="0 3 * *"),
            f"cron_schedule='0 3 * *' {CRON}",
        ),
        (
            lambda: SavepointSchedule(cron_schedule="0 3 * * *", timezone="Mars"),
            "timezone='Mars' is no time zone: give a name such as 'UTC' or 'Europe/Berlin'",
        ),
        (
            lambda: SparkSessionResource(mastr="local"),
            "SparkSessionResource: `mastr`: did you mean `master`?",
        ),
        (
            lambda: CheckpointCoordinatorResource(interval=0.001),
            f"{NOT_VALID}: interval must be at least 0.01 s, got 0.001: leave it out for no timer",
        ),
        (
            lambda: named("p", checkpointing={"mode": "once"}),
            f"{NOT_VALID}: mode: Input should be 'exactly_once' or 'at_least_once', got 'once'",
        ),
        (lambda: restore_point("latst"), "restore_from 'latst': did you mean 'latest'?"),
        (
            lambda: build_pipeline_definitions(named("my-orders")),
            f"pipeline 'my-orders' {CARRIED}'my_orders'",
        ),
        (lambda: build_pipeline_definitions(named("1st")), f"pipeline '1st' {CARRIED}'pipeline_1st'"),
        (
            lambda: build_pipeline_definitions(named("config")),
            f"pipeline 'config' {CARRIED}'pipeline_config'",
        ),
        (
            lambda: build_pipeline_definitions(named("orders"), named("orders_restore")),
            "pipeline 'orders_restore' has the name of a job of pipeline 'orders': give it another name",
        ),
        (
            lambda: build_pipeline_definitions(named("p" * 64)),
            LONG,
        ),
        (lambda: build_pipeline_definitions(named("p", source="input")), OP.format("input", "stage_input")),
        (
            lambda: build_pipeline_definitions(named("p", sink={"uid": "checkpoints"})),
            ASSET.format("checkpoints", "checkpoints"),
        ),
        (
            lambda: build_pipeline_definitions(named("p", sink={"uid": "t", "asset": "p/checkpoints"})),
            ASSET.format("t", "t"),
        ),
        (
            lambda: build_pipeline_definitions(stage()),
            "stage 'named' is no pipeline: give what @checkpointed_pipeline has made, or a list of these",
        ),
        (
            lambda: build_pipeline_definitions(named("p"), coordinator="/srv"),  # type: ignore[arg-type]
            "coordinator='/srv' is no CheckpointCoordinatorResource: give one, or one by pipeline",
        ),
        (
            lambda: build_pipeline_definitions(named("p"), options={"p": {}}),  # type: ignore[dict-item]
            "options={} are no options: give PipelineOptions(...), or these by pipeline",
        ),
    ],
)
def test_a_mistake_is_told_where_it_is_made(mistake: Callable[[], Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        mistake()
    assert str(refused.value) == said


def test_a_function_that_returns_nothing_is_told_so_when_it_is_called() -> None:
    nothing: Any = None
    with pytest.raises(InvalidRequest, match=r"^stage 'rows' returned nothing: end it with `return`"):
        call_stage(named("p").stages["rows"], nothing, (), StageArguments())


def test_a_list_of_pipelines_is_as_good_as_these_one_by_one() -> None:
    assert build_pipeline_definitions([named("orders"), named("bills")]).resolve_job_def("bills_restore")


@pytest.mark.parametrize(
    "setting", ["base_dir", "work_dir", "table_dir", "checkpoint_dir", "savepoint_dir", "store_url"]
)
def test_a_folder_that_cannot_be_made_is_told_by_its_setting(tmp_path: Path, setting: str) -> None:
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "x")
    value = f"sqlite:///{folder}/coordinator.db" if setting == "store_url" else folder
    resource = CheckpointCoordinatorResource(**{"base_dir": str(tmp_path / "base"), setting: value})
    with pytest.raises(InvalidRequest) as refused:
        refuse_impossible(resource, named("p"))
    assert str(refused.value) == (
        f"`{setting}`: the folder {folder} cannot be made, because {tmp_path / 'file'} is no folder: name another one"
    )
    assert not (tmp_path / "base").exists(), "nothing is made"


def test_a_folder_that_is_a_file_is_told_too_and_places_in_no_file_system_are_not_looked_at(
    tmp_path: Path,
) -> None:
    for place in ("s3://bucket/checkpoints", "", str(tmp_path), str(tmp_path / "new" / "folder")):
        assert not why_not_written(place)
    (tmp_path / "file").write_text("")
    assert why_not_written(f"file://{tmp_path}/file") == (
        f"cannot be written, because {tmp_path}/file is no folder"
    )


@pytest.mark.parametrize(
    ("mounted", "told"),
    [
        ("/ / rw - ext4 /dev/vda", False),
        ("/ / rw - overlay overlay", True),
        ("/ {base} rw - tmpfs tmpfs", True),
        ("/var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/lab {base} rw - ext4 /dev/vda", True),
        ("/volumes/pvc-1 {base} rw - ext4 /dev/vdb", False),
    ],
)
def test_places_that_go_with_a_container_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted: str, told: bool
) -> None:
    base = tmp_path / "lab"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 8:1 {mounted.format(base=base)}\n")
    monkeypatch.setattr(resources, "MOUNTS", mounts)
    resource = CheckpointCoordinatorResource(
        base_dir=str(base), store_url="postgresql://host/db", checkpoint_dir="s3://lake/checkpoints"
    )
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    said = gone_with_container(resource, named("p"), environment=pod)
    expected = (
        f"table_dir ({base}/tables/p), savepoint_dir ({base}/savepoints): on a disk of this container, which "
    )
    assert said.startswith(expected) if told else said == ""
    monkeypatch.setattr(resources, "CONTAINER_MARKS", ())
    assert gone_with_container(resource, named("p"), environment={}) == "", "this is no container"
