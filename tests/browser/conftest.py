"""One deployment with a completed run for the module, and a headless Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.deployment import Deployment, deployed
from tests.browser.till import Till
from tests.needs import needs
from tests.progress import QUIET


@dataclass(frozen=True)
class Shop:
    """The deployment and what was fed to it."""

    dagster: Deployment
    till: Till


@pytest.fixture(scope="module")
@needs("browser")
def chromium() -> Iterator[Browser]:
    """Chromium of the system; without one the tests are skipped, but not in CI.

    Not for the session: its event loop would be in the way of other tests.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium: apt-get install chromium")
        pytest.skip("no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
@needs("spark")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A fresh instance on which the pipeline has run once, so that there is a checkpoint to restore from."""
    folder = tmp_path_factory.mktemp("shop")
    till = Till(folder / "till")
    till.order("ann", 5)
    till.order("bob", 7)
    till.order("eve", -5)
    with deployed(folder) as dagster:
        dagster.run("shop")
        yield Shop(dagster, till)


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page wide enough for every column of the UI."""
    context = chromium.new_context(viewport={"width": 1500, "height": 1000})
    made = context.new_page()
    made.set_default_timeout(QUIET * 1000)
    expect.set_options(timeout=QUIET * 1000)
    yield made
    context.close()
