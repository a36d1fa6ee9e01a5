"""Any history of events, checkpoints and answers: a subtask's snapshot has the events that its coordinator's state has.

Flink plays this with jobs that fail (CoordinatorEventsExactlyOnceITCase); here Hypothesis chooses what comes next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.testing.flink.gated import EventGate, HeldEvent
from tests.properties import examples

SUBTASKS = 2
Part = tuple[CheckpointId, int]
"""One subtask's part of a checkpoint."""


@dataclass
class Run:
    """A driver-side coordinator, its subtasks, and what is on its way between them."""

    gate: EventGate = field(default_factory=lambda: EventGate(parallelism=SUBTASKS))
    sent: list[list[int]] = field(default_factory=lambda: [[] for _ in range(SUBTASKS)])
    on_the_way: list[list[tuple[int, int]]] = field(default_factory=lambda: [[] for _ in range(SUBTASKS)])
    received: list[list[int]] = field(default_factory=lambda: [[] for _ in range(SUBTASKS)])
    untold: CheckpointId | None = None
    """The checkpoint of which the subtasks were not told yet."""
    states: dict[CheckpointId, list[int]] = field(default_factory=dict)
    """How many events a checkpoint's driver-side state says were sent to each subtask."""
    pending: list[CheckpointId] = field(default_factory=list)
    taken: set[Part] = field(default_factory=set)
    unheard: list[Part] = field(default_factory=list)
    """Acknowledgements on their way; they may overtake one another."""
    heard: set[Part] = field(default_factory=set)
    triggered: int = 0

    def send(self, subtask: int) -> None:
        event = len(self.sent[subtask])
        self.sent[subtask].append(event)
        self.gate, passes = self.gate.send(subtask, event)
        if passes:
            self.on_the_way[subtask].append((self.gate.sent, event))

    def arrive(self, subtask: int) -> None:
        if self.on_the_way[subtask]:
            number, event = self.on_the_way[subtask].pop(0)
            self.received[subtask].append(event)
            self.gate = self.gate.delivered(number)

    def trigger(self, _: int) -> None:
        if self.untold is None and len(self.pending) < 3:
            self.triggered += 1
            self.untold = CheckpointId(self.triggered)
            self.gate = self.gate.triggered(self.untold)

    def answer(self, _: int) -> None:
        if self.untold is not None and self.untold not in self.states:
            self.states[self.untold] = [len(events) for events in self.sent]
            self.gate = self.gate.snapshot_done(self.untold)

    def tell(self, _: int) -> None:
        if self.untold in self.states and self.gate.may_complete(self.untold):
            self.pending.append(self.untold)
            self.untold = None

    def checkpoint(self, _: int) -> None:
        """All of it at once, as it is mostly."""
        self.trigger(0)
        self.answer(0)
        self.tell(0)

    def snapshot(self, subtask: int) -> None:
        owed = [cp for cp in self.pending if (cp, subtask) not in self.taken]
        if owed:
            claimed = self.states[owed[0]][subtask]
            assert self.received[subtask] == self.sent[subtask][:claimed], owed[0]
            self.taken.add((owed[0], subtask))
            self.unheard.append((owed[0], subtask))

    def hear(self, which: int) -> None:
        if self.unheard:
            checkpoint, subtask = part = self.unheard.pop(which % len(self.unheard))
            self.heard.add(part)
            self._after(*self.gate.acknowledged(checkpoint, subtask))
            if checkpoint in self.pending and {(checkpoint, n) for n in range(SUBTASKS)} <= self.heard:
                self._end(checkpoint)

    def abort(self, which: int) -> None:
        alive = [*self.pending, *([] if self.untold is None else [self.untold])]
        if alive:
            self._end(alive[which % len(alive)])

    def _end(self, checkpoint: CheckpointId) -> None:
        self.pending = [cp for cp in self.pending if cp != checkpoint]
        self.untold = None if self.untold == checkpoint else self.untold
        self._after(*self.gate.over(checkpoint))

    def _after(self, gate: EventGate, released: tuple[HeldEvent, ...]) -> None:
        first = self.gate.sent + 1
        self.gate = gate
        for number, event in enumerate(released, start=first):
            self.on_the_way[event.subtask].append((number, event.event))

    def play_out(self) -> None:
        """Let everything that is under way come to its end."""
        for _ in range(100):
            self.answer(0)
            self.tell(0)
            for subtask in range(SUBTASKS):
                self.arrive(subtask)
                self.snapshot(subtask)
            self.hear(0)


STEPS = ("send", "arrive", "checkpoint", "trigger", "answer", "tell", "snapshot", "hear", "abort")


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1)), min_size=20, max_size=80))
def test_every_snapshot_has_the_events_of_its_coordinators_state_and_none_is_lost(
    history: list[tuple[str, int]],
) -> None:
    """CoordinatorEventsExactlyOnceITCase#test."""
    run = Run()
    for step, which in history:
        getattr(run, step)(which)
    run.play_out()
    assert (run.pending, run.untold, run.gate.closed, run.gate.held) == ([], None, {}, ())
    for subtask in range(SUBTASKS):
        while run.on_the_way[subtask]:
            run.arrive(subtask)
        assert run.received[subtask] == run.sent[subtask]
