"""Stop the process at every call to the store and the storage in turn, start again, check what must hold.

The same history is played each time: checkpoints that share files, a savepoint, a decline, a restart of the run, a
savepoint disposed of. Two tables are published with each checkpoint, each in a call of its own. ``before`` the effect
of the call, and ``after`` it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from dagster_ckpt.core.checkpoint.failures import UNLIMITED
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import Moved, ShownTable, ShownTables
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import (
    CheckpointFailureReason,
    NotifyComplete,
    StageAcknowledgement,
    StateHandle,
    StateScope,
)
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import CheckpointKind, StageSnapshot
from dagster_ckpt.core.paths import CheckpointPaths
from dagster_ckpt.core.request import CheckpointRequest, RunStatus, Triggered
from dagster_ckpt.errors import NotFound
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.runtime.attempt_setup import AttemptSetup
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.files import handles_of, no_manifest, write_subtask_handles
from dagster_ckpt.testing.coordinator.world import build_graph
from dagster_ckpt.testing.faults import (
    Call,
    CrashAt,
    Effect,
    FaultyStorage,
    FaultyStore,
    Operation,
    SimulatedCrash,
)
from dagster_ckpt.testing.faulty import RecordingGateway
from dagster_ckpt.testing.memory import (
    ManualBackground,
    ManualClock,
    MemoryCheckpointStorage,
    MemoryCoordinatorStore,
)
from tests.properties import fifth
from tests.records import find_record

GRAPH = build_graph("pipeline", {"source": 1, "sink": 1}, [("source", "sink")], frozenset())
CONFIG = CheckpointConfig(num_retained=2, incremental=True, tolerable_failed_checkpoints=UNLIMITED)
PATHS = CheckpointPaths(GRAPH.pipeline)


class Machine:
    """Store and storages that outlive every process."""

    def __init__(self) -> None:
        self.store = MemoryCoordinatorStore()
        self.storage = MemoryCheckpointStorage()
        self.savepoints = MemoryCheckpointStorage("memory://savepoints")
        self.used: list[int] = []
        self.published: list[int] = []
        self.tables: dict[str, list[int]] = {"orders": [], "totals": []}
        """Checkpoints that each has shown; one that went back would still have them."""

    def at(self, uri: str) -> MemoryCheckpointStorage:
        return self.savepoints if uri == self.savepoints.base_uri else self.storage

    def publish(self, number: int, crash: CrashAt) -> ShownTables:
        """Publish one table after the other; what is published is passed over."""
        for uid, shown in self.tables.items():
            if not shown or shown[-1] < number:
                crash.around(Call(Operation.CREATE, uid), partial(shown.append, number))
        tables = {uid: ShownTable(uri=uid, head=shown[-1]) for uid, shown in self.tables.items()}
        return ShownTables(checkpoint_id=number, tables=tables)

    def readers_find(self) -> ShownTables | None:
        """Return what the pointer says, which every table shows and which is retained."""
        record = self.record()
        shown = None if record is None else record.shown
        if record is None or shown is None:
            return None
        for uid, table in shown.tables.items():
            assert shown.checkpoint_id == table.head
            assert table.head in self.tables[uid], f"{uid} does not show {table.head}"
        assert shown.checkpoint_id is not None
        assert record.completed_of(shown.checkpoint_id) is not None, f"{shown.checkpoint_id} is not retained"
        return shown

    def record(self) -> CoordinatorRecord | None:
        return find_record(self.store, GRAPH.pipeline)


class Process:
    """One process of the run; every call passes through ``crash``."""

    def __init__(self, machine: Machine, crash: CrashAt, owner: str) -> None:
        self.machine, self.crash = machine, crash
        self.gateway = RecordingGateway()
        self.gateway.on_complete = self.publish
        self.told: list[ShownTables] = []

        def open_storage(uri: str) -> CheckpointStorage:
            return FaultyStorage(machine.at(uri), crash)

        self.storage = FaultyStorage(machine.storage, crash)
        self.coordinator = CheckpointCoordinator.open(
            AttemptSetup(
                graph=GRAPH,
                config=CONFIG,
                store=FaultyStore(machine.store, crash),
                storage=self.storage,
                open_storage=open_storage,
                gateway=self.gateway,
                clock=ManualClock(),
                owner=owner,
                background=ManualBackground(),
                tell_shown=self.tell,
            )
        )
        self.coordinator.started("/work")

    def publish(self, message: NotifyComplete) -> None:
        self.machine.published.append(message.checkpoint_id)
        shown = self.machine.publish(message.checkpoint_id, self.crash)
        if hasattr(self, "coordinator"):  # while it is opened there is no working directory yet
            self.coordinator.tables_shown(shown)

    def tell(self, moved: Moved) -> None:
        assert self.machine.readers_find() == moved.after, "what is told is what readers find"
        self.told.append(moved.after)

    def trigger(self, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> CheckpointId:
        target = "memory://savepoints" if kind.is_savepoint else ""
        outcome = self.coordinator.trigger(CheckpointRequest(kind=kind, target=target))
        assert isinstance(outcome, Triggered), outcome
        self.machine.used.append(outcome.id)
        return outcome.id

    def acknowledge(self, number: CheckpointId, uid: str, *, new: int = 1) -> None:
        """Write a private file, name the shared ones of the previous checkpoint, write ``new`` ones."""
        location = self.coordinator.location_of(number)
        storage = location.storage
        private = f"{location.folder}/{uid}/offsets"
        storage.create(private, b"offsets")
        handles = [StateHandle(private, 7)]
        previous = location.previous.get(StageUid(uid))
        if previous is not None and previous.subtask_handles is not None:
            handles += self._earlier(previous)
        for index in range(0 if location.kind.is_savepoint else new):
            key = PATHS.shared_file(StageUid(uid), number, f"sst-{index}")
            storage.create(key, b"sst")
            handles.append(StateHandle(key, 3, StateScope.SHARED))
        listed = write_subtask_handles(storage, location.folder, uid, {0: tuple(handles)})
        self.coordinator.acknowledge_stage(
            StageAcknowledgement(
                checkpoint_id=number,
                attempt=self.coordinator.attempt_of(StageUid(uid)),
                snapshot=StageSnapshot(uid=uid, parallelism=1, subtask_handles=listed),
                handles=tuple(handles),
            )
        )

    def _earlier(self, previous: StageSnapshot) -> list[StateHandle]:
        entry = self.coordinator.record.completed[-1]
        metadata = decode_metadata(self.storage.read(f"{entry.location.folder}/_metadata"), name="previous")
        wanted = metadata.model_copy(update={"stages": (previous,)})
        return [h for h in handles_of(self.storage, wanted, no_manifest) if h.scope is StateScope.SHARED][:2]

    def complete(self, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> CheckpointId:
        number = self.trigger(kind)
        self.acknowledge(number, "source")
        self.acknowledge(number, "sink", new=2)
        return number


def play(machine: Machine, crash: CrashAt) -> None:
    """The history; it may end anywhere."""
    first = Process(machine, crash, "run-1")
    for _ in range(3):
        first.complete()
    savepoint = first.complete(CheckpointKind.SAVEPOINT)
    number = first.trigger()
    first.acknowledge(number, "source")
    first.coordinator.decline(
        number,
        first.coordinator.attempt_of(StageUid("sink")),
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        "disk full",
        transient=False,
        retries_left=0,
    )
    first.coordinator.confirm_aborted(number, StageUid("sink"))
    first.complete()
    pending = first.trigger()
    first.acknowledge(pending, "source")
    second = Process(machine, crash, "run-2")
    second.complete()
    second.coordinator.dispose_savepoint(savepoint)
    second.coordinator.close(RunStatus.SUSPENDED, clean=True)


def calls_of_the_history() -> int:
    crash = CrashAt(None)
    play(Machine(), crash)
    return crash.calls


CALLS = calls_of_the_history()


def survive(machine: Machine, crash: CrashAt) -> bool:
    """Play until the crash; return whether there was one."""
    try:
        play(machine, crash)
    except SimulatedCrash:
        return True
    return False


def missing_files(machine: Machine) -> list[str]:
    record = machine.record()
    lost: list[str] = []
    for entry in () if record is None else (*record.completed, *record.savepoints):
        storage = machine.at(entry.location.base_uri)
        key = f"{entry.location.folder}/_metadata"
        try:
            metadata = decode_metadata(storage.read(key), name=key)
        except NotFound:
            lost.append(key)
            continue
        if not metadata.kind.is_savepoint:
            lost += [
                h.key for h in handles_of(storage, metadata, no_manifest) if h.key not in storage.contents
            ]
    return lost


def test_the_history_is_worth_sweeping() -> None:
    assert CALLS > 120


@pytest.mark.parametrize("effect", [Effect.NONE, Effect.HAPPENED], ids=["before", "after"])
def test_a_crash_at_any_call_loses_nothing_and_leaves_nothing(effect: Effect) -> None:
    for nth in fifth(range(1, CALLS + 1)):
        machine = Machine()
        assert survive(machine, CrashAt(nth, effect)), f"no crash at call {nth}"
        check(machine, f"crash {effect.value} call {nth} of {CALLS}")


@pytest.mark.slow
@pytest.mark.parametrize("effect", [Effect.NONE, Effect.HAPPENED], ids=["before", "after"])
def test_a_crash_while_recovering_from_a_crash_loses_nothing(effect: Effect) -> None:
    """The second process dies too, at each of its first calls."""
    for nth in fifth(range(1, CALLS + 1, 7)):
        for again in range(1, 12):
            machine = Machine()
            survive(machine, CrashAt(nth, effect))
            recover_until(machine, CrashAt(again, effect))
            check(machine, f"crash at call {nth}, then at call {again} of the recovery")


def recover_until(machine: Machine, crash: CrashAt) -> None:
    with suppress(SimulatedCrash):
        Process(machine, crash, "run-3").complete()


def check(machine: Machine, where: str) -> None:
    """Recover as the same run, then as a newer one; check every promise."""
    assert not missing_files(machine), f"{where}: {missing_files(machine)}"
    machine.readers_find()
    before = machine.record()
    never = CrashAt(None)
    owner = before.owner if before is not None and before.owner else "run-1"
    attached = Process(machine, never, owner)
    attached.coordinator.poll()
    assert not missing_files(machine), where
    latest = attached.coordinator.record.latest_completed
    if latest is not None:
        assert machine.published[-1] == latest, f"{where}: the completion of {latest} was never told"
    newer = Process(machine, never, "run-9")
    started = newer.complete()
    assert started > max([0, *machine.used[:-1]]), f"{where}: id {started} was used before"
    newer.complete()
    newer.coordinator.close(RunStatus.SUSPENDED, clean=True)
    found = machine.readers_find()
    assert found is not None, where
    assert newer.told[-1] == found, where
    assert (found.checkpoint_id, found.tables["orders"].head) == (
        machine.used[-1],
        machine.tables["orders"][-1],
    ), where
    Process(machine, never, "run-10")
    assert not missing_files(machine), where
    left_over(machine, where)


def left_over(machine: Machine, where: str) -> None:
    """Of checkpoints that are not retained nothing is left, shared files included."""
    record = machine.record()
    assert record is not None
    retained = {c.checkpoint_id for c in record.completed}
    found = {PATHS.number_of(key) for key in machine.storage.contents if "/chk-" in key}
    assert found <= retained, f"{where}: left over {found - retained}"
    referenced: set[str] = set()
    for entry in record.completed:
        metadata = decode_metadata(
            machine.storage.read(f"{entry.location.folder}/_metadata"), name="retained"
        )
        referenced |= {h.key for h in handles_of(machine.storage, metadata, no_manifest)}
    shared = {key for key in machine.storage.contents if "/shared/" in key}
    assert shared <= referenced, f"{where}: shared files left over: {sorted(shared - referenced)}"


def test_the_checks_notice_a_lost_file() -> None:
    """The sweep is worth nothing if its checks are blind."""
    broken: list[Callable[[Machine], None]] = [
        lambda m: m.storage.delete([next(k for k in m.storage.contents if "/shared/" in k)]),
        lambda m: m.storage.delete([next(k for k in m.storage.contents if k.endswith("_metadata"))]),
        lambda m: m.storage.delete([next(k for k in m.storage.contents if k.endswith("offsets"))]),
    ]
    for breaks in broken:
        machine = Machine()
        play(machine, CrashAt(None))
        assert not missing_files(machine)
        breaks(machine)
        assert missing_files(machine)
