"""What people do without thinking: press again when the page was not ready for it."""

from __future__ import annotations

from playwright.sync_api import Locator, Page
from playwright.sync_api import TimeoutError as NotThere

PATIENCE_MS = (5_000, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000)
"""Longer from try to try: a busy machine shows a list late, and pressing again would begin anew."""


def opened_partitions(page: Page, key: str) -> Locator:
    """Open the Launchpad's list of partitions and return the entry of ``key``."""
    box = page.get_by_placeholder("Partition")
    entry = page.get_by_text(key, exact=True).last
    for patience in PATIENCE_MS:
        box.click()
        try:
            entry.wait_for(timeout=patience)
        except NotThere:
            if patience == PATIENCE_MS[-1]:
                raise
            page.keyboard.press("Escape")
            continue
        return entry
    raise AssertionError("unreachable: the last try raises")
