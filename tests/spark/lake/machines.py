"""Machines of their own: a process tree whose only disk is a folder, which goes with it."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.lab.child import begin
from tests.progress import exit_code
from tests.removal import remove_tree
from tests.spark.lake.deployment import Places


def a_machine_dies(disk: Path, places: Places, how: str, step: str, number: int) -> None:
    """Run on a machine of its own until the step is reached; machine and disk are gone then."""
    code, log = _code_of(disk, places, how, step, number)
    assert code == -signal.SIGKILL, log.read_text()[-3000:]
    remove_tree(disk)


def a_machine_runs(disk: Path, places: Places, how: str) -> None:
    """Run on a machine of its own to the end; its disk can be looked at then."""
    code, log = _code_of(disk, places, how, "publish", 0)
    assert code == 0, log.read_text()[-3000:]


def _code_of(disk: Path, places: Places, how: str, step: str, number: int) -> tuple[int, Path]:
    home, temporary = disk / "home", disk / "tmp"
    for folder in (disk, home, temporary):
        folder.mkdir(exist_ok=True)
    log, own = disk.with_suffix(".log"), {"HOME": str(home), "TMPDIR": str(temporary)}
    arguments = (places.text, how, step, str(number))
    child = begin(log, "tests.spark.lake.kill_child", *arguments, cwd=disk, env=own)
    return exit_code(child, f"the machine runs an {how}, or dies when it is about to {step}"), log
