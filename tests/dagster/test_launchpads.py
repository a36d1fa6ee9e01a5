"""What the Launchpad of each job begins with: the settings that matter for it, and no resource's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
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
    "shop_gated_restore": {"restore": {"restore_from": "latest"}},
    "shop_streaming": {
        "stream": {"restart_strategy": "exponential_delay", "restore_from": "latest", "trigger_interval": 0.0}
    },
    "shop_checkpoint": {"checkpoint": {"scope": "configured", "wait_for_run": 0.0}},
    "shop_preview": {"preview": {"restore_from": "latest", "try_queries": True}},
    "shop_dispose": {"dispose": {"dry_run": False}},
    "shop_maintain": {"maintain": {"dry_run": False}},
    "shop_green_compare": {},
    "shop_green_swap": {"swap": {"approved": "", "readers": "to_fork"}},
    "shop_green_replay": {"replay": {"again": False}},
}


@pytest.mark.parametrize("job", WANTED)
def test_a_launchpad_shows_the_settings_that_matter_for_its_job(
    definitions: dg.Definitions, job: str
) -> None:
    found = shown(definitions.resolve_job_def(job))
    assert found == ({"ops": {op: {"config": c} for op, c in WANTED[job].items()}} if WANTED[job] else {})


def test_no_job_of_a_pipeline_shows_settings_of_resources(definitions: dg.Definitions) -> None:
    """But for those that run checks: they are Dagster's own, with the resources of the code location."""
    jobs = [job for job in definitions.resolve_all_job_defs() if not job.name.startswith("__")]
    jobs = [job for job in jobs if not job.name.endswith(("_verify", "_dry_run"))]
    assert len(jobs) > 20
    assert {job.name: shown(job).get("resources") for job in jobs if shown(job).get("resources")} == {}


def test_settings_that_are_written_there_count_and_others_are_as_the_code_says(
    definitions: dg.Definitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_STORE", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    job = definitions.resolve_job_def("shop_dispose")
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
        "ops": {"dispose": {"config": {"savepoint": "savepoint-1"}}},
        "resources": {COORDINATOR_KEY: {"config": {"nux": 1}}},
    }
    with pytest.raises(dg.DagsterInvalidConfigError, match="nux"):
        dg.validate_run_config(job, wrong)
