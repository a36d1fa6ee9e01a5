"""Plays worlds from seeds: the library's own threads on one scheduler, beside a storage, a store and tables that fail.

    python -m benchmarks.simulate [--seeds 20] [--from 1] [--minutes 0] [--faults 0] [--twice] [--lines 60]

A world is in ``tests/sim/world.py``; a step is an event that the scheduler delivers to a thread. A seed replays
exactly; ``--twice`` plays each again and compares. ``--faults``: store, storage and tables fail ten times as often,
until so many faults were met. A world that fails is printed with the steps that led to it. Ends
with 1 then.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.seeded import seeded_arguments, seeds_of
from tests.sim.outside import FAULTS
from tests.sim.world import play, shortened


def main() -> int:
    arguments = _arguments()
    logging.disable(logging.CRITICAL)
    memory = Path("/dev/shm")
    scratch = Path(tempfile.mkdtemp(prefix="simulate-", dir=memory if memory.is_dir() else None))
    began, number, found, steps, other = time.process_time(), 0, 0, 0, 0
    met: Counter[str] = Counter()
    try:
        is_stormy = bool(arguments.faults)
        for seed in seeds_of(arguments, has_end=not is_stormy):
            if is_stormy and sum(met[one] for one in FAULTS) >= arguments.faults:
                break
            number += 1
            played = play(seed, scratch / "world", is_stormy=is_stormy)
            steps += played.events
            met.update(played.told)
            if (
                arguments.twice
                and (again := play(seed, scratch / "world", is_stormy=is_stormy)).digest != played.digest
            ):
                other += 1
                print(
                    f"seed {seed} went another way the second time: {played.digest}, {again.digest}",
                    flush=True,
                )
            if played.finding:
                found += 1
                print(
                    f"seed {seed}: {played.finding}", *shortened(played.trace, arguments.lines), sep="\n    "
                )
                print(f'  again: make sim ARGS="--from {seed} --seeds 1"', flush=True)
    except KeyboardInterrupt:
        print("interrupted")  # what was tried until now is told
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    seconds = time.process_time() - began
    rate = steps * (1 + arguments.twice) / seconds * 3600 / 1e6
    print(
        f"{number} seeds, {steps:,} steps, {rate:.1f} M an hour of processor time, {found} found, {other} differed"
    )
    print(f"  {sum(met[one] for one in FAULTS)} faults of store, storage and tables")
    print("  " + ", ".join(f"{count} {what}" for what, count in met.most_common()))
    return 1 if found or other else 0


def _arguments() -> argparse.Namespace:
    parser = seeded_arguments(__doc__)
    parser.add_argument("--faults", type=int, default=0, help="in a storm, until so many were met")
    parser.add_argument("--twice", action="store_true", help="play each seed again, and compare")
    parser.add_argument("--lines", type=int, default=60, help="lines of the trace of a failing seed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
