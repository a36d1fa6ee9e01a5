"""Recorded traces of simulated worlds, as behaviors that ``specs/Coordinator.tla`` allows or does not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Seen(NamedTuple):
    """What a trace shows of the coordinator's record."""

    epoch: int = 0
    next: int = 1
    pending: frozenset[int] = frozenset()
    completed: frozenset[int] = frozenset()
    """All that ever did, subsumed and disposed of or not."""


def trace_of(seed: int) -> tuple[list[Seen], int]:
    """Play a world; return what was stored of its record, step by step, and how many stages it has."""
    from tests.sim.world import World  # the library and Spark, which whoever reads the models does without

    with tempfile.TemporaryDirectory() as folder:
        world = World(seed, Path(folder) / "world")
        records: list[Mapping[str, Any]] = []
        judged = world.store._wrote
        world.store._wrote = lambda record: (records.append(record), judged(record))[-1]
        world.play()
    of_main = [one for one in records if one["pipeline"] == world.main.name]
    return list(steps_of(of_main)), len(world.main.pipeline.stages)


def steps_of(records: Iterable[Mapping[str, Any]]) -> Iterable[Seen]:
    """Yield the steps; a write that ends checkpoints and begins others is as many."""
    seen = Seen()
    yield seen
    for record in records:
        done = {one["checkpoint_id"] for one in (*record["completed"], *record["savepoints"])}
        completed = seen.completed | done
        pending = frozenset(one["checkpoint_id"] for one in record["pending"])
        now = Seen(record["epoch"], record["next_id"], pending, completed)
        if now.epoch == seen.epoch:
            for over in sorted(seen.pending - pending - completed):
                seen = seen._replace(pending=seen.pending - {over})
                yield seen
        if now != seen:
            yield now
        seen = now


def swapped(steps: Sequence[Seen]) -> list[Seen]:
    """Return the trace with the first completion one step too early: before what it is the completion of."""
    first = next(at for at in range(1, len(steps)) if steps[at].completed != steps[at - 1].completed)
    return [*steps[: first - 1], steps[first], steps[first - 1], *steps[first + 1 :]]


def module_of(steps: Sequence[Seen]) -> str:
    """Return a module whose invariant is violated by the behavior that goes through all steps, if there is one."""
    told = ",\n    ".join(
        f"[epoch |-> {s.epoch}, next |-> {s.next}, pending |-> {_set(s.pending)}, completed |-> {_set(s.completed)}]"
        for s in steps
    )
    return f"""---- MODULE Trace ----
EXTENDS Coordinator, Sequences
VARIABLE at
Recorded == <<
    {told} >>
Seen == [epoch |-> store.epoch, next |-> store.next, pending |-> store.pending, completed |-> store.completed]
Begins == Init /\\ at = 1
Goes == /\\ \\E a \\in Epochs : \\/ Claim(a) \\/ Stop(a) \\/ Trigger(a)
                              \\/ \\E c \\in Ids : \\/ Decline(a, c) \\/ WriteMetadata(a, c) \\/ Complete(a, c)
                                                \\/ \\E s \\in Stages : Acknowledge(a, s, c)
        /\\ \\/ at' = at /\\ Seen' = Recorded[at]
           \\/ at < Len(Recorded) /\\ at' = at + 1 /\\ Seen' = Recorded[at + 1]
Behavior == Begins /\\ [][Goes]_<<vars, at>>
NotYetThrough == at < Len(Recorded)
====
"""


def settings_of(steps: Sequence[Seen], stages: int) -> str:
    """Return the module's settings: as many attempts, checkpoints and stages as the trace has."""
    names = ", ".join(f"s{number}" for number in range(stages))
    return f"""SPECIFICATION Behavior
CONSTANTS
    Stages = {{{names}}}
    Attempts = {max(s.epoch for s in steps)}
    Checkpoints = {max(s.next for s in steps)}
    Concurrent = {max(len(s.pending) for s in steps)}
    Tolerable = {len(steps)}
    Off = {{}}
INVARIANT NotYetThrough
"""


def _set(numbers: Iterable[int]) -> str:
    return f"{{{', '.join(map(str, sorted(numbers)))}}}"
