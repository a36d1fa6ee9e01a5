"""Tables that are materialized from Dagster, on real Spark: two pipelines with their own coordinators, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    PipelineOptions,
    SparkSessionResource,
    build_pipeline_definitions,
)
from tests.browser.till import ORDER, Till, read_spent
from tests.lab.lab import Lab, failure_text, lab
from tests.lab.pipelines import reads, sink, wired
from tests.spark.epoch.small_pipeline import Feed
from tests.spark.epoch.test_chains import CHAINED, fussy

__all__ = ["lab"]

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")


def till_pipeline(name: str, folder: Path) -> CheckpointedPipeline:
    return wired(
        name,
        reads("orders", ORDER, folder),
        sink(
            "totals",
            lambda orders: orders.groupBy("customer").agg({"amount": "sum"}).toDF("customer", "spent"),
            key=["customer"],
        ),
    )


class Shops:
    """Two pipelines that were built apart, and a report that depends on both tables."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.tills = {name: Till(lab.folder / name / "till") for name in ("north", "south")}
        self.reported = 0

        @dg.asset(deps=[["north", "totals"], ["south", "totals"]])
        def report() -> None:
            self.reported += 1

        self.definitions = dg.Definitions.merge(
            *(
                build_pipeline_definitions(
                    till_pipeline(name, till.folder),
                    coordinator=CheckpointCoordinatorResource(base_dir=str(lab.folder / name)),
                    spark=SparkSessionResource(master="local[2,3]"),
                    options=PipelineOptions(tables="materializable"),
                )
                for name, till in self.tills.items()
            ),
            dg.Definitions(assets=[report]),
        )

    def materialize(self, *keys: str, **restore: str) -> dg.ExecuteInProcessResult:
        """Press the button, for these assets."""
        ops = {"north__tables": {"config": restore}} if restore else {}
        result = self.definitions.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.lab.instance,
            asset_selection=[dg.AssetKey.from_user_string(key) for key in keys],
            run_config={"ops": ops},
            raise_on_error=False,
        )
        assert result.success, failure_text(result)
        return result

    def table(self, name: str) -> dict[str, int]:
        return read_spent(self.lab.folder / name / "tables" / name)


def versions(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """Data versions of the tables materialized, by asset."""
    found = [
        event.step_materialization_data.materialization for event in result.get_asset_materialization_events()
    ]
    return {
        m.asset_key.to_user_string(): (m.tags or {})["dagster/data_version"]
        for m in found
        if m.asset_key.path[-1] == "totals"
    }


def test_materialize_runs_an_epoch_of_each_pipeline_and_only_tables_with_new_rows_are_materialized(
    lab: Lab,
) -> None:
    shops = Shops(lab)
    for till in shops.tills.values():
        till.order("ann", 5)
    both = ("north/totals", "south/totals")
    first = shops.materialize(*both, "report")
    assert {name: shops.table(name) for name in shops.tills} == {"north": {"ann": 5}, "south": {"ann": 5}}
    assert versions(first).keys() == set(both)
    assert shops.reported == 1, "what depends on them runs in the same run"

    shops.tills["north"].order("bob", 7)
    second = shops.materialize(*both)
    assert shops.table("north") == {"ann": 5, "bob": 7}
    assert versions(second).keys() == {"north/totals"}

    restored = shops.materialize("north/totals", restore_from="chk-1")
    assert shops.table("north") == {"ann": 5, "bob": 7}, "rows taken back were read again"
    assert versions(restored)["north/totals"] not in {versions(r)["north/totals"] for r in (first, second)}

    # the job of ops is there as ever, and goes on from the same checkpoints
    shops.tills["south"].order("cleo", 1)
    job = shops.definitions.resolve_job_def("south").execute_in_process(instance=lab.instance)
    assert versions(job).keys() == {"south/totals"}
    assert shops.table("south") == {"ann": 5, "cleo": 1}


@CHAINED
def test_a_stage_of_a_chain_has_the_config_that_the_run_of_its_table_gives(lab: Lab, tmp_path: Path) -> None:
    feed, seen = Feed(tmp_path), list[Any]()
    feed.order(("ann", 1), ("bob", 2))
    definitions = build_pipeline_definitions(
        fussy(tmp_path, seen),
        coordinator=lab.coordinator,
        spark=SparkSessionResource(master="local[2,3]"),
        options=PipelineOptions(tables="materializable"),
    )
    config = {"fussy__tables": {"config": {"stages": {"orders": {"limit": 1}}}}}
    result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=lab.instance, run_config={"ops": config}, raise_on_error=False
    )
    assert result.success, failure_text(result)
    assert {limit for _, limit in seen} == {1}
