"""Several pipelines in one code location: each runs with the resources it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    SparkSessionResource,
    build_pipeline_definitions,
    checkpoints_asset_key,
)
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, spark_of
from tests.lab.pipelines import sink, source, wired

CHECKS = (
    "checkpoint_succeeded",
    "checkpoint_age",
    "checkpoint_verified",
    "checkpoint_restorable",
    "checkpoint_horizon",
    "late_rows",
)


def pipeline(name: str, **settings: Any) -> CheckpointedPipeline:
    return wired(name, source("rows", lambda spark: spark, **settings), sink("table", lambda rows: rows))


def definitions(folder: Path, name: str, **settings: Any) -> dg.Definitions:
    return build_pipeline_definitions(
        pipeline(name, **settings),
        coordinator=CheckpointCoordinatorResource(base_dir=str(folder)),
        spark=SparkSessionResource(app_name=folder.name),
    )


@pytest.mark.parametrize("folders", [("a", "a"), ("a", "b")], ids=["equal settings", "different settings"])
def test_pipelines_that_were_built_apart_run_together_each_with_its_own(
    instance: dg.DagsterInstance, tmp_path: Path, folders: tuple[str, str]
) -> None:
    merged = dg.Definitions.merge(
        *(definitions(tmp_path / f, n) for f, n in zip(folders, ("orders", "returns"), strict=True))
    )
    checks = dg.define_asset_job(
        "all_checks",
        selection=dg.AssetSelection.checks(
            *(
                dg.AssetCheckKey(checkpoints_asset_key(p.name), check)
                for p in (pipeline("orders"), pipeline("returns"))
                for check in CHECKS
            )
        ),
        executor_def=dg.in_process_executor,
    )
    merged = dg.Definitions.merge(merged, dg.Definitions(jobs=[checks]))
    dg.Definitions.validate_loadable(merged)
    for folder, name in zip(folders, ("orders", "returns"), strict=True):
        stop = merged.resolve_job_def(f"{name}_savepoint")
        config = {"ops": {"savepoint": {"config": {"action": "stop"}}}}
        stopped = stop.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
        assert not stopped.success
        assert (tmp_path / folder / "coordinator.db").exists(), "it looked for a stream there"
    found = merged.resolve_job_def("all_checks").execute_in_process(instance=instance)
    assert len(found.get_asset_check_evaluations()) == 2 * len(CHECKS)


def test_a_stage_that_asks_for_the_session_by_its_key_gets_its_pipelines_also_in_a_check(
    tmp_path: Path,
) -> None:
    asks = {"required_resource_keys": ["spark"]}
    merged = dg.Definitions.merge(
        definitions(tmp_path / "a", "orders", **asks), definitions(tmp_path / "b", "returns", **asks)
    )
    dg.Definitions.validate_loadable(merged)

    class Step:
        class resources:  # noqa: N801
            orders__spark = "of orders"
            returns__spark = "of returns"
            returns__checkpoint_coordinator = "coordinator of returns"
            other = "other"

    returns = pipeline("returns").name
    assert spark_of(Step, returns) == "of returns"
    assert coordinator_of(Step, returns) == "coordinator of returns"
