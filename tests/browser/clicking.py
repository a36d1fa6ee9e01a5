"""What people do without thinking: press again when the page was not ready for it."""

from __future__ import annotations

from playwright.sync_api import Locator, Page
from playwright.sync_api import TimeoutError as NotThere

TRIES = 12
PATIENCE_MS = 5_000


def opened_partitions(page: Page, key: str) -> Locator:
    """Open the Launchpad's list of partitions and return the entry of ``key``."""
    box = page.get_by_placeholder("Partition")
    entry = page.get_by_text(key, exact=True).last
    for remaining in reversed(range(TRIES)):
        box.click()
        try:
            entry.wait_for(timeout=PATIENCE_MS)
        except NotThere:
            if not remaining:
                raise
            page.keyboard.press("Escape")
            continue
        return entry
    raise AssertionError("unreachable: the last try raises")
