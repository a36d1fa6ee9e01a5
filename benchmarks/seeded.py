"""Seeds that a benchmark plays: so many of them, or as many as begin within some minutes."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator


def seeded_arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of ``--seeds``, ``--from`` and ``--minutes``; ``doc`` is the program's."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--from", type=int, default=1, dest="first")
    parser.add_argument("--minutes", type=float, default=0.0, help="as many seeds as begin within them")
    return parser


def seeds_of(arguments: argparse.Namespace, *, has_end: bool = True) -> Iterator[int]:
    """Yield the seeds that were asked for; without an end where something else than their number ends them."""
    until = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    for seed in itertools.count(arguments.first):
        is_enough = has_end and not arguments.minutes and seed >= arguments.first + arguments.seeds
        if is_enough or time.monotonic() > until:
            return
        yield seed
