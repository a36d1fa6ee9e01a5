"""Print what ``scripts/bootstrap`` installs for the tests that pytest selects with these arguments; all without any."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence

import pytest

from tests.needs import NEEDS, to_install


class Selected:
    """The markers of the tests that were selected: at first all, as where the collection fails."""

    markers = frozenset(NEEDS)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note them."""
        if not session.testsfailed:
            self.markers = frozenset(mark.name for item in session.items for mark in item.iter_markers())


def needed_by(arguments: Sequence[str]) -> list[str]:
    """Collect the tests, in a second or two for a folder, and return what is to be installed for them."""
    selected = Selected()
    if arguments:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *arguments], plugins=[selected])
    return to_install(selected.markers)


if __name__ == "__main__":
    print(*needed_by(sys.argv[1:]))
