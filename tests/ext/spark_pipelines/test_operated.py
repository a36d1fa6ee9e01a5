"""A project is operated as any pipeline: killed, as a job of Dagster's, its tables as assets, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
from dagster.components.testing import create_defs_folder_sandbox

from dagster_ckpt import (
    CheckpointedPipelineComponent,
    InvalidRequest,
    NotFound,
    SparkSessionResource,
    build_pipeline_definitions,
    load_table,
)
from dagster_ckpt.cli.app import main
from tests.ext.spark_pipelines.conftest import Project
from tests.ext.spark_pipelines.test_projects import change, changes_tables, fan_in_tables, order
from tests.lab.lab import WITHOUT_CAPTURE, failure_text
from tests.root import ROOT
from tests.sweeps import third

KILLED_AT = {"before computing": 1, "before noting": 2, "before a commit": 2}


@pytest.mark.nightly
def test_a_killed_epoch_leaves_nothing_that_the_next_does_not_put_right(
    project: Callable[[str], Project],
) -> None:
    shop = project("fan_in")
    eu, us = [order("ann", 1)], [order("cid", 7)]
    shop.feed("eu", *eu)
    shop.feed("us", *us)
    shop.epoch()
    where = shop.coordinator.model_copy(update={"concurrent_runs": "take_over"})
    for call, number in third(KILLED_AT.items()):
        shop.feed("us", order("dan", 4))
        us.append(order("dan", 4))
        killed(shop, call, number)
        shop.feed("eu", order("eva", 2))
        eu.append(order("eva", 2))
        shop.epoch(where=where)
        assert shop.all_rows() == fan_in_tables(eu, us), call


def killed(project: Project, call: str, number: int) -> None:
    """Run an epoch in a process that ends before the ``number``-th call."""
    child = [
        sys.executable,
        "-m",
        "tests.ext.spark_pipelines.kill_child",
        str(project.root),
        call,
        str(number),
    ]
    done = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr[-2000:]


@pytest.mark.nightly
def test_changes_are_applied_once_though_an_epoch_is_killed_and_its_rows_are_forked_and_taken_back(
    project: Callable[[str], Project],
) -> None:
    crm = project("changes")
    said = [change(1, "ann", 1), change(2, "bob", 2), change(3, "cid", 3, "delete")]
    crm.feed("changes", *said)
    crm.epoch()
    late = [change(1, "old", 0), change(2, "bob", 9, "delete"), change(4, "dan", 1)]
    crm.feed("changes", *late)
    killed(crm, "before a commit", 1)
    later = [change(2, "late", 5), change(3, "cyd", 4)]
    crm.feed("changes", *later)
    crm.epoch(where=crm.coordinator.model_copy(update={"concurrent_runs": "take_over"}))
    everything = changes_tables([*said, *late, *later])
    assert crm.all_rows() == everything
    assert crm.fork_from("chk-1") == everything
    for number in (2, 3):
        (crm.root / "feed" / "changes" / f"{number:03}.json").unlink()
    crm.epoch(restore={"restore_from": "chk-1", "allow_missing_files": True})
    assert crm.all_rows() == changes_tables(said)


def test_its_tables_are_assets_of_dagster_and_load(project: Callable[[str], Project]) -> None:
    shop = project("fan_in")
    shop.feed("eu", order("ann", 1))
    shop.feed("us", order("cid", 7))
    pipeline = shop.pipeline()
    definitions = build_pipeline_definitions(
        pipeline, coordinator=shop.coordinator, spark=SparkSessionResource(master="local[2,3]")
    )
    graph = definitions.resolve_asset_graph()
    share, totals = (dg.AssetKey(["fan_in", name]) for name in ("share", "totals"))
    assert graph.get(share).parent_keys == {totals}
    assert graph.get(totals).parent_keys == {dg.AssetKey(["fan_in", "everything"])}
    regions = {dg.AssetKey(["fan_in", name]) for name in ("orders_eu", "orders_us")}
    for name in ("everything", "large_only"):
        assert graph.get(dg.AssetKey(["fan_in", name])).parent_keys == regions
    assert all(graph.get(key).parent_keys == set() for key in regions)
    with pytest.raises(NotFound, match="/share yet: it is made with the first rows"):
        load_table(pipeline, "share", coordinator=shop.coordinator)
    with dg.instance_for_test(overrides=WITHOUT_CAPTURE) as instance:
        result = definitions.resolve_job_def("fan_in").execute_in_process(
            instance=instance, raise_on_error=False
        )
        assert result.success, failure_text(result)
        [event] = instance.fetch_materializations(share, limit=5).records
        assert event.asset_materialization is not None
        assert event.asset_materialization.metadata["rows_added"].value == 2
    assert shop.all_rows() == fan_in_tables([order("ann", 1)], [order("cid", 7)])
    loaded = load_table(pipeline, "totals", coordinator=shop.coordinator)
    assert sorted(loaded.to_arrow().column("amount").to_pylist()) == [1, 7]
    assert loaded.to_spark(shop.spark).count() == 2
    with pytest.raises(
        InvalidRequest, match="'totals' is computed from other tables, and no snapshot holds its rows"
    ):
        load_table(pipeline, "totals", coordinator=shop.coordinator, as_of="chk-1")


@pytest.mark.nightly
def test_the_command_line_adopts_a_project(project: Callable[[str], Project], tmp_path: Path) -> None:
    shop = project("fan_in")
    for feed in ("eu", "us"):
        (shop.root / "feed" / feed).mkdir(parents=True)
    done = CliRunner().invoke(main, ["adopt-project", str(shop.root)])
    assert done.exit_code == 0, done.output
    assert "streaming table orders_eu: from orders_eu (stage orders_eu__flow)" in done.output
    assert "materialized view share: computed from spark_catalog.default.totals" in done.output
    assert "note: streaming table 'spark_catalog.default.large_only'" in done.output
    assert "cluster_by has no effect" in done.output
    graph = json.loads((shop.root / ".dagster_ckpt" / "graph.json").read_text())
    assert {one["uid"] for one in graph["datasets"]} >= {"everything", "totals", "share"}
    assert CliRunner().invoke(main, ["adopt-project", str(tmp_path / "none")]).exit_code == 3
    (shop.root / "transformations" / "more.sql").write_text("SELECT 1;")
    refused = CliRunner().invoke(main, ["adopt-project", str(shop.root)])
    assert refused.exit_code == 2
    assert "more.sql:1 has Project, which is not supported" in refused.output


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_a_component_names_a_project_in_place_of_stages(project: Callable[[str], Project]) -> None:
    shop = project("fan_in")
    for feed in ("eu", "us"):
        (shop.root / "feed" / feed).mkdir(parents=True)
    shop.pipeline()
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            CheckpointedPipelineComponent, defs_path="shop", scaffold_params={"pipeline": "shop"}
        )
        document = yaml.safe_load((path / "defs.yaml").read_text())
        document["attributes"]["spark_project"] = str(shop.root)
        (path / "defs.yaml").write_text(yaml.safe_dump(document))
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, defs):
            assert "shop_restore" in {job.name for job in defs.resolve_all_job_defs()}
            assert dg.AssetKey(["shop", "share"]) in defs.resolve_all_asset_keys()
