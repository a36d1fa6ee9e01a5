"""Maintenance of an Iceberg table beside its pipeline: rows stay exact, and so does every retained cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_ckpt.ext.iceberg.lake import Outside
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.testing import SinkRun
from dagster_ckpt.testing.sinks.keys import pairs
from dagster_ckpt.testing.sinks.run import AtStep, RunCut, crash_points
from tests.ext.iceberg.test_iceberg_table import NAME, TAG, THEIRS, begun, keys, table_of, why

STEPS = [(Outside, "commit"), (Outside, "keep_and_expire")]
AT_ONCE = IcebergTable(NAME, properties={"history.expire.max-snapshot-age-ms": "0"})


def played(folder: Path, **options: object) -> tuple[SinkRun, list[RunCut]]:
    """A table that keeps no snapshot longer than it must, with cuts after each of four publishes."""
    run = begun(folder, AT_ONCE, **options)
    cuts = []
    for number in range(1, 5):
        run.batch([(number, number), (0, number)])
        run.publish(number)
        cuts.append(run.cut(number))
    return run, cuts


def rows(run: SinkRun) -> list[tuple[object, ...]]:
    return pairs(table_of(run).scan().to_arrow())


def files(run: SinkRun) -> int:
    return len(list(table_of(run).scan().plan_files()))


def needed(*cuts: RunCut) -> list[object]:
    return [cut.cut.snapshot for cut in cuts]


@pytest.mark.parametrize("key", [(), ("k",)])
def test_a_table_gets_small_and_every_retained_cut_can_still_be_restored(
    tmp_path: Path, key: tuple[str, ...]
) -> None:
    run, cuts = played(tmp_path, key=key)
    before = files(run)
    planned = run.sink.upkeep(needed(cuts[1], cuts[3]))
    done = run.sink.maintain(needed(cuts[1], cuts[3]))
    assert planned[0] == done[0]
    assert done[0].files == (before if before > 1 else 0)
    assert files(run) == 1
    assert rows(run) == run.expected()
    assert done[1].files > 0
    assert {name for name in table_of(run).metadata.refs if "cut" in name} == {f"{TAG}/cut_2", f"{TAG}/cut_4"}
    assert "has no snapshot that shows checkpoint 1" in why(run, cuts[0].cut)
    assert run.sink.maintain(needed(cuts[1], cuts[3]))[0].files == 0, "what was merged is left alone"
    for at in (cuts[1], cuts[3]):
        assert pairs(run.sink.rows(at.cut).to_arrow()) == at.rows
        run = run.restored(at)
        assert rows(run) == at.rows
    run.batch([(9, 9)])
    run.publish(9)
    run.sink.collect_garbage(needed(cuts[1], cuts[3]), [])
    assert rows(run) == run.expected()


def test_maintenance_that_stopped_anywhere_leaves_rows_and_cuts_exact(tmp_path: Path) -> None:
    found: list[tuple[SinkRun, list[RunCut]]] = []

    def work() -> Callable[[], object]:
        run, cuts = played(tmp_path / str(len(found)))
        found.append((run, cuts))
        return lambda: run.sink.maintain(needed(cuts[1], cuts[3]))

    for at in crash_points(work, STEPS):
        run, cuts = found[-1]
        assert rows(run) == run.expected(), at
        newer = run.successor()
        newer.sink.take_over()
        newer.batch([(7, 7)])
        newer.publish(5)
        newer.sink.collect_garbage(needed(cuts[1], cuts[3]), [])
        assert rows(newer) == newer.expected(), at
        assert rows(newer.restored(cuts[1])) == cuts[1].rows, at


@pytest.mark.parametrize("step", STEPS)
def test_a_publish_and_its_clean_up_between_the_steps_of_maintenance_are_whole(
    tmp_path: Path, step: tuple[type, str]
) -> None:
    run, cuts = played(tmp_path)

    def publish() -> None:
        run.batch([(0, 50), (5, 5)])
        run.publish(5)
        run.sink.collect_garbage(needed(*cuts), [])

    with AtStep(1, publish).among([step]) as at:
        done = run.sink.maintain(needed(*cuts))
    assert at.was_reached
    assert "faster" in done[STEPS.index(step)].note
    assert rows(run) == run.expected()
    assert rows(run.restored(cuts[2])) == cuts[2].rows


def test_rows_of_others_are_merged_with_ours_and_still_never_taken_back(tmp_path: Path) -> None:
    run, cuts = played(tmp_path)
    table_of(run).append(THEIRS)
    assert run.sink.maintain(needed(cuts[2], cuts[3]))[0].files == 5
    assert keys(run) == [0, 0, 0, 0, 1, 2, 3, 4, 100]
    assert "is not of this pipeline" in why(run, cuts[2].cut)
    assert why(run, cuts[3].cut) == ""


@pytest.mark.parametrize("key", [(), ("k",)])
def test_each_partition_keeps_files_of_its_own(tmp_path: Path, key: tuple[str, ...]) -> None:
    run = begun(tmp_path, IcebergTable(NAME, partition_by=("v",), properties=AT_ONCE.properties), key=key)
    for number in (1, 2, 3, 4):
        run.batch([(number, number % 2)])
        run.publish(number)
    at = run.cut(4)
    assert run.sink.maintain(needed(at))[0].files == 4
    found = [task.file for task in table_of(run).scan().plan_files()]
    assert sorted(file.partition[0] for file in found) == [0, 1]
    newer = run.successor()
    newer.sink.take_over()
    newer.sink.collect_garbage([at.cut.snapshot], [])
    assert rows(newer) == run.expected()
    assert {file.file_path for file in found} == set(table_of(run).inspect.files()["file_path"].to_pylist())


def test_without_a_retained_snapshot_nothing_is_expired(tmp_path: Path) -> None:
    run, _ = played(tmp_path)
    before = len(table_of(run).snapshots())
    for act in (run.sink.upkeep, run.sink.maintain):
        _, expired = act([])
        assert "nothing can be called old" in expired.note
    assert len(table_of(run).snapshots()) == before + 1  # merging is one
    assert rows(run) == run.expected()


def test_a_table_with_nothing_of_ours_is_left_alone(tmp_path: Path) -> None:
    run = begun(tmp_path, AT_ONCE)
    assert list(run.sink.maintain([])) == []
    catalog = run.sink._backend.lake.settings.open()  # type: ignore[attr-defined]
    catalog.create_namespace_if_not_exists("db")
    table = catalog.create_table(NAME, schema=pa.schema([("k", pa.int64()), ("v", pa.int64())]))
    table.append(THEIRS)
    table.append(THEIRS)
    run.sink.maintain([])
    assert files(run) == 2


# --- beside publishing ------------------------------------------------------------------------------------------


ENOUGH = 8


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many small files are enough to be merged."""
    monkeypatch.setattr("dagster_ckpt.ext.tables.rewrite.ENOUGH", ENOUGH)


def streamed(folder: Path, target: IcebergTable, publishes: int) -> tuple[SinkRun, list[RunCut]]:
    """A table of many publishes, with the clean-up that a stream has after each, and their cuts."""
    run = begun(folder, target)
    cuts: list[RunCut] = []
    for number in range(1, publishes + 1):
        run.batch([(number, number)])
        run.publish(number)
        cuts.append(run.cut(number))
        run.sink.collect_garbage(needed(*cuts[:1], *cuts[-3:]), [])
    return run, cuts


@pytest.mark.usefixtures("few")
def test_a_stream_merges_files_and_expires_snapshots_beside_publishing(tmp_path: Path) -> None:
    kept = {"history.expire.max-snapshot-age-ms": "0", "history.expire.min-snapshots-to-keep": "5"}
    run, cuts = streamed(tmp_path, IcebergTable(NAME, properties=kept), 34)
    assert files(run) < 20
    assert len(table_of(run).snapshots()) < 34
    assert rows(run) == run.expected()
    for at in (cuts[-2], cuts[0]):
        assert pairs(run.sink.rows(at.cut).to_arrow()) == at.rows
        run = run.restored(at)
        assert rows(run) == at.rows
    run.batch([(1000, 1)])
    run.publish(1000)
    assert rows(run) == run.expected()


@pytest.mark.usefixtures("few")
def test_merging_beside_publishing_that_stopped_anywhere_leaves_rows_and_cuts_exact(tmp_path: Path) -> None:
    found: list[tuple[SinkRun, list[RunCut]]] = []

    def work() -> Callable[[], object]:
        run, cuts = streamed(tmp_path / str(len(found)), AT_ONCE, ENOUGH)
        found.append((run, cuts))
        return lambda: run.reopened().sink.collect_garbage(needed(*cuts[-3:]), [])

    for at in crash_points(work, STEPS):
        run, cuts = found[-1]
        assert rows(run) == run.expected(), at
        newer = run.successor()
        newer.sink.take_over()
        newer.batch([(501, 501)])
        newer.publish(501)
        newer.reopened().sink.collect_garbage(needed(*cuts[-3:]), [])
        assert rows(newer) == newer.expected(), at
        assert rows(newer.restored(cuts[-2])) == cuts[-2].rows, at


@pytest.mark.usefixtures("few")
def test_upkeep_by_hand_merges_and_expires_nothing_beside_publishing(tmp_path: Path) -> None:
    run, _ = streamed(tmp_path, IcebergTable(NAME, upkeep="manual"), 18)
    assert files(run) == len(table_of(run).snapshots()) == 18
