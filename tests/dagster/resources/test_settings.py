"""Settings given to the resource, the decorators and the component: as Flink writes them, and refused by name."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipelineComponent,
    build_pipeline_definitions,
    checkpointed_pipeline,
    spark_sink,
    spark_source,
    spark_stage,
)
from dagster_ckpt.core.config import STREAM_INTERVAL, CheckpointConfig, RestoreOptions
from dagster_ckpt.dagster.jobs.build import RunConfig
from dagster_ckpt.dagster.jobs.runs import StreamConfig
from dagster_ckpt.dagster.sensors.runs import restart_config
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.exchange.mounts import exchange_of


def small(**checkpointing: Any) -> Any:
    @spark_source
    def numbers(spark: Any) -> Any:
        return spark

    @spark_sink
    def rows(numbers: Any) -> Any:
        return numbers

    @checkpointed_pipeline(name="small", checkpointing=checkpointing)
    def pipeline() -> None:
        rows(numbers())

    return pipeline


# --- the resource -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"num_retaned": 5}, "CheckpointCoordinatorResource: `num_retaned`: did you mean `num_retained`\\?"),
        ({"restore_from": "chk-1"}, "`restore_from` says what a run starts from: give it in the run config"),
        ({"unaligned_forced": True}, "`unaligned_forced` is not supported: for loops in the graph"),
        (
            {"execution.checkpointing.create-subdir": True},
            "is not supported: every pipeline has a folder of its own",
        ),
        ({"num_retained": 0}, "num_retained: Input should be greater than or equal to 1, got 0"),
        ({"interval": "10 parsec"}, "interval: should be a duration: .*, got '10 parsec'"),
        ({"unaligned": True, "mode": "AT_LEAST_ONCE"}, "unaligned checkpoints need mode = exactly_once"),
    ],
)
def test_the_resource_refuses_when_it_is_made(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        CheckpointCoordinatorResource(**settings)


@pytest.mark.parametrize(
    "uri", ["s3://bucket/x", "gs:/bucket/x", "hdfs://host/x", "S3A://b", "file:x/y", "store://x"]
)
@pytest.mark.parametrize("setting", ["base_dir", "work_dir", "table_dir"])
def test_a_folder_of_queries_or_tables_is_no_uri(
    setting: str, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a path it silently was the folder ``s3:`` of the working directory."""
    if setting == "work_dir" and uri == "s3://bucket/x":
        uri = "s3:/bucket/x"  # with both slashes it is a bucket
    told = rf"{setting} is a URI \(\w+:\) but has to be a local folder.*Give a path or file:///path"
    with pytest.raises(InvalidRequest, match=told):
        CheckpointCoordinatorResource(**{setting: uri})
    monkeypatch.setenv("FOLDER", uri)
    later = CheckpointCoordinatorResource(**{"base_dir": "/data", setting: dg.EnvVar("FOLDER")})
    with pytest.raises(InvalidRequest, match=told), later.process_config_and_initialize_cm() as resource:
        _folders(resource)
    with pytest.raises(InvalidRequest, match="table_dir is a URI"):
        checkpointed_pipeline(name="small", table_dir=uri)(lambda: None)
    with pytest.raises(InvalidRequest, match="table_dir is a URI"):
        small().fork("other", table_dir=uri)


def _folders(resource: CheckpointCoordinatorResource) -> list[str]:
    return [
        str(folder)
        for folder in (resource.base, resource.resolved_work_dir, resource.resolved_table_dir(small()))
    ]


def test_a_bucket_for_queries_has_a_folder_of_the_drivers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one = CheckpointCoordinatorResource(base_dir=str(tmp_path), work_dir="s3://bucket/work/")
    scratch = one.resolved_work_dir
    assert scratch.is_relative_to(tmp_path)
    assert scratch.parent.stat().st_mode & 0o077 == 0
    exchange = exchange_of(scratch / "small")
    assert exchange is not None
    assert exchange.remote.uri == exchange.storage.base_uri == "s3://bucket/work"
    other = CheckpointCoordinatorResource(base_dir=str(tmp_path), work_dir="s3://bucket/other")
    assert other.resolved_work_dir != scratch
    odd = CheckpointCoordinatorResource(work_dir="s3://bucket/x", storage_options={"profile": "mine"})
    with pytest.raises(InvalidRequest, match="storage_options has 'profile'"):
        _ = odd.resolved_work_dir


def test_a_folder_may_be_written_as_a_file_uri() -> None:
    resource = CheckpointCoordinatorResource(
        base_dir="file:///data", work_dir="file:/work", table_dir="/t/s3:/x"
    )
    assert _folders(resource) == ["/data", "/work", "/t/s3:/x"]


def test_the_resource_takes_every_setting_and_flinks_way_of_writing() -> None:
    assert set(CheckpointConfig.model_fields) <= set(CheckpointCoordinatorResource.model_fields)
    keys = {
        "execution.checkpointing.interval": "10 min",
        "execution.checkpointing.mode": "AT_LEAST_ONCE",
        "execution.checkpointing.dir": "s3://bucket/checkpoints",
    }
    resource = CheckpointCoordinatorResource(base_dir="/tmp/x", timeout="1 h", **keys)  # type: ignore[arg-type]
    config = resource.checkpoint_config(small())
    assert (config.interval, config.mode, config.timeout) == (600.0, "at_least_once", 3600.0)
    assert resource.checkpoint_dir == "s3://bucket/checkpoints"


def test_every_setting_of_the_resource_reaches_the_run() -> None:
    given = {
        "interval": 1.0,
        "initial_delay": 2.0,
        "interval_during_backlog": 3.0,
        "mode": "exactly_once",
        "timeout": 4.0,
        "min_pause": 5.0,
        "max_concurrent_checkpoints": 1,
        "tolerable_failed_checkpoints": 6,
        "externalized_checkpoint_retention": "delete_on_cancellation",
        "num_retained": 7,
        "retention": {"keep_last": 3, "hourly": 24, "daily": 7},
        "checkpoint_storage": "store",
        "savepoint_dir": "/tmp/savepoints",
        "incremental": False,
        "checkpoints_after_tasks_finish": False,
        "aligned_checkpoint_timeout": 9.0,
        "unaligned": True,
        "instant_cuts": False,
        "local_backup": True,
        "pause_sources_until_first_checkpoint": True,
        "operator_chaining": True,
    }
    assert set(given) == set(CheckpointConfig.model_fields)
    config = CheckpointCoordinatorResource(base_dir="/tmp/x", **given).checkpoint_config(small())  # type: ignore[arg-type]
    assert config.model_dump(mode="json") == given


def test_a_value_of_the_environment_is_read_in_the_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "7")
    seen: list[Any] = []

    @dg.op(required_resource_keys={"coordinator"})
    def look(context: dg.OpExecutionContext) -> None:
        seen.append(context.resources.coordinator.checkpoint_config(small()).num_retained)

    @dg.graph
    def looking() -> None:
        look()

    resource = CheckpointCoordinatorResource(num_retained=dg.EnvVar.int("KEPT"))
    assert looking.to_job(resource_defs={"coordinator": resource}).execute_in_process().success
    assert seen == [7]


def test_dagsters_run_config_of_the_resource_takes_units() -> None:
    seen: list[Any] = []

    @dg.op(required_resource_keys={"coordinator"})
    def look(context: dg.OpExecutionContext) -> None:
        seen.append(context.resources.coordinator.checkpoint_config(small()).timeout)

    @dg.graph
    def looking() -> None:
        look()

    job = looking.to_job(resource_defs={"coordinator": CheckpointCoordinatorResource()})
    for value in ("2 min", 3.5):
        config = {"resources": {"coordinator": {"config": {"timeout": value}}}}
        assert job.execute_in_process(run_config=config).success
    assert seen == [120.0, 3.5]


# --- pipeline and run config ------------------------------------------------------------------------------------


def test_run_over_pipeline_over_resource() -> None:
    resource = CheckpointCoordinatorResource(
        base_dir="/tmp/x", timeout=1, min_pause=1, num_retained=2, interval=60
    )
    pipeline = small(**{"execution.checkpointing.timeout": "2 s", "min_pause": 2})
    run = RunConfig(checkpointing={"timeout": "3 s", "execution.state-recovery.path": "chk-3"})
    config = resource.checkpoint_config(pipeline, run.settings())
    assert (config.timeout, config.min_pause, config.num_retained, config.interval) == (3.0, 2.0, 2, 60.0)
    assert run.options() == RestoreOptions(restore_from="chk-3")
    assert resource.checkpoint_config(pipeline, {"interval": "5 min"}).of_stream.interval == 300.0
    assert config.of_epoch.interval is None, "an epoch ends with its checkpoint"
    assert config.of_epoch.of_stream.interval == STREAM_INTERVAL


def test_where_checkpoints_live_is_not_a_runs_to_change() -> None:
    resource = CheckpointCoordinatorResource(base_dir="/tmp/x")
    with pytest.raises(
        InvalidRequest, match="`checkpoint_storage` says where a pipeline's checkpoints live, also"
    ):
        resource.checkpoint_config(small(), {"execution.checkpointing.storage": "jobmanager"})


def test_a_run_that_names_two_restore_points_is_refused() -> None:
    run = RunConfig(restore_from="chk-2", checkpointing={"execution.state-recovery.path": "chk-3"})
    with pytest.raises(
        InvalidRequest, match="`restore_from` is given twice: as `restore_from` = 'chk-2' and as"
    ):
        run.options()


def test_a_restart_keeps_the_settings_and_not_the_restore_point() -> None:
    given = {"timeout": "3 s", "execution.state-recovery.path": "chk-3"}
    config = restart_config(
        {"ops": {"restore": {"config": {"checkpointing": given}}}}, op="restore", claimed=True
    )
    assert config == {
        "ops": {"restore": {"config": {"checkpointing": {"timeout": "3 s"}, "restore_from": "latest"}}}
    }


def test_in_flight_data_is_left_out_by_the_run_config() -> None:
    assert RunConfig(without_channel_state_of=4).options().without_channel_state_of == 4
    key = "execution.state-recovery.without-channel-state.checkpoint-id"
    assert StreamConfig(checkpointing={key: 4}).options().without_channel_state_of == 4


def test_restart_strategies_are_read_as_flink_writes_them() -> None:
    assert (
        StreamConfig(restart_strategy="fixed-delay").strategy()
        == StreamConfig(restart_strategy="fixed_delay").strategy()
    )


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"checkpointin": {}}, "@checkpointed_pipeline: `checkpointin`: did you mean `checkpointing`\\?"),
        ({"num_retained": 3}, "`num_retained` says how checkpoints are taken: give it in `checkpointing`"),
        ({"checkpointing": {"num_retaned": 3}}, "`num_retaned`: did you mean `num_retained`\\?"),
        (
            {"checkpointing": {"checkpoints_dir": "/c"}},
            "did you mean `checkpoint_dir`\\? It says where checkpoints live",
        ),
        ({"checkpointing": {"restore_from": "x"}}, "`restore_from` says what a run starts from"),
    ],
)
def test_the_pipeline_refuses_when_it_is_defined(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):

        @checkpointed_pipeline(**settings)
        def pipeline() -> None:
            pass


def stage(numbers: Any) -> Any:
    return numbers


@pytest.mark.parametrize(
    ("decorator", "settings", "why"),
    [
        (
            spark_source,
            {"previous_uid": ["a"]},
            "@spark_source 'stage': `previous_uid`: did you mean `previous_uids`",
        ),
        (
            spark_source,
            {"max_entries_per_trigger": 3},
            "`max_entries_per_trigger` is none of the settings here",
        ),
        (spark_stage, {"partitons": 3}, "@spark_stage 'stage': `partitons`: did you mean `partitions`\\?"),
        (spark_stage, {"table": "t"}, "@spark_stage 'stage': `table` is none of the settings here"),
        (spark_stage, {"is_backlog": lambda _: True}, "is no source: only a source has a backlog"),
        (spark_sink, {"keys": ["a"]}, "@spark_sink 'stage': `keys`: did you mean `key`\\?"),
    ],
)
def test_a_stage_refuses_what_it_does_not_have(decorator: Any, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        decorator(**settings)(stage)


def test_what_no_checkpoint_can_be_taken_with_is_refused_when_definitions_are_built() -> None:
    resource = CheckpointCoordinatorResource(base_dir="/tmp/x", max_concurrent_checkpoints=2)
    with pytest.raises(
        InvalidRequest, match="unaligned checkpoints allow max_concurrent_checkpoints = 1 only"
    ):
        build_pipeline_definitions(small(unaligned=True), coordinator=resource)


# --- the component ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")
@pytest.mark.parametrize(
    ("yaml", "why"),
    [
        ("stage: x.py", "`stage`: did you mean `stages`\\?"),
        ("num_retaned: 3", "`num_retaned`: did you mean `num_retained`\\? It says how checkpoints are taken"),
        ("savepoints: {cron_schedul: '0 3 * * *'}", "`cron_schedul`: did you mean `cron_schedule`\\?"),
    ],
)
def test_the_component_refuses_unknown_attributes(yaml: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        CheckpointedPipelineComponent.resolve_from_yaml(f"pipeline: small\n{yaml}\n")
