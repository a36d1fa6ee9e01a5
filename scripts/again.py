"""Run the tests once more that failed in the last run, alone; those that pass then are told as unstable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
"""Names of failed tests, as pytest notes them."""
AT_MOST = 3
"""Failed tests that a busy machine explains: more are a fault, as is a failure of this run."""


def failed_tests(noted: Path) -> list[str]:
    """Return the names of the tests that failed in the last run; empty when pytest noted none."""
    return sorted(json.loads(noted.read_text())) if noted.exists() else []


def run_again(names: list[str]) -> int:
    """Return the exit code of a run of these tests in one process: 0 when each has passed now."""
    if not 0 < len(names) <= AT_MOST:
        return 1
    print(f"{len(names)} failed: once more, without others beside", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *names], check=False).returncode
    if code == 0:
        print("UNSTABLE, to be mended (what failed stands above):", *names, sep="\n  ", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(run_again(failed_tests(FAILED)))
