"""Any interleaving of channels: every snapshot is a consistent cut, and nobody waits for ever.

Channels are logs of data, barriers, cancel markers and an end, read as the package docstring asks for.
Whatever order Hypothesis reads them in, each snapshot must hold exactly the data before its barrier on
every channel: processed, or recorded as in-flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.core.alignment import (
    Announcement,
    ArmTimer,
    Barrier,
    BarrierEvent,
    BarrierHandler,
    CancelMarker,
    CancelTimer,
    Decline,
    EndOfPartition,
    PullForward,
    TimerFired,
    TriggerSnapshot,
    Unblock,
    handler_for,
    options_for,
)
from dagster_ckpt.core.config import CheckpointConfig, CheckpointingMode
from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import Alignment, BarrierOptions
from dagster_ckpt.core.model import CheckpointKind
from tests.properties import examples

Entry = tuple[str, int]
"""("data", n), ("barrier", id), ("cancel", id) or ("end", 0)."""


@dataclass
class Snapshot:
    processed: tuple[int, ...]
    recording: frozenset[object]
    unaligned: bool


@dataclass
class Reader:
    """Reads the logs of one stage's inputs under a handler."""

    logs: list[list[Entry]]
    handler: BarrierHandler
    options: dict[int, BarrierOptions]
    now: float = 0.0
    positions: list[int] = field(default_factory=list)
    processed: list[int] = field(default_factory=list)
    standing: set[int] = field(default_factory=set)
    reported: list[set[int]] = field(default_factory=list)
    announced: list[set[int]] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    declined: set[int] = field(default_factory=set)
    timer: ArmTimer | None = None

    def __post_init__(self) -> None:
        self.positions = [0] * len(self.logs)
        self.processed = [0] * len(self.logs)
        self.reported = [set() for _ in self.logs]
        self.announced = [set() for _ in self.logs]

    @property
    def is_done(self) -> bool:
        return all(p == len(log) for p, log in zip(self.positions, self.logs, strict=True))

    def read(self, channel: int) -> bool:
        """Read one entry; return False where the reader stands or has ended."""
        if channel in self.standing or self.positions[channel] == len(self.logs[channel]):
            return False
        what, number = self.logs[channel][self.positions[channel]]
        self.positions[channel] += 1
        match what:
            case "data":
                self.processed[channel] += 1
            case "barrier" if number not in self.reported[channel]:
                self.standing.add(channel)
                self._report(channel, number)
            case "cancel":
                self.send(CancelMarker(channel=channel, checkpoint_id=CheckpointId(number)))
            case "end":
                self.send(EndOfPartition(channel=channel))
        return True

    def look_ahead(self, channel: int) -> None:
        """Announce the next barrier of a channel, if data lies before it."""
        for what, number in self.logs[channel][self.positions[channel] :]:
            if what == "barrier":
                if number not in self.announced[channel] | self.reported[channel]:
                    self.announced[channel].add(number)
                    self.send(
                        Announcement(
                            channel=channel,
                            checkpoint_id=CheckpointId(number),
                            timestamp=float(number),
                            options=self.options[number],
                        )
                    )
                return
            if what != "data":
                return

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.timer is not None and self.timer.at <= self.now:
            due, self.timer = self.timer, None
            self.send(TimerFired(checkpoint_id=due.checkpoint_id))

    def _report(self, channel: int, number: int) -> None:
        self.reported[channel].add(number)
        self.send(
            Barrier(
                channel=channel,
                checkpoint_id=CheckpointId(number),
                timestamp=float(number),
                options=self.options[number],
            )
        )

    def send(self, event: BarrierEvent) -> None:
        turn = self.handler.on(event, now=self.now)
        self.handler = turn.handler
        pulled: list[int] = []
        for effect in turn.effects:
            match effect:
                case Unblock(channel):
                    assert isinstance(channel, int)
                    self.standing.discard(channel)
                case TriggerSnapshot():
                    self._snapshot(effect)
                case Decline(checkpoint_id, _):
                    self.declined.add(checkpoint_id)
                    self.snapshots.pop(checkpoint_id, None)
                case PullForward(channel):
                    assert isinstance(channel, int)
                    pulled.append(channel)
                case ArmTimer():
                    self.timer = effect
                case CancelTimer():
                    self.timer = None
                case _:
                    pass
        for channel in pulled:
            self._pull(channel)

    def _snapshot(self, effect: TriggerSnapshot) -> None:
        assert effect.checkpoint_id not in self.snapshots, "one snapshot per checkpoint"
        assert effect.checkpoint_id not in self.declined, "no snapshot of a checkpoint given up"
        self.snapshots[effect.checkpoint_id] = Snapshot(
            tuple(self.processed), effect.recording, effect.options.alignment is Alignment.UNALIGNED
        )

    def _pull(self, channel: int) -> None:
        ahead = self.logs[channel][self.positions[channel] :]
        number = next((n for what, n in ahead if what == "barrier"), None)
        if number is not None and number not in self.reported[channel]:
            self._report(channel, number)


def before_barrier(log: list[Entry], number: int) -> int | None:
    """How much data lies before the barrier; None where the log has none of it."""
    data = 0
    for what, n in log:
        if what == "barrier" and n == number:
            return data
        data += what == "data"
    return None


@st.composite
def logs(draw: st.DrawFn, *, faults: bool) -> list[list[Entry]]:
    """Two to four channels with the same checkpoints; some barriers replaced by cancel markers, some
    ends."""
    channels = draw(st.integers(2, 4))
    checkpoints = draw(st.integers(1, 5))
    result: list[list[Entry]] = []
    for _ in range(channels):
        last = draw(st.integers(0, checkpoints)) if faults and draw(st.booleans()) else checkpoints
        log: list[Entry] = []
        for number in range(1, last + 1):
            log += [("data", i) for i in range(draw(st.integers(0, 3)))]
            lost = faults and draw(st.integers(0, 5)) == 0
            log.append(("cancel" if lost else "barrier", number))
        log += [("data", 0)] * draw(st.integers(0, 2))
        result.append([*log, ("end", 0)])
    return result


steps = st.lists(st.tuples(st.sampled_from(["read", "read", "look", "wait"]), st.integers(0, 3)), max_size=80)


def run(reader: Reader, moves: list[tuple[str, int]]) -> None:
    for what, number in moves:
        channel = number % len(reader.logs)
        match what:
            case "read":
                reader.read(channel)
            case "look":
                reader.look_ahead(channel)
            case "wait":
                reader.wait(number)
    # Whatever is left is read round robin; a deadlock would be a round without progress.
    while not reader.is_done:
        progress = [reader.read(channel) for channel in range(len(reader.logs))]
        assert any(progress), f"all readers stand: {reader.positions} of {reader.logs}"


def reader_for(config: CheckpointConfig, channels: list[list[Entry]], kinds: list[bool]) -> Reader:
    """``kinds[i]``: checkpoint i + 1 is a savepoint."""
    options = {
        number: options_for(
            CheckpointKind.SAVEPOINT if kinds[number - 1] else CheckpointKind.CHECKPOINT, config
        )
        for number in range(1, 6)
    }
    return Reader(logs=channels, handler=handler_for(config, range(len(channels))), options=options)


CONFIGS = st.sampled_from(
    [
        CheckpointConfig(),
        CheckpointConfig(unaligned=True),
        CheckpointConfig(unaligned=True, aligned_checkpoint_timeout=2),
        CheckpointConfig(unaligned=True, aligned_checkpoint_timeout=1000),
        CheckpointConfig(checkpoints_after_tasks_finish=False, unaligned=True, aligned_checkpoint_timeout=2),
    ]
)
KINDS = st.lists(st.booleans(), min_size=5, max_size=5)


@settings(max_examples=examples(300), deadline=None)
@given(config=CONFIGS, channels=logs(faults=True), moves=steps, kinds=KINDS)
def test_every_snapshot_is_a_consistent_cut(
    config: CheckpointConfig, channels: list[list[Entry]], moves: list[tuple[str, int]], kinds: list[bool]
) -> None:
    reader = reader_for(config, channels, kinds)
    run(reader, moves)
    for number, snapshot in reader.snapshots.items():
        for channel, log in enumerate(channels):
            belongs = before_barrier(log, number)
            taken = snapshot.processed[channel]
            if belongs is None:
                # It ended before: all it ever sent belongs to the cut.
                belongs = sum(what == "data" for what, _ in log)
            if channel in snapshot.recording:
                assert snapshot.unaligned
                assert taken <= belongs, "more was processed than belongs to the cut"
            else:
                assert taken == belongs, f"channel {channel} of checkpoint {number}"


@settings(max_examples=examples(150), deadline=None)
@given(
    # an input that ends while others are aligned aborts the checkpoint where that feature is off
    config=CONFIGS.filter(lambda config: config.checkpoints_after_tasks_finish),
    channels=logs(faults=False),
    moves=steps,
    kinds=KINDS,
)
def test_without_faults_every_checkpoint_is_taken_unless_a_newer_barrier_came_first(
    config: CheckpointConfig, channels: list[list[Entry]], moves: list[tuple[str, int]], kinds: list[bool]
) -> None:
    reader = reader_for(config, channels, kinds)
    run(reader, moves)
    seen = {n for log in channels for what, n in log if what == "barrier"}
    assert set(reader.snapshots) | reader.declined == seen
    assert max(seen) in reader.snapshots
    if not config.unaligned:
        # Held channels cannot run ahead, so nothing is ever jumped over.
        assert not reader.declined


@settings(max_examples=examples(150), deadline=None)
@given(channels=logs(faults=True), moves=steps)
def test_at_least_once_never_holds_and_takes_checkpoints_in_order(
    channels: list[list[Entry]], moves: list[tuple[str, int]]
) -> None:
    config = CheckpointConfig(mode=CheckpointingMode.AT_LEAST_ONCE)
    reader = reader_for(config, channels, [False] * 5)
    run(reader, moves)
    assert not reader.standing
    taken = list(reader.snapshots)
    assert taken == sorted(taken)
    for number, snapshot in reader.snapshots.items():
        for channel, log in enumerate(channels):
            assert snapshot.processed[channel] >= (before_barrier(log, number) or 0)
