"""History of a demonstration: what arrived and what readers of its tables saw, for a checker that knows neither.

The rows that tables have after each day are pandas' (``truth``): of ``airport_delays`` those of days that are closed,
of ``tail_totals`` the new sums of the day's tail numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from deltalake.exceptions import DeltaError

from assets import truth
from tests.checker.check import Found, check
from tests.checker.record import Recorder

TABLES = {"airport_delays": "append", "tail_totals": "keyed"}
COLUMNS = {
    "airport_delays": ("origin", "day", "flights", "mean_dep_delay", "mean_arr_delay", "mean_visibility"),
    "tail_totals": ("tailnum", "flights", "distance"),
}
Rows = dict[str, list[list[Any]]]


class DemoHistory:
    """Recorder of two pipelines: the reference pipeline, and the fork that begins as it was at a savepoint."""

    def __init__(self, path: Path) -> None:
        self._recorder = Recorder(path, TABLES)
        self._arrived: list[Rows] = []

    def arrive(self, day: int) -> None:
        """Record a day that is about to arrive; the days before it have."""
        rows: Rows = {"airport_delays": self._closed_by(day), "tail_totals": self._totals_after[day]}
        self._arrived.append(rows)
        self._recorder.write(rows)

    def killed(self) -> None:
        """Record that a run was killed."""
        self._recorder.did("kill")

    def look(self, tables: Path, pipeline: str = "", *, settled: bool = False) -> None:
        """Record what a reader of each table sees; where a file comes or goes under the reader it looks again later."""
        for name in TABLES:
            began = self._recorder.now()
            try:
                found = truth.read_table(tables / name, columns=list(COLUMNS[name]))
            except (OSError, DeltaError):
                if settled:
                    raise
                continue
            self._recorder.read(began, {name: _rows(found)}, pipeline=pipeline, settled=settled)

    def fork(self, pipeline: str, days: int) -> None:
        """Record a fork of when so many days had arrived; all later ones arrive at it too."""
        self._recorder.did("fork", pipeline=pipeline, of="", keeps=days)
        for rows in self._arrived[days:]:
            self._recorder.write(rows, pipeline=pipeline)

    def judged(self) -> tuple[int, list[Found]]:
        """Return how many reads there were, and the anomalies of them."""
        events = self._recorder.events()
        return sum(one["event"] == "read" for one in events), check(events)

    # --- truth, day by day ------------------------------------------------------------------------------------------

    def _closed_by(self, day: int) -> list[list[Any]]:
        """Return the rows of the days that this one closes: the days before the newest one that has flights."""
        newest, had = (
            max((one for one in self._delays if one <= last), default=0) for last in (day, day - 1)
        )
        return [row for one in sorted(self._delays) if had <= one < newest for row in self._delays[one]]

    @cached_property
    def _delays(self) -> dict[int, list[list[Any]]]:
        by_day = truth.airport_delays()
        days = pd.to_datetime(by_day["day"]).dt.day_of_year
        return {int(day): _rows(rows[list(COLUMNS["airport_delays"])]) for day, rows in by_day.groupby(days)}

    @cached_property
    def _totals_after(self) -> dict[int, list[list[Any]]]:
        """Of each day the tail numbers that flew, with their sums so far."""
        flights = truth.joined().dropna(subset=["tailnum"])
        days = flights.groupby(["tailnum", "day_of_year"])["distance"].agg(["size", "sum"])
        so_far = days.groupby(level="tailnum").cumsum()
        found: dict[int, list[list[Any]]] = defaultdict(list)
        for (tail, day), count, distance in so_far.itertuples(name=None):
            found[int(day)].append(_plain((tail, count, distance)))
        return found


def _rows(table: pd.DataFrame) -> list[list[Any]]:
    return [_plain(row) for row in table.itertuples(index=False, name=None)]


def _plain(row: Iterable[Any]) -> list[Any]:
    """Return values as text: of means as many digits as no order of adding changes."""
    return [f"{float(one):.9g}" if isinstance(one, (float, int)) else str(one)[:10] for one in row]
