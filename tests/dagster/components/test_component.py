"""The component: scaffolded, loaded from YAML, wrong attributes refused."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox

from dagster_ckpt import CheckpointedPipelineComponent, InvalidRequest, extensions, load_table
from tests.examples.test_json_lines import register
from tests.root import ROOT

# Dagster's own use of its beta classes while it loads any component
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as made:
        yield made


def scaffolded(sandbox: DefsFolderSandbox, name: str = "orders", **attributes: Any) -> Path:
    """A folder as ``dg scaffold defs`` leaves it, its attributes extended."""
    path = sandbox.scaffold_component(
        CheckpointedPipelineComponent, defs_path=name, scaffold_params={"pipeline": name}
    )
    file = path / "defs.yaml"
    assert "#   store_url: {env: " in file.read_text(), "it says where secrets go"
    document = yaml.safe_load(file.read_text())
    document["attributes"].update(attributes)
    file.write_text(yaml.safe_dump(document))
    return path


def test_what_is_scaffolded_loads_and_operates_the_pipeline(sandbox: DefsFolderSandbox) -> None:
    path = scaffolded(sandbox)
    assert yaml.safe_load((path / "defs.yaml").read_text())["type"].endswith("CheckpointedPipelineComponent")
    with sandbox.load_component_and_build_defs(defs_path=path) as (component, defs):
        assert isinstance(component, CheckpointedPipelineComponent)
        names = {job.name for job in defs.resolve_all_job_defs()}
        assert {"orders", "orders_restore", "orders_savepoint", "orders_care"} <= names
        assert dg.AssetKey(["orders", "checkpoints"]) in defs.resolve_all_asset_keys()
        assert {"checkpoints_safety_net", "checkpoints_failure_alarm"} <= {s.name for s in defs.sensors or ()}
        coordinator = (defs.resources or {})["orders__checkpoint_coordinator"]
        assert coordinator.base_dir == str(sandbox.project_root.resolve() / ".checkpointed" / "orders")


def test_a_program_takes_the_place_of_stages(
    sandbox: DefsFolderSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(ROOT, tmp_path, monkeypatch)
    path = scaffolded(sandbox, program="job.py", arguments=["--fast"], interval_seconds=60)
    (path / "job.py").touch()
    with sandbox.load_component_and_build_defs(defs_path=path) as (_, defs):
        jobs = {job.name for job in defs.resolve_all_job_defs()}
        assert {"orders", "orders_restore", "orders_savepoint", "orders_care"} <= jobs
        assert "orders_streaming" not in jobs
        checks = {key.name for one in defs.asset_checks or () for key in one.check_keys}
        assert "checkpoint_verified" in checks
        assert "checkpoint_restorable" not in checks
    monkeypatch.undo()
    extensions._entries.cache_clear()


@pytest.mark.usefixtures("spark")
def test_what_is_scaffolded_runs_and_goes_back(sandbox: DefsFolderSandbox) -> None:
    path = scaffolded(sandbox)

    def totals() -> dict[int, int]:
        table = sandbox.project_root / ".checkpointed/orders/tables/orders/totals"
        return {row["bucket"]: row["count"] for row in load_table(table).to_arrow().to_pylist()}

    with (
        sandbox.load_component_and_build_defs(defs_path=path) as (_, defs),
        dg.instance_for_test() as instance,
    ):
        job = defs.resolve_job_def("orders")
        assert job.execute_in_process(instance=instance).success
        assert totals() == dict.fromkeys(range(10), 10)
        (path / "arrivals" / "0002.json").write_text('{"value": 7}\n')
        assert job.execute_in_process(instance=instance).success
        assert totals()[7] == 11
        back = {"ops": {"restore": {"config": {"restore_from": "chk-1"}}}}
        assert job.execute_in_process(instance=instance, run_config=back).success
        assert totals()[7] == 11  # the second file is read again


def test_every_group_of_attributes_reaches_what_it_is_about(sandbox: DefsFolderSandbox) -> None:
    path = scaffolded(
        sandbox,
        checkpoint_dir="s3://bucket/checkpoints",
        checkpoint_storage="store",
        savepoint_dir="./savepoints",
        interval_seconds=10,
        checkpointing={"num_retained": 5},
        savepoints={"cron_schedule": "0 3 * * *", "retain": 7, "retain_days": 30},
        alarm={"after_failures": 2, "max_age_seconds": 3600, "notify": "builtins:print"},
        restart={"max_restarts": 5, "delay_seconds": 1},
        tables="materializable",
        table_freshness_seconds=7200,
        spark={
            "master": "local[4,3]",
            "conf": {"spark.ui.enabled": "false"},
            "warm_engine": "./engine",
            "warm_engine_idle": "5 min",
        },
    )
    with sandbox.load_component_and_build_defs(defs_path=path) as (component, defs):
        assert isinstance(component, CheckpointedPipelineComponent)
        resources = defs.resources or {}
        assert resources["orders__checkpoint_coordinator"].checkpoint_dir == "s3://bucket/checkpoints"
        assert resources["orders__checkpoint_coordinator"].storage().base_uri == "store://checkpoints"
        assert resources["orders__checkpoint_coordinator"].savepoint_dir.endswith("/savepoints")
        assert resources["orders__spark"].master == "local[4,3]"
        assert resources["orders__spark"].warm_engine == str(sandbox.project_root.resolve() / "engine")
        assert resources["orders__spark"].warm_engine_idle == "5 min"
        assert resources["orders__spark"].class_archive == ""
        assert defs.resolve_schedule_def("orders_savepoint_schedule").cron_schedule == "0 3 * * *"
        assert "orders_restart" in {s.name for s in defs.sensors or ()}
        options = component.options()
        table = defs.resolve_asset_graph().get(dg.AssetKey(["orders", "totals"]))
        assert table.is_materializable
        assert table.freshness_policy is not None
        assert options.notify is print
        assert options.alarm_policy.max_age == 3600.0
        assert options.savepoints is not None
        assert options.savepoints.retention.keep_for == 30 * 86400.0


def test_the_steps_of_runs_are_executed_as_the_yaml_says(sandbox: DefsFolderSandbox) -> None:
    named = {"name": "multiprocess", "config": {"max_concurrent": 2}}
    with sandbox.load_component_and_build_defs(defs_path=scaffolded(sandbox, executor=named)) as (_, defs):
        executor = defs.resolve_job_def("orders").executor_def
        assert executor.name == "multiprocess"
        assert executor.apply_config_mapping({"config": {}}).value["config"]["max_concurrent"] == 2
    with sandbox.load_component_and_build_defs(defs_path=scaffolded(sandbox, "returns")) as (_, defs):
        assert defs.resolve_job_def("returns").executor_def is dg.in_process_executor


CLIENT = dg.PipesSubprocessClient()


def arguments(context: dg.OpExecutionContext) -> dict[str, Any]:
    """Return what the program of a run is started with."""
    return {"command": [sys.executable, "-c", f"print({context.run_id!r})"]}


@pytest.mark.parametrize(
    "launch",
    [
        {"arguments": {"command": [sys.executable, "-c", ""]}},
        {"client": f"{__name__}:CLIENT", "arguments": f"{__name__}:arguments"},
    ],
    ids=["in YAML", "by name"],
)
def test_the_program_that_the_yaml_names_is_launched_and_has_to_run_the_pipeline(
    sandbox: DefsFolderSandbox, launch: dict[str, Any]
) -> None:
    path = scaffolded(sandbox, launch=launch)
    with (
        sandbox.load_component_and_build_defs(defs_path=path) as (_, defs),
        dg.instance_for_test() as instance,
    ):
        result = defs.resolve_job_def("orders").execute_in_process(instance=instance, raise_on_error=False)
        [failed] = result.filter_events(lambda event: event.is_step_failure)
        told = str(failed.step_failure_data.user_failure_data)
        assert "the program ended, but " in told
        assert "does it call run_launched(orders, ...)" in told


def test_secrets_are_named_in_yaml_and_read_in_the_run(
    sandbox: DefsFolderSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_URL", "postgresql://me:x7Qm@host/db")
    path = scaffolded(
        sandbox,
        store_url={"env": "STORE_URL"},
        storage_options={"profile": "lake", "secret": {"env": "STORE_URL"}},
        spark={"conf": {"spark.hadoop.fs.s3a.secret.key": {"env": "STORE_URL"}}},
    )
    with sandbox.load_component_and_build_defs(defs_path=path) as (_, defs):
        coordinator = (defs.resources or {})["orders__checkpoint_coordinator"]
        spark = (defs.resources or {})["orders__spark"]
        assert coordinator.store_url == "STORE_URL"
        assert isinstance(coordinator.store_url, dg.EnvVar)
        assert coordinator.storage_options == {"profile": "lake", "secret": dg.EnvVar("STORE_URL")}
        assert isinstance(spark.conf["spark.hadoop.fs.s3a.secret.key"], dg.EnvVar)


def test_two_components_of_one_project_use_what_each_of_them_says(sandbox: DefsFolderSandbox) -> None:
    for name in ("orders", "returns"):
        scaffolded(sandbox, name, base_dir=f"./state/{name}")
    with sandbox.build_all_defs() as defs, dg.instance_for_test() as instance:
        dg.Definitions.validate_loadable(defs)
        assert len([sensor.name for sensor in defs.sensors or ()]) == 5, "both share them"
        safety_net = defs.resolve_sensor_def("checkpoints_safety_net")
        with dg.build_sensor_context(instance=instance) as context:
            tick = safety_net.evaluate_tick(context)
        assert {"orders", "returns"} <= set(json.loads(tick.cursor or "")["pipelines"])
        for name in ("orders", "returns"):
            result = defs.resolve_job_def(f"{name}_savepoint").execute_in_process(
                instance=instance,
                raise_on_error=False,
                run_config={"ops": {"savepoint": {"config": {"action": "stop"}}}},
            )
            [failed] = result.filter_events(lambda event: event.is_step_failure)
            assert "there is nothing to stop" in str(failed.step_failure_data.user_failure_data)
            assert (sandbox.project_root / "state" / name / "coordinator.db").exists()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"pipeline": "other"}, "defines no pipeline 'other'; its pipelines: orders"),
        ({"checkpointing": {"num_retained": 0}}, "num_retained"),
        ({"checkpointing": {"no_such_option": 1}}, "no_such_option"),
        ({"savepoints": {"cron_schedule": "0 3 * * *", "retain": 0}}, "keep_last must be at least 1"),
        ({"tables": "internal"}, "tables must be one of external, materializable"),
        ({"table_dir": "s3://bucket/tables"}, "table_dir is a URI (s3:) but has to be a local folder"),
        ({"store_url": {"environment": "X"}}, "store_url is text, or one key 'env'"),
        ({"spark": {"conf": {"a.b": {}}}}, "spark.conf.a.b is text, or one key 'env'"),
        ({"alarm": {"notify": "no_such_module:f"}}, "cannot be imported"),
        ({"alarm": {"notify": "builtins:__name__"}}, "is not a function"),
        (
            {"executor": {"name": "threads"}},
            "executor.name: 'threads' is no executor: give in_process or multi",
        ),
        (
            {"executor": {"name": "builtins:print"}},
            "'builtins:print' is no executor of Dagster's but builtin",
        ),
        (
            {"executor": {"name": "multiprocess", "config": {"max_procs": 2}}},
            "executor.config does not fit multiprocess: ",
        ),
        ({"launch": {"client": "no_such_module:f"}}, "launch.client: 'no_such_module:f' cannot be imported"),
        ({"launch": {"client": "builtins:dict"}}, "launch: client={} is no Pipes client"),
        ({"launch": {"client": "builtins:pow"}}, "'builtins:pow' cannot be called without arguments"),
        ({"launch": {"arguments": {"context": 1}}}, "launch: arguments has 'context', which the op gives"),
        ({"launch": {"arguments": "builtins:nothing"}}, "launch.arguments: 'builtins:nothing' cannot be"),
        (
            {"launch": {}, "executor": {"name": "multiprocess"}},
            "launch and executor: the stages of a launched",
        ),
    ],
)
def test_attributes_that_cannot_work_are_refused_in_one_sentence(
    sandbox: DefsFolderSandbox, attributes: dict[str, Any], message: str
) -> None:
    path = scaffolded(sandbox, **attributes)
    with (
        pytest.raises(Exception, match="CheckpointedPipelineComponent") as raised,
        sandbox.load_component_and_build_defs(defs_path=path),
    ):
        pass
    assert isinstance(raised.value.__cause__, InvalidRequest)
    assert message in str(raised.value.__cause__)


def test_dg_finds_the_component_by_the_name_people_write() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [module] = project["entry-points"]["dagster_dg_cli.registry_modules"].values()
    assert module == "dagster_ckpt"
    found = vars(__import__(module)).get("CheckpointedPipelineComponent")
    assert found is CheckpointedPipelineComponent
    assert "CheckpointedPipelineComponent" in dir(__import__(module))
