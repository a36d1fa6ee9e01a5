"""The truth, against the totals the data is published with; the comparison, against doctored tables."""

from __future__ import annotations

import ast
from datetime import date, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from assets import truth
from assets.flights_data import FlightsFeed, prepare

JANUARY = range(1, 32)


def publish(table: Path, rows: pd.DataFrame, *, parts: int = 3) -> None:
    """Write rows the way a published table looks: several files, and bookkeeping no reader sees."""
    for number in range(parts):
        part = pa.Table.from_pandas(rows.iloc[number::parts], preserve_index=False)
        write_deltalake(str(table), part, mode="append")
    (table / "_dagster_ckpt").mkdir()
    rows.to_parquet(table / "_dagster_ckpt" / "staged.parquet", index=False)


def test_the_whole_year_joins_to_the_published_number_of_rows() -> None:
    assert (len(truth.all_flights()), len(truth.all_weather())) == (336_776, 26_115)
    assert truth.joined_count() == 335_220


@pytest.mark.slow
def test_the_days_join_apart_as_they_join_together() -> None:
    assert sum(truth.joined_count([day]) for day in truth.WHOLE_YEAR) == 335_220


def test_every_tail_number_of_the_year_has_a_total_and_the_flights_without_one_are_accounted_for() -> None:
    flights = truth.all_flights()
    assert (flights["tailnum"].nunique(), flights["tailnum"].isna().sum()) == (4_043, 2_512)
    totals = truth.tail_totals()
    assert (len(totals.rows), totals.without_tail_number) == (4_043, 2_498)
    assert totals.rows["flights"].sum() + totals.without_tail_number == 335_220


def test_airport_delays_count_every_joined_flight_and_leave_unknown_delays_out_of_the_mean() -> None:
    delays = truth.airport_delays()
    assert delays["flights"].sum() == 335_220
    newark = delays[(delays["origin"] == "EWR") & (delays["day"] == date(2013, 1, 2))].iloc[0]
    flights = truth.joined([2])
    known = flights[(flights["origin"] == "EWR") & flights["arr_delay"].notna()]
    assert newark["flights"] > len(known)
    assert newark["mean_arr_delay"] == pytest.approx(known["arr_delay"].sum() / len(known))


def test_the_last_day_has_no_weather_so_the_day_before_is_the_newest() -> None:
    assert truth.joined_count([365]) == 0
    assert truth.last_joined_day([363, 364, 365]) == 364


def test_a_day_is_closed_when_the_watermark_stands_on_it() -> None:
    assert truth.closed_days(range(1, 6)) == (1, 2, 3, 4)
    assert truth.closed_days(range(1, 6), timedelta(days=2)) == (1, 2, 3)
    assert truth.closed_days([3]) == ()
    assert truth.closed_days([363, 364, 365]) == (363,)


def test_an_equal_table_is_found_equal_whatever_its_files_and_column_types(tmp_path: Path) -> None:
    rows = truth.airport_delays(JANUARY).sample(frac=1, random_state=1)
    publish(tmp_path / "dates", rows)
    publish(tmp_path / "instants", rows.assign(day=pd.to_datetime(rows["day"])).astype({"flights": "int32"}))
    for table in ("dates", "instants"):
        result = truth.compare_airport_delays(tmp_path / table, JANUARY)
        assert result.ok, str(result)
        assert result.rows_expected == result.rows_found == 93


def test_a_delta_table_is_read_at_its_newest_version(tmp_path: Path) -> None:
    totals = truth.tail_totals(JANUARY).rows
    table = str(tmp_path / "totals")
    write_deltalake(table, pa.Table.from_pandas(totals.head(7), preserve_index=False))
    write_deltalake(table, pa.Table.from_pandas(totals, preserve_index=False), mode="overwrite")
    result = truth.compare_tail_totals(tmp_path / "totals", JANUARY)
    assert result.ok, str(result)


def test_rows_that_are_missing_extra_repeated_or_wrong_are_named(tmp_path: Path) -> None:
    rows = truth.tail_totals(JANUARY).rows
    lost, doubled, wrong = rows["tailnum"].iloc[:3]
    doctored = pd.concat(
        [rows[rows["tailnum"] != lost], rows[rows["tailnum"] == doubled], rows.head(1).assign(tailnum="N0")],
        ignore_index=True,
    )
    doctored.loc[doctored["tailnum"] == wrong, "distance"] += 1
    publish(tmp_path / "table", doctored)

    result = truth.compare_tail_totals(tmp_path / "table", JANUARY)

    assert not result.ok
    assert result.missing == ((lost,),)
    assert result.extra == (("N0",),)
    assert result.repeated == ((doubled,),)
    assert result.different == ((wrong,),)
    assert (result.rows_expected, result.rows_found) == (len(rows), len(rows) + 1)
    assert lost in str(result)


def test_a_mean_that_should_be_unknown_differs_from_zero(tmp_path: Path) -> None:
    delays = truth.airport_delays()
    assert delays["mean_dep_delay"].notna().all(), "no airport was closed for a whole day"
    publish(
        tmp_path / "table", delays.assign(mean_dep_delay=delays["mean_dep_delay"].where(delays.index > 0))
    )
    result = truth.compare_airport_delays(tmp_path / "table", truth.WHOLE_YEAR)
    assert result.different == ((delays["origin"].iloc[0], delays["day"].iloc[0]),)


def test_a_table_that_does_not_exist_yet_misses_every_row(tmp_path: Path) -> None:
    result = truth.compare_tail_totals(tmp_path / "none", [1])
    assert (len(result.missing), result.rows_found) == (result.rows_expected, 0)
    assert truth.compare_airport_delays(tmp_path / "none", []).ok


def test_the_truth_shares_no_code_with_what_it_judges() -> None:
    tree = ast.parse(Path(truth.__file__).read_text())
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in imported} & {"assets", "dagster_ckpt", "pyspark", "dagster"}


# --- the feed -----------------------------------------------------------------------------------------


@pytest.fixture
def feed(tmp_path: Path) -> FlightsFeed:
    return prepare(tmp_path, [1, 2, 59, 365])


def read(folder: Path) -> pd.DataFrame:
    return truth.read_table(folder, columns=["origin", "time_hour", "year", "month", "day"])


def test_a_day_arrives_whole_and_only_when_it_is_delivered(feed: FlightsFeed) -> None:
    assert (feed.waiting(), feed.arrived()) == ((1, 2, 59, 365), ())
    assert len(read(feed.target / "flights")) == 0
    feed.arrive(1)
    assert (feed.waiting(), feed.arrived()) == ((2, 59, 365), (1,))
    assert len(read(feed.target / "flights")) == 842
    assert set(read(feed.target / "weather")["day"]) == {1}


def test_arriving_and_preparing_again_change_nothing(feed: FlightsFeed) -> None:
    before = [path.stat() for path in feed.arrive(2)]
    assert prepare(feed.target, [1, 2, 59, 365]) == feed
    assert [path.stat() for path in feed.arrive(2)] == before
    assert feed.waiting() == (1, 59, 365)


def test_a_delivery_that_was_cut_short_is_finished_by_the_next(feed: FlightsFeed) -> None:
    waiting = feed.target / "waiting" / "flights" / "2013-02-28.parquet"
    waiting.rename(feed.target / "flights" / waiting.name)
    assert 59 in feed.waiting()
    assert 59 not in feed.arrived()
    feed.arrive(59)
    assert feed.arrived() == (59,)


def test_a_day_without_weather_arrives_as_an_empty_file(feed: FlightsFeed) -> None:
    feed.arrive(365)
    assert len(read(feed.target / "weather")) == 0
    assert (feed.target / "weather" / "2013-12-31.parquet").exists()


def test_time_hour_is_the_instant_the_data_says(feed: FlightsFeed) -> None:
    feed.arrive(1)
    first = read(feed.target / "flights")["time_hour"].min()
    assert first == pd.Timestamp(datetime.fromisoformat("2013-01-01T10:00:00+00:00"))


def test_days_that_are_not_there_are_refused(feed: FlightsFeed) -> None:
    with pytest.raises(FileNotFoundError, match="2013-01-03 is not prepared"):
        feed.arrive(3)
    with pytest.raises(ValueError, match="days 1 to 365, got 366"):
        prepare(feed.target, [366])


@pytest.mark.slow
def test_the_feed_delivers_the_whole_year_in_the_order_of_its_events(tmp_path: Path) -> None:
    feed = prepare(tmp_path)
    for kind in ("flights", "weather"):
        spans = [read_span(path) for path in sorted((tmp_path / "waiting" / kind).glob("2013-*.parquet"))]
        newest = [last for _, last in spans if last is not None]
        oldest = [first for first, _ in spans[1:] if first is not None]
        assert all(first > last for first, last in zip(oldest, newest, strict=False))
    assert len(feed.waiting()) == 365


def read_span(path: Path) -> tuple[pd.Timestamp | None, pd.Timestamp | None]:
    hours = pd.read_parquet(path, columns=["time_hour"])["time_hour"]
    return (hours.min(), hours.max()) if len(hours) else (None, None)
