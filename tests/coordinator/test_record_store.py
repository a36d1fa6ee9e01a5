"""The record store: load, decide, compare-and-set, and again where someone else was faster."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.ports import Committed
from dagster_ckpt.runtime.record_store import TRIES, LoadedRecord, Overtaken, RecordChange, RecordStore
from dagster_ckpt.testing import MemoryCoordinatorStore

NAME = PipelineId("orders")


def record(next_id: int) -> CoordinatorRecord:
    return CoordinatorRecord(pipeline=NAME, next_id=next_id)


@pytest.fixture
def records() -> RecordStore:
    return RecordStore(MemoryCoordinatorStore())


def following(loaded: LoadedRecord | None) -> RecordChange[int]:
    number = 1 if loaded is None else loaded.record.next_id
    return RecordChange(answer=number, record=record(number + 1))


def test_a_change_is_decided_on_the_record_as_it_is(records: RecordStore) -> None:
    assert records.record(NAME) is None
    assert records.transact(NAME, following) == (1, 1)
    assert records.transact(NAME, following) == (2, 2)
    assert records.record(NAME) == record(3)


def test_a_change_that_lost_the_race_is_decided_again(records: RecordStore) -> None:
    races = iter([True, True, False])

    def decide(loaded: LoadedRecord | None) -> RecordChange[int]:
        if next(races):
            records.transact(NAME, following)
        return following(loaded)

    assert records.transact(NAME, decide) == (3, 3)


def test_a_change_that_always_loses_says_that_nothing_was_changed(records: RecordStore) -> None:
    decided = 0

    def decide(loaded: LoadedRecord | None) -> RecordChange[None]:
        nonlocal decided
        decided += 1
        records.transact(NAME, following)
        return RecordChange(answer=None, record=record(999))

    with pytest.raises(Unavailable, match="nothing was changed here"):
        records.transact(NAME, decide)
    assert decided == TRIES
    assert records.record(NAME) == record(TRIES + 1)


def test_no_change_writes_nothing(records: RecordStore) -> None:
    records.transact(NAME, following)
    assert records.transact(NAME, lambda _: RecordChange(answer="as it is", record=None)) == ("as it is", 1)


def test_what_the_decision_raises_changes_nothing(records: RecordStore) -> None:
    def refuse(_: LoadedRecord | None) -> RecordChange[None]:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        records.transact(NAME, refuse)
    assert records.load(NAME) is None


def test_a_write_of_another_version_is_overtaken_and_names_what_is_there(records: RecordStore) -> None:
    assert records.write(NAME, 0, record(5), []) == Committed(1)
    outcome = records.write(NAME, 0, record(9), [])
    assert isinstance(outcome, Overtaken)
    assert outcome.current is not None
    assert outcome.current.record == record(5)
    assert records.is_written(NAME, 0, record(5))
    assert not records.is_written(NAME, 0, record(9))
