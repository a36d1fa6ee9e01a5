"""Maintenance of a Delta table beside its pipeline: rows stay exact, and so does every retained cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable as Reader

from dagster_ckpt.core.restore.horizon import DAY
from dagster_ckpt.ext.delta.lake import Outside
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.ext.delta.version import REPLACED_FILES_STAY, RETENTION
from dagster_ckpt.ext.tables.rewrite import ENOUGH
from dagster_ckpt.testing import SinkRun
from dagster_ckpt.testing.sinks.keys import pairs
from dagster_ckpt.testing.sinks.run import AtStep, RunCut, crash_points
from tests.ext.delta.test_delta_table import begun

STEPS = [(Outside, "compact"), (Outside, "vacuum")]
AT_ONCE = "interval 0 seconds"


def played(folder: Path, retention: str = AT_ONCE, **options: object) -> tuple[SinkRun, list[RunCut]]:
    """A table that keeps no file longer than it must, with cuts after each of four publishes."""
    run = begun(folder, **options)
    cuts = []
    for number in range(1, 5):
        run.batch([(number, number), (0, number)])
        run.publish(number)
        cuts.append(run.cut(number))
        if number == 1:
            Reader(run.sink.place).alter.set_table_properties(
                {"delta.deletedFileRetentionDuration": retention}
            )
    return run, cuts


def rows(run: SinkRun) -> list[tuple[object, ...]]:
    return pairs(Reader(run.sink.place).to_pyarrow_table())


@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_table_gets_small_and_every_retained_cut_can_still_be_restored(
    tmp_path: Path, key: tuple[str, ...]
) -> None:
    run, cuts = played(tmp_path, key=key)
    needed = [cuts[1].cut.snapshot, cuts[3].cut.snapshot]
    planned = run.sink.upkeep(needed)
    before = Reader(run.sink.place).version()
    done = run.sink.maintain(needed)
    assert planned[0].files == done[0].files == (0 if key else 4)
    assert Reader(run.sink.place).version() > before
    assert len(Reader(run.sink.place).file_uris()) == 1
    assert rows(run) == run.expected()
    for at in (cuts[1], cuts[3]):
        run = run.restored(at)
        assert rows(run) == at.rows
    if key:  # others' rows were written into files of the table's own, which VACUUM has removed
        assert done[1].files > 0
        assert run.successor().sink.cannot_roll_back(cuts[0].cut) != ""
    run.batch([(9, 9)])
    run.publish(9)
    assert rows(run) == run.expected()


def test_a_table_by_key_does_not_grow_with_its_checkpoints_and_retained_cuts_stay(tmp_path: Path) -> None:
    run = begun(tmp_path, DeltaTable("orders", properties={RETENTION: AT_ONCE}), key=("k",))
    cuts = []
    for number in range(1, 41):
        run.batch([(number % 5, number), (0, number)])
        run.publish(number)
        cuts.append(run.cut(number))
        run.sink.collect_garbage([cuts[0].cut.snapshot, *(cut.cut.snapshot for cut in cuts[-2:])], [])
    assert len(list(Path(run.sink.place).glob("**/*.parquet"))) < 30
    assert rows(run) == run.expected()
    for at in (cuts[0], cuts[-2]):
        run = run.restored(at)
        assert rows(run) == at.rows


def test_the_files_that_leave_a_table_stay_for_an_hour_unless_somebody_says_else(tmp_path: Path) -> None:
    told = {RETENTION: "interval 3 days"}
    for name, key, target, said in (
        ("keyed", ("k",), DeltaTable("orders"), "interval 1 hour"),
        ("told", ("k",), DeltaTable("orders", properties=told), "interval 3 days"),
        ("appended", (), DeltaTable("orders"), "interval 1 hour"),
        ("by hand", (), DeltaTable("orders", upkeep="manual"), None),
    ):
        run = begun(tmp_path / name, target, key=key)
        run.batch([(1, 1)])
        run.publish(1)
        assert Reader(run.sink.place).metadata().configuration.get(RETENTION) == said


def test_maintenance_that_stopped_anywhere_leaves_rows_and_cuts_exact(tmp_path: Path) -> None:
    found: list[tuple[SinkRun, list[RunCut]]] = []

    def work() -> Callable[[], object]:
        run, cuts = played(tmp_path / str(len(found)), key=("k",))
        found.append((run, cuts))
        return lambda: run.sink.maintain([cuts[1].cut.snapshot, cuts[3].cut.snapshot])

    for at in crash_points(work, STEPS):
        run, cuts = found[-1]
        assert rows(run) == run.expected(), at
        newer = run.successor()
        newer.sink.take_over()
        newer.batch([(7, 7)])
        newer.publish(5)
        assert rows(newer) == newer.expected(), at
        assert rows(newer.restored(cuts[1])) == cuts[1].rows, at


@pytest.mark.parametrize(("key", "step"), [((), 0), ((), 1), (("k",), 1)])  # a MERGE leaves one file
def test_a_publish_between_the_steps_of_maintenance_is_whole(
    tmp_path: Path, key: tuple[str, ...], step: int
) -> None:
    run, cuts = played(tmp_path, key=key)

    def publish() -> None:
        run.batch([(0, 50), (5, 5)])
        run.publish(5)

    with AtStep(1, publish).among([STEPS[step]]) as at:
        run.sink.maintain([cut.cut.snapshot for cut in cuts])
    assert at.was_reached
    assert rows(run) == run.expected()
    assert rows(run.restored(cuts[2])) == cuts[2].rows


def test_without_a_retained_snapshot_nothing_is_vacuumed(tmp_path: Path) -> None:
    run, _ = played(tmp_path, key=("k",))
    _, vacuum = run.sink.maintain([])
    assert "nothing can be called old" in vacuum.note
    assert rows(run) == run.expected()


def test_a_cut_is_pinned_to_its_version_for_as_long_as_the_table_keeps_it(tmp_path: Path) -> None:
    ends = []
    for days in (0, 9):
        run, cuts = played(tmp_path / str(days), f"interval {days} days", key=("k",))
        [now] = run.sink.pins(cuts[3].cut)
        assert (now.is_there, now.until) == (True, None)
        [older] = run.sink.pins(cuts[1].cut)
        assert older.is_there
        assert older.until is not None
        assert older.what.endswith(f" of table {run.sink.place}")
        assert "dagster-ckpt maintain" in older.advice
        ends.append(older.until)
    assert ends[1] - ends[0] == pytest.approx(9 * DAY, abs=DAY)
    by_itself, kept = played(tmp_path / "kept small", REPLACED_FILES_STAY, key=("k",))
    [pin] = by_itself.sink.pins(kept[1].cut)
    assert pin.until != pytest.approx(ends[0], abs=DAY), "a clock of ours takes nothing that is pinned"
    Reader(run.sink.place).vacuum(dry_run=False, retention_hours=0, enforce_retention_duration=False)
    [gone] = run.sink.pins(cuts[1].cut)
    assert not gone.is_there
    assert "gone" in gone.advice


# --- beside publishing ------------------------------------------------------------------------------------------


def streamed(
    folder: Path,
    publishes: int,
    target: DeltaTable | None = None,
    *,
    keeps_first: bool = True,
    **options: object,
) -> tuple[SinkRun, list[RunCut]]:
    """A table of many publishes, with the clean-up that a stream has after each, and its last cuts."""
    run = begun(folder, target or DeltaTable("orders"), **options)
    cuts: list[RunCut] = []
    for number in range(1, publishes + 1):
        run.batch([(number, number)])
        run.publish(number)
        cuts.append(run.cut(number))
        run.sink.collect_garbage(needed(*(cuts[:1] if keeps_first else ()), *cuts[-3:]), [])
    return run, cuts


def needed(*cuts: RunCut) -> list[object]:
    return [cut.cut.snapshot for cut in cuts]


@pytest.mark.slow
@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_stream_merges_its_small_files_beside_publishing(tmp_path: Path, key: tuple[str, ...]) -> None:
    run, cuts = streamed(tmp_path, 3 * ENOUGH, key=key)
    assert len(Reader(run.sink.place).file_uris()) <= 2 * ENOUGH
    assert rows(run) == run.expected()
    for at in (cuts[ENOUGH + 1], cuts[-2], cuts[0]):
        assert pairs(run.sink.rows(at.cut).to_arrow()) == at.rows
        run = run.restored(at)
        assert rows(run) == at.rows
    run.batch([(1000, 1)])
    run.publish(1000)
    assert rows(run) == run.expected()


def test_merging_that_stopped_anywhere_leaves_rows_and_cuts_exact(tmp_path: Path) -> None:
    found: list[tuple[SinkRun, list[RunCut]]] = []

    def work() -> Callable[[], object]:
        run, cuts = streamed(tmp_path / str(len(found)), ENOUGH - 1)
        run.batch([(500, 500)])
        run.publish(500)
        found.append((run, cuts))
        return lambda: run.reopened().sink.collect_garbage(needed(*cuts), [])

    for at in crash_points(work, [(Outside, "write")]):
        run, cuts = found[-1]
        assert rows(run) == run.expected(), at
        newer = run.successor()
        newer.sink.take_over()
        newer.batch([(501, 501)])
        newer.publish(501)
        newer.reopened().sink.collect_garbage(needed(*cuts), [])
        assert rows(newer) == newer.expected(), at
        assert rows(newer.restored(cuts[3])) == cuts[3].rows, at


def test_a_publish_that_is_faster_than_merging_is_whole(tmp_path: Path) -> None:
    run, cuts = streamed(tmp_path, ENOUGH - 1)
    run.batch([(500, 500)])
    run.publish(500)

    def publish() -> None:
        run.batch([(501, 501)])
        run.publish(501)

    with AtStep(1, publish).among([(Outside, "write")]) as at:
        run.reopened().sink.collect_garbage(needed(*cuts), [])
    assert at.was_reached
    assert rows(run) == run.expected()


def test_upkeep_by_hand_merges_nothing_beside_publishing(tmp_path: Path) -> None:
    run = begun(tmp_path, DeltaTable("orders", upkeep="manual"))
    for number in range(1, ENOUGH + 2):
        run.batch([(number, number)])
        run.publish(number)
        run.sink.collect_garbage([], [])
    assert len(Reader(run.sink.place).file_uris()) == ENOUGH + 1


@pytest.mark.parametrize("key", [(), ("k",)])
@pytest.mark.parametrize("keeps_first", [False, True])
def test_the_log_loses_old_entries_beside_publishing_and_none_that_a_cut_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...], *, keeps_first: bool
) -> None:
    monkeypatch.setattr("dagster_ckpt.ext.delta.upkeep._KEPT_VERSIONS", 12)
    target = DeltaTable("orders", properties={"delta.checkpointInterval": "5"})
    run, cuts = streamed(tmp_path, 50, target, keeps_first=keeps_first, key=key)
    log = Path(run.sink.place) / "_delta_log"
    entries = sorted(int(path.stem) for path in log.glob("*.json"))
    assert entries == list(range(entries[0], entries[-1] + 1))
    assert (entries[0] < 5) if keeps_first else (entries[0] > 20)
    assert rows(run) == run.expected()
    for at in (cuts[-2], cuts[0]) if keeps_first else (cuts[-2],):
        run = run.restored(at)
        assert rows(run) == at.rows
    run.batch([(1000, 1)])
    run.publish(1000)
    assert rows(run) == run.expected()


def test_the_log_of_a_table_is_as_long_as_its_properties_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_ckpt.ext.delta.upkeep._KEPT_VERSIONS", 12)
    kept = {"delta.checkpointInterval": "5", "delta.logRetentionDuration": "interval 2 days"}
    run, _ = streamed(tmp_path, 40, DeltaTable("orders", properties=kept), keeps_first=False)
    assert (Path(run.sink.place) / "_delta_log" / f"{0:020d}.json").exists()
