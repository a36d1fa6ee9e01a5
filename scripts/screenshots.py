"""Takes the pictures of the documentation from what ``make demo`` left: python -m scripts.screenshots.

Starts the UI on the demo's instance, restores a checkpoint there by clicking, and writes docs/images/*.png.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from assets.demo_deployment import Deployment
from assets.flights import DEMO_DIR

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
LOCATION = "definitions.py"
FROM = "chk-000002"
PATIENCE = 60_000


def main() -> int:
    """Take all pictures; 0 when every one shows what it should."""
    if not (DEMO_DIR / "coordinator.db").exists():
        sys.exit("there is nothing to show: run `make demo` first")
    with Deployment(DEMO_DIR) as dagster, browser() as page:
        job(page, dagster.url)
        checkpoints(page, dagster.url)
        plots(page, dagster.url)
        drop_down(page, dagster.url)
        launchpad(page, dagster.url)
        restored(page, dagster)
    return 0


@contextmanager
def browser() -> Iterator[Page]:
    """Yield a page of the system's Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": 1400, "height": 820})
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield page
        chromium.close()


def take(page: Page, name: str) -> None:
    """Write one picture, when the page has come to rest."""
    page.wait_for_load_state("networkidle")
    page.mouse.move(0, 0)
    page.wait_for_timeout(1500)
    page.screenshot(path=IMAGES / f"{name}.png")
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size:,} bytes")


def job(page: Page, url: str) -> None:
    """The pipeline as a graph of ops."""
    page.goto(f"{url}/locations/{LOCATION}/jobs/flights")
    expect(page.get_by_text("complete", exact=True).first).to_be_visible()
    take(page, "job")


def checkpoints(page: Page, url: str) -> None:
    """A checkpoint's metadata, with the link that restores from it."""
    page.goto(f"{url}/assets/flights/checkpoints?view=events")
    page.get_by_text(FROM).first.click()
    expect(page.get_by_role("link", name=f"Restore from {FROM}").first).to_be_visible()
    take(page, "checkpoints")


def plots(page: Page, url: str) -> None:
    """Numbers of the checkpoints over time."""
    page.goto(f"{url}/assets/flights/checkpoints?view=overview")
    take(page, "overview")


def drop_down(page: Page, url: str) -> None:
    """What the restore job can begin from."""
    page.goto(f"{url}/locations/{LOCATION}/jobs/flights_restore/playground")
    page.get_by_placeholder("Partition").click()
    expect(page.get_by_text(FROM, exact=True).last).to_be_visible()
    take(page, "restore-drop-down")


def launchpad(page: Page, url: str) -> None:
    """The Launchpad as the link opens it."""
    page.goto(f"{url}/assets/flights/checkpoints?view=events")
    page.get_by_text(FROM).first.click()
    page.get_by_role("link", name=f"Restore from {FROM}").first.click()
    page.wait_for_url(re.compile("/playground"))
    expect(page.locator(".CodeMirror-code").first).to_contain_text(re.compile(f"restore_from: '?{FROM}"))
    take(page, "restore-link")


def restored(page: Page, dagster: Deployment) -> None:
    """The run that the Launchpad then starts, at its end."""
    page.get_by_role("button", name=re.compile("Launch run", re.IGNORECASE)).click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}"))
    status = dagster.wait(page.url.rpartition("/")[2].partition("?")[0])
    if status != "SUCCESS":
        sys.exit(f"the restore ended as {status}")
    page.reload()
    take(page, "restored")


if __name__ == "__main__":
    sys.exit(main())
