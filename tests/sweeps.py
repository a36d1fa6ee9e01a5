"""Sweeps over points at which something ends: ``make test`` tries a fixed third of each, ``make nightly`` all of it.

A third is the first point and every third one after it; a sweep in several histories begins with another point in
each, so that ``make test`` has all histories, and every point in one of them. Cases of one test on Spark (operators,
state formats, modes) are a sweep too. A test of Spark is marked ``nightly`` when ``make test`` runs another one of its
room that goes the same way (a restore, a kill, a refusal), or when it ends machines of a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

IS_WHOLE = os.environ.get("SWEEP") == "all"


def third(points: Iterable[T], history: int = 0) -> list[T]:
    """Return the points that this run tries, in the ``history``-th history of the sweep."""
    every = list(points)
    return every if IS_WHOLE else every[history % 3 :: 3]
