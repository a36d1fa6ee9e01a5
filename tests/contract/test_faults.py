"""The fault decorators themselves: a fault that fires at the wrong moment would make every test above it worthless."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import OutcomeUnknown, Unavailable
from dagster_ckpt.ports import Committed, StoredRecord
from dagster_ckpt.testing.faults import (
    BlockedDeletions,
    CrashAt,
    Effect,
    FailNext,
    FaultyStorage,
    FaultyStore,
    Gate,
    HangingStorage,
    Operation,
    RecordCalls,
    SimulatedCrash,
    UnreliableStorage,
)
from dagster_ckpt.testing.memory import MemoryCheckpointStorage, MemoryCoordinatorStore

PIPELINE = PipelineId("flights")


def test_a_crash_is_no_exception_that_code_could_swallow_by_accident() -> None:
    assert not issubclass(SimulatedCrash, Exception)


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("effect", list(Effect))
def test_a_crash_stops_store_and_storage_at_the_nth_call_of_both(nth: int, effect: Effect) -> None:
    crash = CrashAt(nth, effect)
    inner_store, inner_storage = MemoryCoordinatorStore(), MemoryCheckpointStorage()
    store, storage = FaultyStore(inner_store, crash), FaultyStorage(inner_storage, crash)

    def process() -> None:
        storage.create("a", b"1")
        storage.create("b", b"2")
        store.compare_and_set(PIPELINE, 0, "record")

    with pytest.raises(SimulatedCrash):
        process()
    done = nth if effect is Effect.HAPPENED else nth - 1
    happened = [*sorted(inner_storage.contents), *inner_store.pipelines()]
    assert happened == ["a", "b", PIPELINE][:done]
    with pytest.raises(SimulatedCrash):
        store.load(PIPELINE)


def test_a_crash_that_never_comes_counts_the_calls_of_a_sweep() -> None:
    crash = CrashAt(None)
    storage = FaultyStorage(MemoryCheckpointStorage(), crash)
    storage.create("a", b"1")
    list(storage.list(""))
    assert crash.calls == 2


@pytest.mark.parametrize(("effect", "stored"), [(Effect.NONE, []), (Effect.HAPPENED, ["p/chk-1/_metadata"])])
def test_an_armed_failure_hits_the_matching_call_once(effect: Effect, stored: list[str]) -> None:
    inner = MemoryCheckpointStorage()
    fail = FailNext()
    storage = FaultyStorage(inner, fail)
    fail.arm(Operation.CREATE, OutcomeUnknown("no answer"), matching="*/_metadata", effect=effect)
    storage.create("p/chk-1/file", b"x")
    with pytest.raises(OutcomeUnknown, match="no answer"):
        storage.create("p/chk-1/_metadata", b"x")
    assert sorted(inner.contents) == sorted(["p/chk-1/file", *stored])
    storage.create("p/chk-2/_metadata", b"x")
    assert "p/chk-2/_metadata" in inner.contents


def test_an_armed_failure_may_hit_several_times_or_be_taken_back() -> None:
    fail = FailNext()
    store = FaultyStore(MemoryCoordinatorStore(), fail)
    fail.arm(Operation.LOAD, Unavailable("down"), times=2)
    for _ in range(2):
        with pytest.raises(Unavailable):
            store.load(PIPELINE)
    assert store.load(PIPELINE) is None
    fail.arm(Operation.LOAD, Unavailable("down"))
    fail.disarm()
    assert store.load(PIPELINE) is None


def test_deletions_wait_at_the_gate_while_everything_else_works() -> None:
    inner = MemoryCheckpointStorage()
    storage = BlockedDeletions(inner)
    storage.create("a", b"1")
    deleter = threading.Thread(target=storage.delete, args=(["a"],))
    deleter.start()
    storage.gate.await_waiting(1)
    assert storage.read("a") == b"1"
    assert inner.deleted == []
    storage.gate.release()
    deleter.join()
    assert inner.deleted == ["a"]
    storage.delete(["never", "waits", "again"])


def test_a_hanging_storage_is_given_up_after_its_patience() -> None:
    storage = HangingStorage(MemoryCheckpointStorage(), patience=0.05)
    with pytest.raises(Unavailable, match="hung"):
        storage.create("a", b"1")
    assert storage.gate.waiting == 0
    storage.gate.release()
    storage.create("a", b"1")


def test_waiting_for_calls_that_never_come_times_out() -> None:
    with pytest.raises(TimeoutError, match="0 of 1"):
        Gate(Operation.DELETE).await_waiting(1, timeout=0.01)


def test_the_same_seed_gives_the_same_faults() -> None:
    def outcomes(seed: int) -> list[str]:
        storage = UnreliableStorage(MemoryCheckpointStorage(), seed=seed, happened=0.5, heard=0.5)
        found = []
        for number in range(30):
            try:
                storage.create(f"{number}", b"x")
                found.append("stored")
            except (Unavailable, OutcomeUnknown) as error:
                found.append(error.kind)
        return found

    assert outcomes(7) == outcomes(7)
    assert len({tuple(outcomes(seed)) for seed in range(5)}) == 5


def test_calls_are_recorded_in_order_and_every_operation_passes_through(tmp_path: Path) -> None:
    calls = RecordCalls()
    storage = FaultyStorage(MemoryCheckpointStorage("memory://mine"), calls)
    store = FaultyStore(MemoryCoordinatorStore(), calls)
    digest = storage.create("p/a", b"1")
    storage.fetch("p/a", tmp_path / "a", digest)  # type: ignore[arg-type]
    assert storage.read("p/a") == b"1"
    assert [found.key for found in storage.list("p")] == ["p/a"]
    storage.delete(["p/a", "p/b"])
    assert store.compare_and_set(PIPELINE, 0, "record") == Committed(1)
    assert store.load(PIPELINE) == StoredRecord(1, "record")
    assert store.history(PIPELINE, limit=1) == []
    assert store.pipelines() == [PIPELINE]
    assert [call.operation for call in calls.calls] == [
        Operation.CREATE,
        Operation.FETCH,
        Operation.READ,
        Operation.LIST,
        Operation.DELETE,
        Operation.COMPARE_AND_SET,
        Operation.LOAD,
        Operation.HISTORY,
        Operation.PIPELINES,
    ]
    assert calls.calls[4].subject == "p/a p/b"
    assert calls.count(Operation.CREATE) == 1
    assert storage.base_uri == "memory://mine"
