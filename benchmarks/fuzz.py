"""Draws pipelines and stories from seeds, plays them on Spark, and compares all tables with a model in plain Python.

    python -m benchmarks.fuzz [--played] [--seeds 20] [--from 1] [--minutes 0] [--shrink] [--folder PATH]
    python -m benchmarks.fuzz --kills 500 [--from 1] [--minutes 0] [--folder PATH]

What is drawn is in ``tests/fuzz/drawn.py``, the truth in ``tests/fuzz/model.py``. A seed replays exactly. A failing
one is printed with its story, its folder is kept, and ``--shrink`` leaves out steps while it still fails. With
``--played`` all is real but Spark's queries, and a seed is a tenth of the work. With ``--kills`` programs of their own
run them and are killed so often (``tests/fuzz/killed.py``). Ends with 1 where one was found.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import spark_session
from benchmarks.seeded import seeded_arguments, seeds_of
from dagster_ckpt.spark.epoch import drains
from tests.attack.judge import Verdict
from tests.fuzz.drawn import Drawn, What, draw
from tests.fuzz.killed import History, Killing
from tests.fuzz.played_world import as_played, played_without_spark
from tests.fuzz.story import played, shrunk
from tests.fuzz.world import Finding, World
from tests.spark_session import PATIENT_STARTS, SPARK_JVM


def main() -> int:
    arguments = _arguments()
    os.environ["SPARK_SUBMIT_OPTS"] = SPARK_JVM  # a story's queries are over before they are optimized
    drains.MAX_START_ATTEMPTS = PATIENT_STARTS  # a busy machine is no finding
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    began = time.monotonic()
    ends: Counter[Verdict] = Counter()
    steps: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    memory = Path("/dev/shm")
    parent = arguments.folder or (memory if memory.is_dir() else None)
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-", dir=parent))
    if arguments.kills:
        return _killed(arguments, scratch, began)
    with _player(scratch, without_spark=arguments.played) as play:
        for seed in seeds_of(arguments):
            at = time.monotonic()
            drawn = as_played(draw(seed)) if arguments.played else draw(seed)
            world, finding = play(drawn, scratch / str(seed))
            ends[Verdict.EXACT if finding is None else finding.verdict] += 1
            steps.update(step.what for step in drawn.steps)
            refusals.update(why[:160] for why in world.refused)
            end = finding or f"exact, {len(world.refused)} refused"
            print(f"seed {seed}: {end} ({time.monotonic() - at:.0f} s)", flush=True)
            if finding is not None:
                print(drawn, *(f"    {line}" for line in world.said), sep="\n", flush=True)
                if arguments.shrink:
                    _shrink(drawn, finding, play, scratch)
            else:
                shutil.rmtree(scratch / str(seed), ignore_errors=True)
    shutil.rmtree(scratch / "spark", ignore_errors=True)
    return _told(ends, steps, refusals, time.monotonic() - began, scratch)


def _arguments() -> argparse.Namespace:
    parser = seeded_arguments(__doc__)
    parser.add_argument("--played", action="store_true", help="without Spark")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--kills", type=int, default=0, help="of processes, until so many were killed")
    parser.add_argument(
        "--folder", type=Path, default=None, help="default: in memory where there is such a disk"
    )
    return parser.parse_args()


def _killed(arguments: argparse.Namespace, scratch: Path, began: float) -> int:
    """Kill programs that run drawn pipelines until there were as many kills, or the time is over."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no program outlives this one
    killing, found, reads, histories = Killing(scratch), 0, 0, 0
    try:
        for seed in seeds_of(arguments, has_end=False):
            if killing.kills >= arguments.kills:
                break
            history = History(draw(seed), _empty(scratch / str(seed)), killing)
            try:
                anomalies = [*map(str, history.play())]
            except AssertionError as stuck:
                anomalies = [str(stuck)[:2000]]
            histories, reads, found = histories + 1, reads + history.reads, found + bool(anomalies)
            print(
                f"seed {seed}: {killing.kills} kills, {history.reads} reads",
                *anomalies[:20],
                sep="\n    ",
                flush=True,
            )
            if not anomalies:
                shutil.rmtree(scratch / str(seed), ignore_errors=True)
    finally:
        killing.end()
    done = ", ".join(f"{count} {what}" for what, count in sorted(killing.done.items()))
    print(
        f"{histories} histories in {time.monotonic() - began:.0f} s, {killing.kills} kills, {reads} reads, "
        f"{found} with anomalies: {done}"
    )
    if found:
        print(f"  what failed is in {scratch}")
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if found else 0


Play = Callable[[Drawn, Path], tuple[World, Finding | None]]
"""Plays a story in a folder, and returns its world, and what was found."""


@contextmanager
def _player(scratch: Path, *, without_spark: bool) -> Iterator[Play]:
    if without_spark:
        yield lambda drawn, folder: played_without_spark(drawn, _empty(folder))
        return
    with spark_session(scratch / "spark", **{"spark.sql.shuffle.partitions": "2"}) as spark:
        yield lambda drawn, folder: played(drawn, spark, _empty(folder))


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _shrink(drawn: Drawn, finding: Finding, play: Play, scratch: Path) -> None:
    """Print the shortest story that ends in the same kind of finding."""

    def fails(shorter: Drawn) -> bool:
        again = play(shorter, scratch / "shrunk")[1]
        return again is not None and again.verdict is finding.verdict

    short = shrunk(drawn, fails)
    print(f"    shrunk: {', '.join(f'{one.what}:{one.salt}' for one in short.steps)}", flush=True)


def _told(
    ends: Counter[Verdict], steps: Counter[str], refusals: Counter[str], seconds: float, scratch: Path
) -> int:
    print(
        f"{ends.total()} seeds in {seconds:.0f} s: {', '.join(f'{n} {verdict}' for verdict, n in ends.items())}"
    )
    print("  " + ", ".join(f"{steps[what]} {what}" for what in What))
    for why, count in refusals.most_common():
        print(f"  {count:4} refused: {why}")
    found = ends.total() - ends[Verdict.EXACT]
    if found:
        print(f"  folders of what failed are in {scratch}")
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
