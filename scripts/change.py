"""Print what pytest leaves out for a change: tests of extensions that neither it nor what they stand on touches.

Compared with where the branch left ``main``; the rest runs when it is merged (``.ci/run``).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from tests.root import ROOT

PORT = (
    "dagster_ckpt/authoring/",
    "dagster_ckpt/spark/sink/",
    "dagster_ckpt/ext/tables/",
    "tests/conftest.py",
    "tests/spark_session.py",
    "pyproject.toml",
)
"""What every extension stands on: a change of it runs their tests."""
STANDS_ON = {
    "tests/ext/spark_pipelines": (
        "dagster_ckpt/ext/spark_pipelines/",
        "dagster_ckpt/spark/attempt/",
        "dagster_ckpt/spark/plan/",
        *PORT,
    ),
    "tests/spark/cluster": (
        "dagster_ckpt/spark/cluster/",
        "dagster_ckpt/spark/exchange/",
        "dagster_ckpt/spark/session",
        *PORT,
    ),
    "tests/ext/warm": ("dagster_ckpt/ext/warm/", "dagster_ckpt/spark/session", *PORT),
    "tests/spark/lake": (
        "dagster_ckpt/spark/exchange/",
        "dagster_ckpt/ext/delta/",
        "dagster_ckpt/ext/iceberg/",
        "dagster_ckpt/adapters/",
        *PORT,
    ),
}
"""Folder of tests, and what begins the paths of its extension and of what that uses most."""


def left_out(changed: Iterable[str]) -> list[str]:
    """Return the folders of tests that a change of these files need not run."""
    files = list(changed)
    return [
        tests
        for tests, ours in STANDS_ON.items()
        if not any(file.startswith((f"{tests}/", *ours)) for file in files)
    ]


def changed_files() -> list[str]:
    """Return the files that differ from where the branch left ``main``, committed or not."""
    for main in ("origin/main", "main"):
        base = _git("merge-base", "HEAD", main)
        if base:
            return [
                *_git("diff", "--name-only", base[0]),
                *_git("ls-files", "--others", "--exclude-standard"),
            ]
    raise SystemExit("there is no branch main to compare with: fetch it, or run make test")


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


if __name__ == "__main__":
    print(*(f"--ignore={tests}" for tests in left_out(changed_files())))
