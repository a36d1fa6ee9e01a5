"""One pipeline over many attempts, played step by step, with an oracle that remembers what was promised.

Whatever happens, these hold: the checkpoints in the record can be restored, file by file; no file is both referenced
and deleted; ids only grow; a fenced attempt writes nothing; a checkpoint completes at most once and never fails after
that; no more are retained or pending than allowed; readers are shown tables of one moment (``tables``); at the end
nothing is left over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord, parse_record
from dagster_ckpt.core.coordinator.effects import CheckpointCompleted, CheckpointTriggered
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.messages import AcknowledgeResult, StateHandle
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, StageSnapshot
from dagster_ckpt.core.request import RunStatus, SnapshotScope, Triggered
from dagster_ckpt.errors import Fenced, OutcomeUnknown, Unavailable
from dagster_ckpt.runtime.files import handles_of, no_manifest
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.faulty import SimulatedCrash
from dagster_ckpt.testing.memory import MemoryCheckpointStorage
from tests.model.tables import NAMES, Tables

STAGES = {"source": 2, "sink": 1}
RETAINED = 2
CONCURRENT = 3


class World:
    """Everything a step may do; ``random`` chooses the details, so that a seed replays a history."""

    def __init__(self) -> None:
        self.h = CoordinatorHarness(
            stages=STAGES,
            edges=[("source", "sink")],
            num_retained=RETAINED,
            max_concurrent_checkpoints=CONCURRENT,
            tolerable_failed_checkpoints=1000,
            timeout=100.0,
            incremental=True,
            externalized_checkpoint_retention="retain_on_cancellation",
            interval=1.0,
            running=False,
        )
        self.tables = Tables()
        self.tables.follow(self.h)
        self.h.run()
        self.older: list[CoordinatorHarness] = []
        self.ids: list[int] = []
        self.checkpoints: set[int] = set()
        self.completed: list[int] = []
        self.failed: set[int] = set()
        self.disposed: set[int] = set()
        self.written: dict[tuple[int, str], list[StateHandle]] = {}
        self._heard = 0

    # --- what users and stages do ---------------------------------------------------------------------------

    def trigger(self, random: Random) -> None:
        """Ask for a checkpoint or a savepoint."""
        kind = random.choice([CheckpointKind.CHECKPOINT, CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT])
        self.h.trigger(kind)

    def take_a_checkpoint(self, random: Random) -> None:
        """Ask for one and acknowledge all of it."""
        scope = random.choice([SnapshotScope.FULL, SnapshotScope.CONFIGURED, SnapshotScope.CONFIGURED])
        outcome = self.h.trigger(scope=scope)
        if isinstance(outcome, Triggered):
            self._finish(outcome.id, random)

    def acknowledge(self, random: Random) -> None:
        """Acknowledge for a stage, or for one subtask."""
        if not self.h.pending:
            return
        number, stage = random.choice(self.h.pending), random.choice(list(STAGES))
        handles = self._files(number, stage, random)
        if random.random() < 0.5:
            self.h.acknowledge_stage(number, stage, handles=handles)
        else:
            self.h.acknowledge(number, stage, random.randrange(STAGES[stage]), handles=handles)

    def finish_one(self, random: Random) -> None:
        """Acknowledge all that is outstanding of one checkpoint."""
        if self.h.pending:
            self._finish(random.choice(self.h.pending), random)

    def decline(self, random: Random) -> None:
        """Decline for one stage."""
        if self.h.pending:
            number, stage = random.choice(self.h.pending), random.choice(list(STAGES))
            self.h.decline(number, stage, transient=random.random() < 0.5, retries_left=1)

    def answer_late(self, random: Random) -> None:
        """Acknowledge and decline what is over."""
        over = [n for n in self.ids if n not in self.h.pending]
        if over:
            number, stage = random.choice(over), random.choice(list(STAGES))
            self.h.acknowledge_stage(number, stage)
            self.h.decline(number, stage)

    def let_time_pass(self, random: Random) -> None:
        """Let nothing, or everything, expire."""
        self.h.advance(random.choice([1.0, 1.0, 50.0, 100.0]))

    def slow_stages(self, random: Random) -> None:
        """Let stages confirm aborts at once, or not."""
        self.h.confirm_aborts = random.random() < 0.5

    def dispose(self, random: Random) -> None:
        """Dispose of a savepoint."""
        if self.h.savepoints:
            number = random.choice(self.h.savepoints)
            self.disposed.add(number)
            self.h.coordinator.dispose_savepoint(number)

    def tables_refuse(self, random: Random) -> None:
        """Let some tables refuse what they are told from now on, or none."""
        self.tables.refusing = frozenset(name for name in NAMES if random.random() < 0.25)

    def tables_collect_garbage(self, random: Random) -> None:
        """Let tables forget the versions that nobody needs."""
        self.tables.collect_garbage(self.h)

    def periodic_checkpoints(self, random: Random) -> None:
        """Switch them on, so that a pointer waits for the next trigger's write, or off."""
        random.choice([self.h.start_periodic, self.h.stop_periodic])()

    # --- what goes wrong ------------------------------------------------------------------------------------

    def the_store_fails(self, random: Random) -> None:
        """Let the store fail for a while: certainly not done, not done, or done without an answer."""
        fault = random.choice([self.h.fail_next_store, self.h.lose_next_store, self.h.lose_next_store_answer])
        fault(times=random.randint(1, 2))
        self._stir(random)

    def the_storage_fails(self, random: Random) -> None:
        """Let the metadata, a location or a deletion fail."""
        random.choice(
            [self.h.fail_next_metadata_write, self.h.fail_next_location, self.h.fail_next_deletion]
        )()
        self._stir(random)

    def _stir(self, random: Random) -> None:
        """Do something that meets the fault, then let it be over."""
        step = random.choice([self.take_a_checkpoint, self.finish_one, self.decline, self.answer_late])
        try:
            step(random)
        except (Unavailable, OutcomeUnknown):
            self.h.faults.disarm()
            step(random)
        self.h.faults.disarm()

    def deletions_stall(self, random: Random) -> None:
        """Keep deletions back, or let them go on."""
        if random.random() < 0.4:
            self.h.block_deletions()
        else:
            self.h.release_deletions()

    def die_within(self, random: Random) -> None:
        """Let the process end before a metadata file is written."""
        self.h.die_at_next_metadata_write()
        try:
            self.take_a_checkpoint(random)
        except BaseException as crash:
            if type(crash).__name__ != "SimulatedCrash":
                raise
        self.h.live_on()
        self._listen()
        self.crash(random)

    def die_while_tables_are_published(self, random: Random) -> None:
        """Let the process end with some of the tables published, or all and the pointer not moved."""
        self.tables.dies_behind = random.choice(["", *NAMES])
        with suppress(SimulatedCrash):
            self.take_a_checkpoint(random)
        self.tables.dies_behind = None
        self._listen()
        self.crash(random)

    def crash(self, random: Random) -> None:
        """End the process and open the coordinator again for the same run."""
        self.tables.another_process_of(self.h)
        if random.random() < 0.5:
            self.h.coordinator.notify_again()

    def another_process_publishes(self, random: Random) -> None:
        """Let a second process of the run publish and move the pointer, which the first one is not told of."""
        other = self.h.another_process()
        self.tables.follow(other)
        other.coordinator.notify_again()
        self.tables.check(other)

    def an_older_publish_is_told_late(self, random: Random) -> None:
        """Let this process note what its tables have all shown before."""
        self.h.coordinator.tables_shown(self.tables.showing(self.tables.shown_before(random)))
        self.h.backlog()

    def another_attempt(self, random: Random) -> None:
        """Let a newer run take over, whatever the older one was doing."""
        old = self.h
        ending = random.choice(["closed", "crashed", "alive"])
        if ending == "closed":
            old.close(RunStatus.SUSPENDED)
            self.tables.check_end(old)
        elif ending == "crashed":
            old.crash()
        self._listen()
        self.older.append(old)
        where = random.choice(["latest"] * 4 + ["none", *(f"chk-{number}" for number in old.completed)])
        self.h = old.next_attempt(f"run-{len(self.older) + 1}", restore_from=where, running=False)
        self.tables.start(self.h, random, keep=random.random() < 0.2)
        self._heard = 0

    def a_fenced_attempt_acts(self, random: Random) -> None:
        """Let an older attempt try everything: it is refused and changes nothing."""
        if not self.older or not self.ids:
            return
        old, number = random.choice(self.older), random.choice(self.ids)
        old.background.forget()
        before = self._everything()
        for stage in STAGES:
            assert old.acknowledge(number, stage) is AcknowledgeResult.UNKNOWN
            assert old.acknowledge_stage(number, stage) is AcknowledgeResult.UNKNOWN
        acts: list[Callable[[], object]] = [
            old.trigger,
            old.coordinator.poll,
            lambda: old.decline(number, "sink"),
            lambda: old.coordinator.started("/work/fenced", self.tables.showing(1)),
            old.coordinator.notify_again,
        ]
        old.coordinator.tables_shown(self.tables.showing(number))
        for act in acts:
            try:
                act()
            except Fenced:
                continue
            raise AssertionError(f"{act} was not refused")
        assert self._everything() == before

    STEPS = (
        (trigger, 3),
        (take_a_checkpoint, 6),
        (acknowledge, 4),
        (finish_one, 3),
        (decline, 1),
        (answer_late, 1),
        (let_time_pass, 1),
        (slow_stages, 1),
        (dispose, 1),
        (the_store_fails, 2),
        (the_storage_fails, 2),
        (deletions_stall, 2),
        (die_within, 1),
        (die_while_tables_are_published, 1),
        (tables_refuse, 2),
        (tables_collect_garbage, 2),
        (periodic_checkpoints, 1),
        (crash, 1),
        (another_process_publishes, 1),
        (an_older_publish_is_told_late, 1),
        (another_attempt, 1),
        (a_fenced_attempt_acts, 1),
    )
    """Steps and how often they are chosen."""

    def step(self, which: Callable[[World, Random], None], random: Random) -> None:
        """Do one step and check what must hold."""
        which(self, random)
        self._listen()
        self.check()

    # --- what must hold -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check everything that must hold at any moment."""
        self.tables.check(self.h)
        record = self._record()
        for entry in (*record.completed, *record.savepoints):
            missing = [
                key for key in self._referenced(entry) if key not in self._contents(entry.location.base_uri)
            ]
            assert not missing, f"checkpoint {entry.checkpoint_id} lost {missing}"
        assert self.ids == sorted(set(self.ids)), f"ids do not grow: {self.ids}"
        beside = {record.shown_id} - {one.checkpoint_id for one in record.completed[-RETAINED:]} - {None}
        assert len(record.completed) <= RETAINED + len(beside)
        assert sum(not p.properties.kind.is_savepoint for p in record.pending) <= CONCURRENT
        assert not self.failed & set(self.completed), "a completed checkpoint failed"
        assert len(self.completed) == len(set(self.completed)), "a checkpoint completed twice"
        if done := self.checkpoints & set(self.completed):
            assert max(done) in [c.checkpoint_id for c in record.completed], (
                "the newest checkpoint is forgotten"
            )
        kept = {s.checkpoint_id for s in record.savepoints}
        assert set(self.completed) - self.checkpoints - self.disposed <= kept, "a savepoint is forgotten"

    def check_end(self) -> None:
        """End the attempt, open another: of what is not retained nothing is left."""
        self.h.faults.disarm()
        self.h.release_deletions()
        self.h.close(RunStatus.SUSPENDED)
        self.tables.check_end(self.h)
        last = self.h.next_attempt(f"run-{len(self.older) + 2}", running=False)
        self.tables.start(last, Random(0))
        record = self._record()
        unknown = {c.checkpoint_id for c in record.cleanup if c.keep_files and not c.savepoint}
        retained = {c.checkpoint_id for c in record.completed}
        folders = {int(k.split("/")[1].removeprefix("chk-")) for k in last.files() if "/chk-" in k}
        assert folders <= retained | unknown, f"left over: {folders - retained - unknown}"
        assert unknown <= folders, f"files whose fate is unknown were deleted: {unknown - folders}"
        last.close(RunStatus.SUSPENDED)
        self.tables.check_end(last)

    # --- the oracle's senses --------------------------------------------------------------------------------

    def _listen(self) -> None:
        for event in self.h.events[self._heard :]:
            match event:
                case CheckpointTriggered(checkpoint_id=number, kind=kind):
                    self.ids.append(number)
                    if not kind.is_savepoint:
                        self.checkpoints.add(number)
                case CheckpointCompleted(checkpoint_id=number):
                    self.completed.append(number)
                case _:
                    pass
        self._heard = len(self.h.events)
        # Of a completion that the process died behind nobody hears.
        own = (one for one in self._record().completed if one.checkpoint_id in self.checkpoints)
        self.completed += [one.checkpoint_id for one in own if one.checkpoint_id not in self.completed]
        # A failure the store did not take is lost with the process: the next one may complete the checkpoint.
        self.failed |= {f.checkpoint_id for f in self._record().failed}

    def _finish(self, number: CheckpointId, random: Random) -> None:
        for stage, width in STAGES.items():
            for subtask in range(width):
                if number in self.h.pending:
                    self.h.acknowledge(number, stage, subtask, handles=self._files(number, stage, random))

    def _files(self, number: CheckpointId, stage: str, random: Random) -> list[StateHandle]:
        """Return what a stage has written for a checkpoint: it writes once, however often it acknowledges."""
        if (number, stage) not in self.written:
            self.written[number, stage] = self._write(number, stage, random)
        return self.written[number, stage]

    def _write(self, number: CheckpointId, stage: str, random: Random) -> list[StateHandle]:
        """Write a private file; name shared ones again, as far as the checkpoint builds on one; write a new one."""
        handles = [self.h.private(number, stage)]
        if self.h.kind(number).is_savepoint:
            return handles
        previous = self.h.coordinator.location_of(number).previous.get(StageUid(stage))
        if previous is not None and previous.subtask_handles is not None:
            earlier = handles_of(self.h.storage, _metadata_of(previous), no_manifest)
            shared = {h.key: h for h in earlier if "/shared/" in h.key}
            handles += [h for h in shared.values() if random.random() < 0.7]
        if random.random() < 0.5:
            handles.append(self.h.shared(number, stage, "sst"))
        return handles

    def _record(self) -> CoordinatorRecord:
        stored = self.h.memory_store.load(self.h.graph.pipeline)
        assert stored is not None
        return parse_record(stored.body)

    def _contents(self, uri: str) -> dict[str, bytes]:
        storage = self.h.memory_storages[uri]
        assert isinstance(storage, MemoryCheckpointStorage)
        return storage.contents

    def _referenced(self, entry: CompletedRecord) -> list[str]:
        storage = self.h.memory_storages[entry.location.base_uri]
        key = f"{entry.location.folder}/_metadata"
        metadata = decode_metadata(storage.read(key), name=key)
        if metadata.kind.is_savepoint:
            return [key]
        return [key, *(h.key for h in handles_of(storage, metadata, no_manifest))]

    def _everything(self) -> Any:
        stored = self.h.memory_store.load(self.h.graph.pipeline)
        return stored, {uri: set(self._contents(uri)) for uri in self.h.memory_storages}


def _metadata_of(snapshot: StageSnapshot) -> CheckpointMetadata:
    """Wrap one stage's part, for reading its file list."""
    return CheckpointMetadata(
        pipeline="pipeline",
        checkpoint_id=1,
        kind=CheckpointKind.CHECKPOINT,
        epoch=1,
        triggered_at=0.0,
        completed_at=0.0,
        stages=(snapshot,),
    )
