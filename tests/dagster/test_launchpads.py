"""What the Launchpad of each job begins with: the settings that matter for it, and no resource's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.remote_representation.external_data import ResourceConfigEnvVarSnap, ResourceSnap
from dagster._core.snap import JobSnap
from dagster._core.snap.snap_to_yaml import default_values_yaml_from_type_snap

from dagster_ckpt import CheckpointCoordinatorResource, build_pipeline_definitions
from dagster_ckpt.dagster.names import COORDINATOR_KEY
from tests.spark.epoch.small_pipeline import shop


@pytest.fixture
def definitions(tmp_path: Path) -> dg.Definitions:
    pipeline = shop(tmp_path)
    coordinator = CheckpointCoordinatorResource(
        base_dir=str(tmp_path / "base"), store_url=dg.EnvVar("SHOP_STORE"), num_retained=7
    )
    return build_pipeline_definitions(
        pipeline, pipeline.fork("shop_green", table_dir=str(tmp_path / "green")), coordinator=coordinator
    )


def shown(job: dg.JobDefinition) -> Any:
    """What the UI fills the Launchpad with: the webserver makes it of the job's snapshot by this function."""
    snap = JobSnap.from_job_def(job)
    schema = snap.config_schema_snapshot
    root = snap.mode_def_snaps[0].root_config_key
    assert root is not None
    return yaml.safe_load(default_values_yaml_from_type_snap(schema, schema.get_config_snap(root))) or {}


WANTED: dict[str, Any] = {
    "shop": {"restore": {"restore_from": "latest"}},
    "shop_restore": {"restore": {"restore_from": "latest"}},
    "shop_streaming": {
        "stream": {"restart_strategy": "exponential_delay", "restore_from": "latest", "trigger_interval": 0.0}
    },
    "shop_savepoint": {
        "savepoint": {
            "action": "savepoint",
            "labels": {},
            "name": "",
            "note": "",
            "target": "",
            "wait_for_run": 0.0,
        }
    },
    "shop_care": {"care": {"action": "maintain", "dry_run": False}},
    "shop_green_care": {"care": {"action": "maintain", "dry_run": False}},
}


@pytest.mark.parametrize("job", WANTED)
def test_a_launchpad_shows_the_settings_that_matter_for_its_job(
    definitions: dg.Definitions, job: str
) -> None:
    found = shown(definitions.resolve_job_def(job))
    assert found == {"ops": {op: {"config": c} for op, c in WANTED[job].items()}}


def test_no_job_of_a_pipeline_shows_settings_of_resources(definitions: dg.Definitions) -> None:
    """Neither do jobs of Dagster's own, which have the resources of the code location."""
    jobs = definitions.resolve_all_job_defs()
    names = {job.name for job in jobs}
    assert {"shop_care", "shop_restore", "shop_savepoint"} < names
    assert any(name.startswith("__ASSET_JOB") for name in names), "what Materialize runs"
    assert {job.name: shown(job).get("resources") for job in jobs if shown(job).get("resources")} == {}


def test_the_page_of_a_resource_shows_all_settings_as_they_are_set(definitions: dg.Definitions) -> None:
    """And nothing of the environment."""
    repository = definitions.get_repository_def()
    key = "shop__checkpoint_coordinator"
    snap = ResourceSnap.from_def(
        repository.get_top_level_resources()[key],
        key,
        {},
        {},
        {},
        {},
        {},
        {},
    )
    assert snap.resource_type.endswith("CheckpointCoordinatorResource")
    assert snap.configured_values["num_retained"] == "7"
    assert snap.configured_values["store_url"] == ResourceConfigEnvVarSnap(name="SHOP_STORE")
    defaults = {field.name: field.default_value_as_json_str for field in snap.config_field_snaps}
    assert (defaults["mode"], defaults["num_retained"]) == ('"exactly_once"', "3")


def test_a_check_of_dagsters_own_job_runs_with_the_settings_of_the_code(tmp_path: Path) -> None:
    pipeline = shop(tmp_path)
    coordinator = CheckpointCoordinatorResource(base_dir=str(tmp_path / "base"))
    definitions = build_pipeline_definitions(pipeline, coordinator=coordinator)
    verified = dg.AssetCheckKey(dg.AssetKey(["shop", "checkpoints"]), "checkpoint_verified")
    checks = dg.define_asset_job("checks", selection=dg.AssetSelection.checks(verified))
    whole = dg.Definitions.merge(definitions, dg.Definitions(jobs=[checks]))
    result = whole.resolve_job_def("checks").execute_in_process(raise_on_error=False)
    assert (tmp_path / "base" / "coordinator.db").exists()
    assert result.success


def test_settings_that_are_written_there_count_and_others_are_as_the_code_says(
    definitions: dg.Definitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_STORE", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    job = definitions.resolve_job_def("shop_care")
    resources = {COORDINATOR_KEY: job.resource_defs[COORDINATOR_KEY]}
    with dg.build_resources(resources) as opened:
        plain: CheckpointCoordinatorResource = getattr(opened, COORDINATOR_KEY)
        assert (plain.num_retained, plain.interval) == (7, 0.0)
        assert plain.resolved_store_url.endswith("elsewhere.db"), "from the environment, when it is opened"
    given = {COORDINATOR_KEY: {"config": {"interval": "10 min"}}}
    with dg.build_resources(resources, resource_config=given) as opened:
        own: CheckpointCoordinatorResource = getattr(opened, COORDINATOR_KEY)
        assert (own.num_retained, own.interval) == (7, "10 min")
    wrong = {
        "ops": {"care": {"config": {"action": "verify"}}},
        "resources": {COORDINATOR_KEY: {"config": {"nux": 1}}},
    }
    with pytest.raises(dg.DagsterInvalidConfigError, match="nux"):
        dg.validate_run_config(job, wrong)
