"""What a stream costs in Dagster's storage, and which of its checkpoints are told: by a clock of the test's own."""

from __future__ import annotations

import contextlib
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import PipelineOptions
from dagster_ckpt.core.coordinator.effects import CheckpointRejected
from dagster_ckpt.core.messages import CheckpointFailureReason
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.dagster.reporting import ReportPolicy
from dagster_ckpt.dagster.reports.events import DagsterEvents
from dagster_ckpt.dagster.reports.stream_events import Line, Told
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.stage_report import TableChanged
from tests.dagster.reports.played_stream import (
    CHECKPOINTS,
    Ledger,
    Play,
    Stream,
    changed,
    cost_of_a_day,
    hours,
    play,
)

__all__ = ["play"]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 1000], ids=["idle", "busy"])
def test_a_day_of_a_stream_is_at_most_2000_events_and_10_megabytes(play: Play, rows: int) -> None:
    cost = cost_of_a_day(play, rows=rows)
    assert cost.events <= 2000
    assert cost.bytes <= 10e6


# --- which are told, and when -----------------------------------------------------------------------------------


def keys_of(found: list[dg.AssetMaterialization]) -> list[str | None]:
    return [each.partition for each in found]


def test_a_change_is_told_at_once_and_the_next_ones_together_after_the_pause(play: Play) -> None:
    def story(stream: Stream) -> None:
        stream.complete()
        stream.wait(10)
        stream.complete(rows=5)
        for _ in range(12):
            stream.wait(10)
            stream.complete(rows=1)
        assert keys_of(stream.ledger.materialized(CHECKPOINTS)) == ["chk-000002"]
        assert stream.reports.due_in() == pytest.approx(180)
        stream.wait(180)

    ledger = play(story)
    first, rest = ledger.materialized(CHECKPOINTS)
    assert (first.partition, rest.partition) == ("chk-000002", "chk-000014")
    assert rest.description == "checkpoint 14 completed, with 11 before it since the last report"
    assert rest.metadata["bytes_new"].value == 12 * 5 * 10_000
    assert [m.metadata["rows_added"].value for m in ledger.materialized(dg.AssetKey(["shop", "totals"]))] == [
        5,
        12,
    ]


def test_an_idle_stream_materializes_nothing_and_keeps_its_partitions_in_step(play: Play) -> None:
    ledger = play(lambda stream: hours(stream, 0.5, rows=0))
    assert ledger.materialized(CHECKPOINTS) == []
    assert ledger.partitions() == ["chk-000180"]
    assert ledger.events() == {"ASSET_CHECK_EVALUATION": 2, "ASSET_OBSERVATION": 1}


def test_what_is_held_back_is_told_at_the_end(play: Play) -> None:
    def story(stream: Stream) -> None:
        for _ in range(3):
            stream.complete(rows=1)

    ledger = play(story)
    assert keys_of(ledger.materialized(CHECKPOINTS)) == ["chk-000001", "chk-000003"]
    assert [m.metadata["rows_added"].value for m in ledger.materialized(dg.AssetKey(["shop", "report"]))] == [
        1,
        2,
    ]


def test_every_so_many_th_is_told_with_its_tables(play: Play) -> None:
    def story(stream: Stream) -> None:
        for _ in range(25):
            stream.wait(10)
            stream.complete(rows=1)
        assert len(stream.ledger.materialized(dg.AssetKey(["shop", "totals"]))) == 2

    assert keys_of(play(story, report="every: 10").materialized(CHECKPOINTS)) == [
        "chk-000010",
        "chk-000020",
        "chk-000025",
    ]


def test_all_are_told_where_that_is_wanted_unchanged_ones_too(play: Play) -> None:
    def story(stream: Stream) -> None:
        for rows in (1, 0, 0):
            stream.wait(10)
            stream.complete(rows=rows)

    assert len(play(story, report="all").materialized(CHECKPOINTS)) == 3


def test_what_somebody_asked_for_is_told_at_once(play: Play) -> None:
    def story(stream: Stream) -> None:
        stream.complete(rows=1)
        stream.complete(rows=1, kind=CheckpointKind.SAVEPOINT)
        stream.complete(rows=0, kind=CheckpointKind.FULL_CHECKPOINT, by_hand=True)
        told = keys_of(stream.ledger.materialized(CHECKPOINTS))
        assert told == ["chk-000001", "savepoint-000002", "chk-000003"]

    play(story)


def test_a_savepoint_is_told_with_what_was_held_back_and_stays_the_newest_event(play: Play) -> None:
    def story(stream: Stream) -> None:
        for _ in range(3):
            stream.complete(rows=1)
        stream.complete(rows=1, kind=CheckpointKind.SYNC_SAVEPOINT_SUSPEND)

    told = play(story).materialized(CHECKPOINTS)
    assert keys_of(told) == ["chk-000001", "savepoint-000004"], "after what is told at the end, too"
    assert (told[-1].description or "").endswith("4 completed, with 2 before it since the last report")


def test_rows_that_are_taken_back_are_told_at_once_after_those_that_were_held(play: Play) -> None:
    def story(stream: Stream) -> None:
        for _ in range(2):
            stream.complete(rows=7)
        stream.reports.hear(changed("totals", 1, taken_back="7 rows set aside"))
        told = stream.ledger.materialized(dg.AssetKey(["shop", "totals"]))
        assert [("rows_added" in m.metadata, "taken_back" in m.metadata) for m in told] == [
            (True, False),
            (True, False),
            (False, True),
        ]

    play(story)


def test_of_failures_the_first_of_a_kind_is_told_and_the_next_after_the_pause(play: Play) -> None:
    def story(stream: Stream) -> None:
        for _ in range(30):
            stream.wait(10)
            stream.fail()
        assert stream.ledger.events() == {"ASSET_OBSERVATION": 1, "ASSET_CHECK_EVALUATION": 1, "log": 1}
        stream.fail(CheckpointFailureReason.CHECKPOINT_DECLINED)
        assert stream.ledger.events()["ASSET_OBSERVATION"] == 2
        stream.wait(10)
        stream.fail()

    lines = [line.user_message for line in play(story).lines]
    assert "the same was so 29 times more since it was last told" in lines


def test_the_check_turns_green_with_the_first_completion_after_a_failure(play: Play) -> None:
    def story(stream: Stream) -> None:
        for _ in range(3):
            stream.complete()
            stream.fail()
        stream.complete()

    assert checks_of(play(story)) == [True, False, True]


def checks_of(ledger: Ledger) -> list[bool]:
    told: list[Any] = [
        line.dagster_event.event_specific_data  # type: ignore[union-attr]
        for line in ledger.lines
        if line.dagster_event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ]
    return [one.passed for one in told if one.check_name == "checkpoint_succeeded"]


def test_a_stream_whose_last_checkpoint_failed_does_not_end_with_a_green_check(play: Play) -> None:
    def story(stream: Stream) -> None:
        for _ in range(2):
            stream.fail()
            stream.wait(10)
            stream.complete()
            stream.wait(10)
        stream.fail()

    ledger = play(story)
    assert checks_of(ledger) == [False, True, False]
    assert "the same was so 1 time more since it was last told" in [
        line.user_message for line in ledger.lines
    ]


def test_a_failure_after_a_completion_is_told_once_the_pause_is_over(play: Play) -> None:
    def story(stream: Stream) -> None:
        stream.fail()
        stream.complete()
        stream.wait(10)
        stream.fail()
        assert checks_of(stream.ledger) == [False, True]
        assert stream.reports.due_in() == pytest.approx(290)
        stream.wait(290)
        assert checks_of(stream.ledger) == [False, True, False]
        assert stream.reports.due_in() is None
        stream.complete()

    assert checks_of(play(story)) == [False, True, False, True]


def test_a_failure_that_could_not_be_written_is_news_still(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(stream: Stream) -> None:
        stream.complete()
        with monkeypatch.context() as broken:
            broken.setattr(DagsterEvents, "hear", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                stream.fail()
        stream.wait(10)
        stream.fail()
        assert checks_of(stream.ledger) == [True, False]

    play(story)


def test_a_minimum_pause_is_no_warning(play: Play) -> None:
    def story(stream: Stream) -> None:
        rejected = CheckpointRejected(
            request=CheckpointRequest(),
            reason=CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
            message="",
        )
        for waited in (0, 10, 300):
            stream.wait(waited)
            stream.reports.hear(Told(rejected, {}))

    assert play(story).lines == []


def test_lines_that_repeat_are_counted(play: Play) -> None:
    def story(stream: Stream) -> None:
        for number in range(40):
            stream.reports.hear(
                Line(f"table totals is not published yet: part-{number}a.parquet", is_warning=True)
            )
            stream.wait(10)

    assert [line.user_message for line in play(story).lines] == [
        "table totals is not published yet: part-0a.parquet",
        "table totals is not published yet: part-30a.parquet (and 29 times more since it was last told)",
        "9 times more since it was last told: table totals is not published yet: #",
    ]


def test_an_event_that_could_not_be_written_is_told_with_the_next(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(stream: Stream) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(DagsterEvents, "tell_completed", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                stream.complete(rows=1)
        stream.wait(10)
        assert stream.ledger.materialized(CHECKPOINTS) == [], (
            "not again at once: it would be tried all the time"
        )
        stream.wait(5)
        assert keys_of(stream.ledger.materialized(CHECKPOINTS)) == ["chk-000001"]

    assert keys_of(play(story).materialized(CHECKPOINTS)) == ["chk-000001"]


@pytest.mark.parametrize("report", ["all", "every: 2", "changed"])
def test_an_event_log_that_cannot_be_written_is_left_alone_for_a_while(
    play: Play, monkeypatch: pytest.MonkeyPatch, report: str
) -> None:
    tried: list[str] = []

    def refuse(what: str) -> None:
        tried.append(what)
        raise OSError("database is locked")

    def story(stream: Stream) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(DagsterEvents, "tell_completed", lambda *_, **__: refuse("checkpoint"))
            broken.setattr(DagsterEvents, "table_changed", lambda *_: refuse("table"))
            for _ in range(2):
                with contextlib.suppress(OSError):
                    stream.complete(rows=1)
            before = len(tried)
            for waited in (0, 1, 1, 12):
                stream.wait(waited)
                assert stream.reports.due_in() == pytest.approx(15 - (stream.seconds[0]))
            assert len(tried) == before, "in between nothing is written"
            with pytest.raises(OSError, match="database is locked"):
                stream.wait(1)
            assert tried[before:].count("checkpoint") == 1
            assert stream.reports.due_in() == pytest.approx(15)
        stream.wait(15)
        assert [*map(str, keys_of(stream.ledger.materialized(CHECKPOINTS)))] == ["chk-000002"]
        told = stream.ledger.materialized(dg.AssetKey(["shop", "totals"]))
        assert [m.metadata["rows_added"].value for m in told] == [2]

    play(story, report=report)


def test_a_table_that_cannot_be_told_holds_up_no_other(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = DagsterEvents.table_changed

    def not_totals(events: DagsterEvents, change: TableChanged) -> None:
        if change.uid == "totals":
            raise OSError("no such asset")
        tell(events, change)

    def story(stream: Stream) -> None:
        monkeypatch.setattr(DagsterEvents, "table_changed", not_totals)
        with pytest.raises(OSError, match="no such asset"):
            stream.reports.hear(changed("totals", 1, rows=1))
        stream.reports.hear(changed("report", 1, rows=1))
        with pytest.raises(OSError, match="no such asset"):
            stream.wait(15)
        monkeypatch.undo()
        assert len(stream.ledger.materialized(dg.AssetKey(["shop", "report"]))) == 1

    play(story)


@pytest.mark.parametrize("text", ["sometimes", "every: 0", "every 1.5", "", "-3"])
def test_a_report_that_cannot_be_is_refused_when_the_pipeline_is_defined(text: str) -> None:
    with pytest.raises(InvalidRequest, match="give 'changed', 'all', or 'every: 10'"):
        PipelineOptions(report=text)


@pytest.mark.parametrize(
    ("text", "every"), [("changed", 0), ("ALL", 1), ("every: 10", 10), ("every=3", 3), ("7", 7)]
)
def test_a_report_is_read_as_people_write_it(text: str, every: int) -> None:
    assert ReportPolicy.of(text).every == every
