"""Downstream assets of published tables: loaded in the body, or handed in by the IO manager.

Annotations are evaluated: Dagster reads them.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    build_pipeline_definitions,
    load_table,
    published_tables_io_manager,
)
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.dagster.names import COORDINATOR_KEY, own_resource_key
from dagster_ckpt.dagster.tables import PublishedTablesIOManager
from dagster_ckpt.sinks import DeltaTable
from tests.ext.delta.test_delta_table import begun as delta_run
from tests.operations.readers.three_tables import Process, Shop
from tests.spark.epoch.small_pipeline import shop
from tests.tables import Attempt

LINES = dg.AssetKey(["shop", "lines"])


@pytest.fixture
def definitions(tmp_path: Path) -> dg.Definitions:
    """A pipeline with a table of its own and a named one that have rows, and assets downstream of them."""
    totals = delta_run(tmp_path)
    totals.batch([(7, 70)])
    totals.publish(1)
    pipeline = shop(tmp_path / "feed")
    delta = replace(pipeline.stages[StageUid("totals")], to=DeltaTable(totals.sink.place))
    pipeline = replace(pipeline, stages={**pipeline.stages, delta.uid: delta})
    attempt = Attempt(tmp_path / "tables" / "lines", tmp_path / "stage", pipeline.name)
    attempt.batch([(1, 10), (2, 20)])
    attempt.publish(attempt.cut(1))

    @dg.asset(deps=[LINES])
    def in_the_body(shop__checkpoint_coordinator: CheckpointCoordinatorResource) -> int:
        lines = load_table(pipeline, "lines", coordinator=shop__checkpoint_coordinator).to_polars()
        return int(lines["v"].sum())

    @dg.asset(
        ins={
            "lines": dg.AssetIn(LINES, input_manager_key="published_tables"),
            "totals": dg.AssetIn(dg.AssetKey(["shop", "totals"]), input_manager_key="published_tables"),
        }
    )
    def handed_in(context: dg.AssetExecutionContext, lines: pd.DataFrame, totals: pl.DataFrame) -> None:
        context.add_output_metadata({"sum": int(lines["v"].sum() + totals["v"].sum())})

    def taking(form: Any) -> dg.AssetsDefinition:
        def body(lines: Any) -> str:
            return type(lines).__name__

        body.__annotations__["lines"] = form
        ins = {"lines": dg.AssetIn(LINES, input_manager_key="published_tables")}
        return dg.asset(name=f"as_{form.__name__.lower()}", ins=ins)(body)

    forms = [taking(form) for form in (pa.Table, pl.LazyFrame, duckdb.DuckDBPyRelation, Any, int)]
    made = build_pipeline_definitions(
        pipeline,
        coordinator=CheckpointCoordinatorResource(base_dir=str(tmp_path), table_dir=str(tmp_path / "tables")),
    )
    downstream = dg.Definitions(
        assets=[in_the_body, handed_in, *forms],
        resources={
            "published_tables": published_tables_io_manager(pipeline),
            "io_manager": dg.mem_io_manager,
        },
    )
    return dg.Definitions.merge(made, downstream)


def materialized(definitions: dg.Definitions, *names: str) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(
        asset_selection=[dg.AssetKey(name) for name in names],
        resources=dict(definitions.resources or {}),
        raise_on_error=False,
    )


def test_a_downstream_asset_loads_the_table_in_its_body(definitions: dg.Definitions) -> None:
    result = materialized(definitions, "in_the_body")
    assert result.success
    assert result.output_for_node("in_the_body") == 30


def test_the_io_manager_hands_tables_in_as_they_are_annotated(
    definitions: dg.Definitions,
) -> None:
    result = materialized(definitions, "handed_in")
    assert result.success
    [event] = result.asset_materializations_for_node("handed_in")
    assert event.metadata["sum"].value == 100
    forms = materialized(definitions, "as_table", "as_lazyframe", "as_duckdbpyrelation", "as_any")
    assert forms.success
    given = [
        forms.output_for_node(f"as_{name}") for name in ("table", "lazyframe", "duckdbpyrelation", "any")
    ]
    assert given == ["Table", "LazyFrame", "DuckDBPyRelation", "VersionedRows"]


def test_a_form_nobody_knows_is_refused(definitions: dg.Definitions) -> None:
    result = materialized(definitions, "as_int")
    [failed] = result.get_step_failure_events()
    assert "cannot be given as builtins.int" in str(failed.step_failure_data.error)


def test_all_inputs_of_a_step_are_of_one_checkpoint_and_those_of_the_next_step_of_a_newer_one(
    tmp_path: Path,
) -> None:
    """Between the loads of two inputs the pipeline goes on."""
    places = Shop.begun(tmp_path / "shop")
    process = Process(places)
    process.checkpoint(1)

    class GoesOn(PublishedTablesIOManager):
        def load_input(self, context: dg.InputContext) -> Any:
            found = super().load_input(context)
            process.checkpoint(2)
            return found

    keys = {uid: dg.AssetKey(["shop", uid]) for uid in ("orders", "totals")}
    ins = {uid: dg.AssetIn(key, input_manager_key="published_tables") for uid, key in keys.items()}

    @dg.asset(ins=ins)
    def first(orders: pa.Table, totals: pa.Table) -> list[int]:
        return [sum(orders["v"].to_pylist()), sum(totals["v"].to_pylist())]

    @dg.asset(ins=ins, deps=[first])
    def second(orders: pa.Table, totals: pa.Table) -> list[int]:
        return [sum(orders["v"].to_pylist()), sum(totals["v"].to_pylist())]

    manager = dg.IOManagerDefinition(
        resource_fn=lambda context: GoesOn(places.pipeline, resources=context.resources),
        required_resource_keys={own_resource_key(places.pipeline.name, COORDINATOR_KEY)},
    )
    done = dg.materialize(
        [*(dg.AssetSpec(key) for key in keys.values()), first, second],
        selection=[first, second],
        resources={
            "published_tables": manager,
            own_resource_key(places.pipeline.name, COORDINATOR_KEY): places,
        },
    )
    assert done.output_for_node("first") == [1, 1]
    assert done.output_for_node("second") == [5, 5]
