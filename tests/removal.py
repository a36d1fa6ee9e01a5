"""Removal of directories that a process may still write to."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from tests.progress import wait_until


def remove_tree(path: Path) -> None:
    """Remove a directory that a query of this process has written.

    Spark's state store maintenance works in the background and outlives a query's stop: a file that it uploads while
    the tree is removed makes the removal fail half-way, so it is tried again until nothing is left.
    """

    def gone() -> bool:
        with suppress(OSError):
            shutil.rmtree(path)
        return not path.exists()

    assert path.is_dir(), f"{path} is there to be removed"
    wait_until(gone, f"{path} is removed", every=0.1)
