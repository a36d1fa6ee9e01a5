"""The two ways to restore from Dagster's UI, clicked in a real browser, to the rows and what depends on their table.

They also hold the address of the Launchpad, which the UI does not document.
"""

from __future__ import annotations

import contextlib
import itertools
import re

import pytest
from playwright.sync_api import Locator, Page, Response, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from dagster_ckpt.dagster.launchpad import restore_link
from dagster_ckpt.dagster.names import RESTORE_TAG
from tests.browser.clicking import opened_partitions
from tests.browser.conftest import Shop
from tests.browser.till import read_spent
from tests.progress import wait_until

FILLED_IN = re.compile("restore_from: '?chk-000001'?")
"""In the Launchpad's editor."""


def launched(shop: Shop, page: Page) -> str:
    """Press the Launchpad's button, wait for the run's end, return its id."""
    page.get_by_role("button", name=re.compile("Launch run", re.IGNORECASE)).click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
    found = re.search(r"/runs/([0-9a-f-]{36})", page.url)
    assert found is not None
    shop.dagster.wait(found[1])
    return found[1]


def stale_mark(shop: Shop, page: Page) -> Locator:
    """Open the asset below the table; return what the UI marks it as stale with, once the page has been told."""

    def tells(response: Response) -> bool:
        asked = response.request.post_data or ""
        return "AssetStaleStatusDataQuery" in asked and "report" in asked

    with page.expect_response(tells) as told:
        page.goto(f"{shop.dagster.url}/assets/report")
    told.value.finished()
    expect(page.get_by_text("Latest materialization").first).to_be_visible()
    return page.get_by_text(re.compile("^Unsynced"))


def check_restored(shop: Shop) -> None:
    assert shop.dagster.record.restored_id == 1
    assert read_spent(shop.dagster.tables) == shop.till.spent


def test_the_link_in_a_checkpoints_metadata_opens_the_launchpad_filled_in_and_restores(
    shop: Shop, page: Page
) -> None:
    """An asset downstream of the table is fresh after its run, and stale after the restore."""
    shop.dagster.run("report_again")
    expect(stale_mark(shop, page)).to_have_count(0)
    shop.till.order("ann", 100)
    page.goto(f"{shop.dagster.url}/assets/shop/checkpoints?view=events")
    page.get_by_text("chk-000001").first.click()
    page.get_by_role("link", name="Restore from chk-000001").first.click()
    page.wait_for_url(re.compile("/playground"))
    expect(page.locator(".CodeMirror-code").first).to_contain_text(FILLED_IN)
    run = shop.dagster.instance.get_run_by_id(launched(shop, page))
    assert run is not None
    assert run.job_name == "shop"
    assert run.run_config["ops"]["restore"]["config"]["restore_from"] == "chk-000001"
    assert run.tags[RESTORE_TAG] == "chk-000001"
    check_restored(shop)
    expect(stale_mark(shop, page).first).to_be_visible()


def test_a_bad_row_is_in_the_quarantine_turns_its_check_red_and_is_put_through_again_by_a_link(
    shop: Shop, page: Page
) -> None:
    quarantine = f"{shop.dagster.url}/assets/shop/quarantine/orders"
    page.goto(f"{quarantine}?view=checks")
    page.get_by_text("orders_amount_0").first.click()
    expect(page.get_by_text("at_most").first).to_be_visible()
    page.goto(f"{quarantine}?view=events")
    page.get_by_role("link", name="Put rows of orders through again").first.click()
    page.wait_for_url(re.compile("/playground"))
    expect(page.locator(".CodeMirror-code").first).to_contain_text("action: requeue")


@pytest.mark.nightly
def test_the_restore_jobs_drop_down_lists_the_checkpoints_and_restores_the_one_picked(
    shop: Shop, page: Page
) -> None:
    shop.till.order("bob", 1000)
    page.goto(f"{shop.dagster.url}/locations/small_deployment.py/jobs/shop_restore/playground")
    opened_partitions(page, "chk-000001").click()
    expect(page.locator(".CodeMirror-code").first).to_contain_text(FILLED_IN)
    run = shop.dagster.instance.get_run_by_id(launched(shop, page))
    assert run is not None
    assert run.job_name == "shop_restore"
    assert run.tags[RESTORE_TAG] == "chk-000001"
    check_restored(shop)


def gated_launchpad(shop: Shop) -> str:
    """Address of the gated restore's Launchpad, filled in."""
    return restore_link(
        job_name="shop_restore",
        location="small_deployment.py",
        restore_op="restore",
        restore_from="chk-000001",
        ui_base_url=shop.dagster.url,
        further={"mode": "gate"},
    )


@pytest.mark.nightly
def test_a_gated_restore_shows_what_it_would_do_and_restores_when_that_is_approved(
    shop: Shop, page: Page
) -> None:
    shop.till.order("cat", 10)
    shop.dagster.run("shop")
    before = shop.dagster.record
    page.goto(gated_launchpad(shop))
    expect(page.locator(".CodeMirror-code").first).to_contain_text(FILLED_IN)
    previewed = launched(shop, page)
    assert shop.dagster.record.epoch == before.epoch, "a preview has taken the pipeline over"
    page.goto(f"{shop.dagster.url}/assets/shop/checkpoints?view=events")
    approve = page.get_by_role("link", name="Restore chk-000001 as previewed").first
    observed = page.get_by_text("Observed")
    patience = itertools.count(2000, 4000)

    def is_shown() -> bool:
        """Open one event after the other, more patiently each time: which is the preview's the page does not say."""
        page.reload()
        expect(approve.or_(observed.first).first).to_be_visible()
        wait = next(patience)
        for number in range(observed.count()):
            if approve.is_visible():
                return True
            observed.nth(number).click()
            with contextlib.suppress(PlaywrightTimeout):
                approve.wait_for(timeout=wait)
        return approve.is_visible()

    wait_until(is_shown, "the preview's event shows the link that approves it")
    approve.click()
    page.wait_for_url(re.compile("/playground"))
    expect(page.locator(".CodeMirror-code").first).to_contain_text("approved:")
    run = shop.dagster.instance.get_run_by_id(launched(shop, page))
    assert run is not None
    assert run.run_id != previewed
    assert run.job_name == "shop_restore"
    assert run.run_config["ops"]["restore"]["config"]["approved"]
    check_restored(shop)


def test_the_launchpad_of_a_job_shows_the_settings_of_the_job_and_of_no_resource(
    shop: Shop, page: Page
) -> None:
    for job, wanted in (
        ("shop", "restore_from: latest"),
        ("shop_streaming", "restart_strategy: exponential_delay"),
    ):
        page.goto(f"{shop.dagster.url}/locations/small_deployment.py/jobs/{job}/playground")
        editor = page.locator(".CodeMirror-code").first
        expect(editor).to_contain_text(wanted)
        assert "resources" not in editor.inner_text()
        assert len(editor.inner_text().splitlines()) < 30, "line numbers are lines, too"
