"""Attacks what a pipeline keeps, hundreds of times; tables must stay exact, or nothing may run.

    python -m benchmarks.attack [--trials 600] [--seed 0] [--per-history 25] [--processes 2] [--folder PATH]

Everything is real but Spark's queries, which are played (``tests/attack``): a history of runs is made, then its
coordinator store, checkpoint storage, working directory, tables or single files are put back to an older copy, lost, or
swapped with another deployment's, or its author changes columns, key, names or targets while rows wait. The next runs
are started, and ways out that are named are taken. Ends with 1 where an attack was not told.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.attack.judge import Trial, Verdict
from tests.attack.trials import attack


def main() -> int:
    arguments = _arguments()
    histories = -(-arguments.trials // arguments.per_history)
    seeds = range(arguments.seed, arguments.seed + histories)
    jobs = [(arguments.folder, seed, arguments.per_history, arguments.seed) for seed in seeds]
    began = time.monotonic()
    first: Counter[str] = Counter()
    findings: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(arguments.processes, _quiet) as pool:
        for trials in pool.imap_unordered(_one_history, jobs):
            for trial in trials:
                first[trial.first] += 1
                findings.update(set(trial.findings))
                if trial.findings:
                    print(trial, flush=True)
            print(f"{sum(first.values())} attacks, {findings.total()} findings", flush=True)
    print(f"{sum(first.values())} attacks on {histories} histories in {time.monotonic() - began:.0f} s")
    for verdict, count in first.most_common():
        print(f"  {count:5}  {verdict}")
    for verdict in Verdict:
        if findings[verdict]:
            print(f"  {findings[verdict]:5}  {verdict}")
    print(f"  {findings[Verdict.SILENT]:5}  {Verdict.SILENT}s")
    return 1 if findings else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0, help="of the first history")
    parser.add_argument("--per-history", type=int, default=25)
    parser.add_argument("--processes", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument(
        "--folder", type=Path, default=None, help="default: in memory where there is such a disk"
    )
    return parser.parse_args()


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


def _one_history(job: tuple[Path | None, int, int, int]) -> list[Trial]:
    folder, seed, count, first_seed = job
    memory = Path("/dev/shm")
    parent = folder or (memory if memory.is_dir() else None)
    with tempfile.TemporaryDirectory(prefix="attack-", dir=parent) as scratch:
        return list(attack(Path(scratch), range(seed, seed + 1), count, first=(seed - first_seed) * count))


if __name__ == "__main__":
    sys.exit(main())
