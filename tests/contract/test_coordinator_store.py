"""What every CoordinatorStore promises, held against each implementation, also while it is failing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.errors import CheckpointError, InvalidRequest, OutcomeUnknown, Unavailable
from dagster_ckpt.ports import AuditRow, Committed, Conflict, CoordinatorStore, StoredRecord
from dagster_ckpt.testing.faults import UnreliableStore
from dagster_ckpt.testing.memory import MemoryCoordinatorStore
from tests.adapters.workers import history_row

PIPELINE = PipelineId("flights")
OTHER = PipelineId("weather")
FIRST_SEED = int(os.environ.get("DAGSTER_CKPT_SEED", "0"))

OpenStore = Callable[[], CoordinatorStore]


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Each call opens the same store anew, as another process would."""
    if request.param == "memory":
        shared = MemoryCoordinatorStore()
        yield lambda: shared
        return
    sqlite = f"sqlite:///{tmp_path}/new/folder/store.db"
    url = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    opened: list[SqlCoordinatorStore] = []

    def open_another() -> CoordinatorStore:
        opened.append(SqlCoordinatorStore(url))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> CoordinatorStore:
    return open_store()


def test_an_unknown_pipeline_has_no_record_and_no_history(store: CoordinatorStore) -> None:
    assert store.load(PIPELINE) is None
    assert store.history(PIPELINE, limit=10) == []
    assert store.pipelines() == []


def test_rows_leave_the_history_with_the_record_that_forgets_them_or_not_at_all(
    store: CoordinatorStore,
) -> None:
    rows = [history_row(PIPELINE, number) for number in (1, 2, 3)]
    store.compare_and_set(PIPELINE, 0, "one", rows)
    store.compare_and_set(OTHER, 0, "theirs", [history_row(OTHER, 1)])
    gone = (CheckpointId(1), CheckpointId(7))
    assert isinstance(store.compare_and_set(PIPELINE, 0, "late", forgotten=gone), Conflict)
    assert store.history(PIPELINE, limit=9) == rows[::-1]
    assert store.compare_and_set(PIPELINE, 1, "two", forgotten=gone) == Committed(2)
    assert store.history(PIPELINE, limit=9) == rows[:0:-1]
    assert store.history(OTHER, limit=9) == [history_row(OTHER, 1)]


def test_the_first_write_expects_version_zero_and_makes_version_one(store: CoordinatorStore) -> None:
    assert store.compare_and_set(PIPELINE, 0, "first") == Committed(1)
    assert store.load(PIPELINE) == StoredRecord(1, "first")


def test_each_write_makes_the_next_version_and_replaces_the_body(store: CoordinatorStore) -> None:
    for version in range(5):
        assert store.compare_and_set(PIPELINE, version, f"body {version}") == Committed(version + 1)
    assert store.load(PIPELINE) == StoredRecord(5, "body 4")


@pytest.mark.parametrize("expected", [0, 1, 3])
def test_a_write_that_expects_another_version_changes_nothing_and_is_told_the_current_one(
    store: CoordinatorStore, expected: int
) -> None:
    store.compare_and_set(PIPELINE, 0, "one")
    store.compare_and_set(PIPELINE, 1, "two", [history_row(PIPELINE, 1)])
    answer = store.compare_and_set(PIPELINE, expected, "late", [history_row(PIPELINE, 1, "failed")])
    assert answer == Conflict(StoredRecord(2, "two"))
    assert store.load(PIPELINE) == StoredRecord(2, "two")
    assert [row.status for row in store.history(PIPELINE, limit=9)] == ["completed"]


def test_a_write_that_expects_a_record_where_there_is_none_conflicts_with_none(
    store: CoordinatorStore,
) -> None:
    assert store.compare_and_set(PIPELINE, 4, "late") == Conflict(None)
    assert store.load(PIPELINE) is None


def test_writing_the_same_body_twice_still_needs_the_right_version(store: CoordinatorStore) -> None:
    store.compare_and_set(PIPELINE, 0, "same")
    assert store.compare_and_set(PIPELINE, 0, "same") == Conflict(StoredRecord(1, "same"))


def test_pipelines_do_not_see_each_others_records_or_history(store: CoordinatorStore) -> None:
    store.compare_and_set(PIPELINE, 0, "mine", [history_row(PIPELINE, 1)])
    store.compare_and_set(OTHER, 0, "theirs", [history_row(OTHER, 1, "failed"), history_row(OTHER, 2)])
    assert store.load(PIPELINE) == StoredRecord(1, "mine")
    assert store.history(PIPELINE, limit=9) == [history_row(PIPELINE, 1)]
    assert store.pipelines() == [PIPELINE, OTHER]


def deed(number: int, pipeline: PipelineId = PIPELINE) -> AuditRow:
    return AuditRow(
        pipeline=pipeline,
        at=1_800_000_000.25 + number,
        what="restored",
        key=f"chk-{number:06d}",
        uri="s3://b/chk",
        who="ann",
        run_id="r",
        shown="source orders: from 9 back to 7\ntable ü: 3 rows are set aside",
    )


def test_what_people_had_done_is_added_with_the_write_and_comes_newest_first(store: CoordinatorStore) -> None:
    assert store.audited(PIPELINE, limit=5) == []
    store.compare_and_set(PIPELINE, 0, "one", (), [deed(1)])
    store.compare_and_set(PIPELINE, 1, "two", (), [deed(2), deed(3)])
    assert store.audited(PIPELINE, limit=5) == [deed(3), deed(2), deed(1)]
    assert store.audited(PIPELINE, limit=1) == [deed(3)]
    assert store.audited(OTHER, limit=5) == []


def test_a_write_that_comes_second_adds_nothing_to_the_audit(store: CoordinatorStore) -> None:
    store.compare_and_set(PIPELINE, 0, "one")
    store.compare_and_set(PIPELINE, 0, "late", (), [deed(1)])
    assert store.audited(PIPELINE, limit=5) == []


def test_a_history_row_of_another_pipeline_is_refused(store: CoordinatorStore) -> None:
    with pytest.raises(InvalidRequest, match="weather"):
        store.compare_and_set(PIPELINE, 0, "mine", [history_row(OTHER, 1)])
    assert store.load(PIPELINE) is None


def test_history_comes_newest_first_and_in_pages(store: CoordinatorStore) -> None:
    rows = [history_row(PIPELINE, number) for number in (3, 1, 12, 7)]
    store.compare_and_set(PIPELINE, 0, "body", rows)
    ids = [row.checkpoint_id for row in store.history(PIPELINE, limit=2)]
    assert ids == [12, 7]
    following = store.history(PIPELINE, limit=2, before=CheckpointId(7))
    assert [row.checkpoint_id for row in following] == [3, 1]
    assert store.history(PIPELINE, limit=2, before=CheckpointId(1)) == []
    assert store.history(PIPELINE, limit=0) == []


def test_a_history_row_is_replaced_as_its_checkpoint_goes_on(store: CoordinatorStore) -> None:
    store.compare_and_set(PIPELINE, 0, "a", [history_row(PIPELINE, 1, "in_progress")])
    store.compare_and_set(
        PIPELINE, 1, "b", [history_row(PIPELINE, 1), history_row(PIPELINE, 2, "in_progress")]
    )
    assert [row.status for row in store.history(PIPELINE, limit=9)] == ["in_progress", "completed"]


def test_history_rows_come_back_with_every_field(store: CoordinatorStore) -> None:
    from dataclasses import replace

    row = replace(
        history_row(PIPELINE, 2**40, body='{"note": "Zürich 😀"}'),
        kind="savepoint",
        triggered_at=1_790_000_000.123456,
        ended_at=1_790_000_001.5,
    )
    store.compare_and_set(PIPELINE, 0, "body", [row])
    assert store.history(PIPELINE, limit=1) == [row]


def test_a_body_of_a_megabyte_of_any_text_comes_back_unchanged(store: CoordinatorStore) -> None:
    body = "Größe 😀 'quote' \"double\" %s :name \\ \n" * 30_000
    store.compare_and_set(PIPELINE, 0, body)
    assert store.load(PIPELINE) == StoredRecord(1, body)


def test_another_handle_sees_a_write_as_soon_as_it_is_committed(open_store: OpenStore) -> None:
    writer, reader = open_store(), open_store()
    for version in range(10):
        writer.compare_and_set(PIPELINE, version, str(version), [history_row(PIPELINE, version + 1)])
        assert reader.load(PIPELINE) == StoredRecord(version + 1, str(version))
        assert reader.history(PIPELINE, limit=1)[0].checkpoint_id == version + 1


def test_of_threads_that_expect_the_same_version_exactly_one_wins(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(6)]
    for version in range(5):
        answers: list[Committed | Conflict] = []
        barrier = threading.Barrier(len(stores))

        def race(
            number: int,
            version: int = version,
            answers: list[Committed | Conflict] = answers,
            barrier: threading.Barrier = barrier,
        ) -> None:
            barrier.wait()
            answers.append(stores[number].compare_and_set(PIPELINE, version, f"{version}-{number}"))

        threads = [threading.Thread(target=race, args=(n,)) for n in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(type(answer).__name__ for answer in answers) == ["Committed"] + ["Conflict"] * 5
        winner = stores[0].load(PIPELINE)
        assert winner is not None
        assert all(answer.current == winner for answer in answers if isinstance(answer, Conflict))


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 8))
def test_no_increment_is_lost_or_doubled_while_calls_fail_and_answers_get_lost(
    open_store: OpenStore, seed: int
) -> None:
    """A client that follows the error classes counts exactly: retry on Unavailable, read back on OutcomeUnknown."""
    inner = open_store()
    store = UnreliableStore(inner, seed=seed, happened=0.7, heard=0.7)
    for number in range(1, 16):
        _increment(store, token=f"{number}")
        record = inner.load(PIPELINE)
        assert record == StoredRecord(number, f"{number}"), f"seed {seed}"
    assert len(inner.history(PIPELINE, limit=99)) == 15, f"seed {seed}"


def _increment(store: CoordinatorStore, token: str) -> None:
    while True:
        try:
            record = store.load(PIPELINE)
            if record and record.body == token:
                return
            version = record.version if record else 0
            answer = store.compare_and_set(PIPELINE, version, token, [history_row(PIPELINE, int(token))])
            assert isinstance(answer, Committed), "nobody else writes"
            return
        except (Unavailable, OutcomeUnknown):
            continue


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 8))
def test_every_failure_of_an_unreliable_store_tells_the_truth_about_its_effect(
    open_store: OpenStore, seed: int
) -> None:
    inner = open_store()
    store = UnreliableStore(inner, seed=seed, happened=0.5, heard=0.5)
    seen = set()
    for number in range(40):
        before = inner.load(PIPELINE)
        version = before.version if before else 0
        try:
            store.compare_and_set(PIPELINE, version, str(number))
            assert inner.load(PIPELINE) == StoredRecord(version + 1, str(number))
            seen.add("committed")
        except Unavailable:
            assert inner.load(PIPELINE) == before
            seen.add("unavailable")
        except OutcomeUnknown:
            seen.add("unknown, happened" if inner.load(PIPELINE) != before else "unknown, did not happen")
    assert seen == {"committed", "unavailable", "unknown, happened", "unknown, did not happen"}, (
        f"seed {seed}"
    )


def test_errors_of_a_store_are_errors_of_this_library(store: CoordinatorStore) -> None:
    with pytest.raises(CheckpointError):
        UnreliableStore(store, seed=1, happened=0.0).load(PIPELINE)
