"""What Dagster makes of the events of tables: automation of what depends on them, staleness, freshness, checks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from dagster_ckpt import InvalidRequest, PipelineOptions, build_pipeline_definitions
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.dagster.reports.tables import changed_event, changed_result
from dagster_ckpt.spark.stage_report import TableChanged
from tests.dagster.tables.test_table_assets import shop

REPORT = dg.AssetKey("report")
TOTALS = dg.AssetKey(["lake", "totals"])
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # Dagster's own use of them


@dg.asset(deps=[TOTALS], automation_condition=dg.AutomationCondition.eager())
def report() -> None: ...


@dg.asset_check(asset=TOTALS)
def totals_are_positive() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True)


EVERY_HOUR = dg.AutomationCondition.cron_tick_passed("0 * * * *") & ~dg.AutomationCondition.in_progress()
"""Not ``on_cron``: that waits for news of what the sources name, which nobody may report."""
OPTIONS = {
    "external": PipelineOptions(table_freshness=timedelta(hours=2)),
    "materializable": PipelineOptions(
        tables="materializable",
        table_freshness=timedelta(hours=2),
        table_automation=EVERY_HOUR,
    ),
}


@pytest.fixture(params=OPTIONS)
def tables(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def definitions(tables: str) -> dg.Definitions:
    return dg.Definitions.merge(
        build_pipeline_definitions(shop(), options=OPTIONS[tables]),
        dg.Definitions(assets=[report], asset_checks=[totals_are_positive]),
    )


def change(checkpoint: int, epoch: int = 1, **more: Any) -> TableChanged:
    return TableChanged(
        uid=StageUid("totals"),
        place="/t",
        checkpoint_id=checkpoint,
        data_version=f"a.{epoch}.{checkpoint}",
        **more,
    )


def staleness(definitions: dg.Definitions, instance: dg.DagsterInstance) -> StaleStatus:
    resolver = CachingStaleStatusResolver(
        instance, definitions.resolve_asset_graph(), LoadingContextForTest(instance)
    )
    return resolver.get_status(REPORT)


def test_a_report_is_asked_for_when_a_checkpoint_brought_rows_and_once(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    def wanted(cursor: Any = None) -> Any:
        return dg.evaluate_automation_conditions(definitions, instance, cursor=cursor)

    first = wanted()
    assert first.get_num_requested(REPORT) == 0
    instance.report_runless_asset_event(changed_event(shop(), change(1, rows=3)))
    second = wanted(first.cursor)
    assert second.get_num_requested(REPORT) == 1
    assert wanted(second.cursor).get_num_requested(REPORT) == 0


def test_a_restore_that_takes_rows_back_makes_the_report_stale_and_asks_for_it_again(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    def report_runs() -> None:
        job = definitions.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=instance, asset_selection=[REPORT]).success

    instance.report_runless_asset_event(changed_event(shop(), change(1, rows=3)))
    instance.report_runless_asset_event(changed_event(shop(), change(2, rows=3)))
    report_runs()
    assert staleness(definitions, instance) is StaleStatus.FRESH
    before = dg.evaluate_automation_conditions(definitions, instance)
    back = change(1, epoch=2, taken_back="3 rows set aside")
    instance.report_runless_asset_event(changed_event(shop(), back))
    assert staleness(definitions, instance) is StaleStatus.STALE
    after = dg.evaluate_automation_conditions(definitions, instance, cursor=before.cursor)
    assert after.get_num_requested(REPORT) == 1
    report_runs()
    assert staleness(definitions, instance) is StaleStatus.FRESH


def test_tables_take_freshness_and_checks_and_materializable_ones_automation(
    definitions: dg.Definitions, tables: str
) -> None:
    graph = definitions.resolve_asset_graph()
    for key in (TOTALS, dg.AssetKey(["shop", "copies"])):
        node = graph.get(key)
        assert node.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=2))
        assert node.is_materializable == (tables == "materializable")
        assert (node.automation_condition is not None) == (tables == "materializable")
    assert dg.AssetCheckKey(TOTALS, "totals_are_positive") in graph.asset_check_keys
    dg.Definitions.validate_loadable(definitions)


def test_the_hour_asks_for_all_tables_of_a_pipeline_at_once(instance: dg.DagsterInstance) -> None:
    made = build_pipeline_definitions(shop(), options=OPTIONS["materializable"])
    at = datetime(2026, 1, 1, 10, 30, tzinfo=UTC)
    first = dg.evaluate_automation_conditions(made, instance, evaluation_time=at)
    second = dg.evaluate_automation_conditions(
        made, instance, evaluation_time=at + timedelta(hours=1), cursor=first.cursor
    )
    requested = {r.key.to_user_string() for r in second.results if r.true_subset.size}
    assert requested == {"lake/totals", "shop/copies"}


def test_rows_of_a_checkpoint_are_told_the_same_by_an_event_and_by_a_result() -> None:
    event, result = (
        changed_event(shop(), change(7, rows=12, bytes=99)),
        changed_result(shop(), change(7, rows=12, bytes=99)),
    )
    assert result.asset_key == event.asset_key
    assert result.data_version == dg.DataVersion(event.tags["dagster/data_version"])
    assert {**(result.metadata or {})}.items() >= event.metadata.items()
    assert (result.metadata or {})["change"] == event.description


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tables": "internal"}, "tables must be one of external, materializable, got 'internal'"),
        ({"table_automation": dg.AutomationCondition.eager()}, "set tables to materializable"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        PipelineOptions(**options)
