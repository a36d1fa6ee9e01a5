"""The reference deployment's report, on the truth, and that its code location loads."""

from __future__ import annotations

from xml.etree import ElementTree

import dagster as dg
import pandas as pd
import pytest

import definitions
from assets import truth
from assets.reports import _airports, _plot


def test_the_plot_has_a_line_per_airport_with_a_point_per_day() -> None:
    delays = truth.airport_delays(range(1, 32))
    lines = ElementTree.fromstring(_plot(delays)).findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [31, 31, 31]
    assert "| EWR | 31 |" in _airports(delays)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_table_that_is_nearly_empty_makes_a_report_too(rows: int) -> None:
    delays: pd.DataFrame = truth.airport_delays([2]).head(rows)
    ElementTree.fromstring(_plot(delays))
    assert _airports(delays).count("\n") == 1 + rows


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_the_code_location_loads_and_asks_for_the_report_after_a_checkpoint() -> None:
    dg.Definitions.validate_loadable(definitions.defs)
    report = dg.AssetKey("delays_report")
    tables = [dg.AssetKey(["flights", name]) for name in ("airport_delays", "tail_totals")]
    with dg.instance_for_test() as instance:
        before = dg.evaluate_automation_conditions(definitions.defs, instance)
        for key in tables:
            instance.report_runless_asset_event(dg.AssetMaterialization(key))
        after = dg.evaluate_automation_conditions(definitions.defs, instance, cursor=before.cursor)
    assert (before.get_num_requested(report), after.get_num_requested(report)) == (0, 1)
