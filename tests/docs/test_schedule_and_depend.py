"""The code of docs/how-to/schedule-and-depend.md loads, and does what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import duckdb
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source
from tests.root import ROOT

PAGE = (ROOT / "docs" / "how-to" / "schedule-and-depend.md").read_text()
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # Dagster's own use of them


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """Names of the page's Python, beside a pipeline as the page has it."""

    @spark_source
    def source(spark: Any) -> Any:
        return spark

    @spark_sink(key=["customer"])
    def totals(source: Any) -> Any:
        return source

    @checkpointed_pipeline(name="orders")
    def orders() -> None:
        totals(source())

    pipelines = ModuleType("shop.pipelines")
    pipelines.orders = orders  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "shop", ModuleType("shop"))
        patch.setitem(sys.modules, "shop.pipelines", pipelines)
        names: dict[str, Any] = {"__name__": "shop.definitions"}
        code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
        exec(compile(code, "schedule-and-depend.md", "exec"), names)
    return names


def test_the_code_location_loads_and_its_own_test_passes(page: dict[str, Any]) -> None:
    dg.Definitions.validate_loadable(page["defs"])
    page["test_the_report_follows_a_checkpoint"]()


def test_the_sensor_asks_for_a_run_per_newest_file(page: dict[str, Any], tmp_path: Path) -> None:
    page["ARRIVALS"] = tmp_path
    with dg.build_sensor_context() as context:
        assert isinstance(page["new_orders"](context), dg.SkipReason)
        (tmp_path / "2026-01-01.json").touch()
        assert page["new_orders"](context).run_key == "2026-01-01.json"
        assert isinstance(page["new_orders"](context), dg.SkipReason)


def test_what_dbt_reads_is_what_readers_of_the_table_see(tmp_path: Path) -> None:
    [source] = re.findall(r"```yaml\n(# models/sources.yml.*?)```", PAGE, re.DOTALL)
    [table] = yaml.safe_load(source)["sources"][0]["tables"]
    meta = table["config"]["meta"]
    assert meta["dagster"]["asset_key"] == ["orders", "totals"]
    write_deltalake(str(tmp_path / "totals"), pa.table({"spent": [1]}))
    assert meta["plugin"] == "delta"
    place = meta["delta_table_path"].replace("/data/tables", str(tmp_path))
    rows = DeltaTable(place).to_pyarrow_table()
    assert duckdb.sql("select sum(spent) from rows").fetchall() == [(1,)]
    assert len(rows) == 1
