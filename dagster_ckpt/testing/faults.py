"""Faults on purpose: wrap a store or a storage, and let calls fail, vanish, hang or end the process.

A wrapper (``FaultyStore``, ``FaultyStorage``) passes every call through its faults, the first one outermost.
One fault object may sit in several wrappers: ``CrashAt`` then counts the calls of both::

    crash = CrashAt(7)
    store = FaultyStore(MemoryCoordinatorStore(), crash)
    storage = FaultyStorage(MemoryCheckpointStorage(), crash)

``SimulatedCrash`` derives from BaseException: no ``except Exception`` on the way to the test swallows it.
"""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from dagster_ckpt.errors import CheckpointError, InvalidRequest, OutcomeUnknown, Unavailable
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore
from dagster_ckpt.testing.faulty import (
    Call,
    Effect,
    Fault,
    FaultyStorage,
    FaultyStore,
    Operation,
    SimulatedCrash,
)

__all__ = [
    "BlockedDeletions",
    "Call",
    "CrashAt",
    "Effect",
    "FailNext",
    "Fault",
    "FaultyStorage",
    "FaultyStore",
    "Gate",
    "HangingStorage",
    "Operation",
    "RecordCalls",
    "SimulatedCrash",
    "Unreliable",
    "UnreliableStorage",
    "UnreliableStore",
]

T = TypeVar("T")


class RecordCalls:
    """No fault: remembers every call in ``calls``, in the order in which they began."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def around(self, call: Call, proceed: Callable[[], T]) -> T:
        """Remember the call, then let it through."""
        self.calls.append(call)
        return proceed()

    def count(self, operation: Operation) -> int:
        """Return how many calls of one operation there were."""
        return sum(call.operation is operation for call in self.calls)


class Unreliable:
    """Each call happens with probability ``happened`` and is answered with probability ``heard`` (seeded).

    Not happened and answered: Unavailable. Not answered: OutcomeUnknown for a write, Unavailable for a read.
    """

    def __init__(self, seed: int, *, happened: float = 0.8, heard: float = 0.8) -> None:
        self.seed = seed
        self._happened = happened
        self._heard = heard
        self._random = Random(seed)
        self._lock = threading.Lock()

    def around(self, call: Call, proceed: Callable[[], T]) -> T:
        """Draw one of the four outcomes."""
        with self._lock:
            happens = self._random.random() < self._happened
            is_heard = self._random.random() < self._heard
        told = f"{call.operation} of {call.subject!r} (unreliable, seed {self.seed})"
        if not happens:
            if is_heard or not call.operation.writes:
                raise Unavailable(f"{told} was refused; retry")
            raise OutcomeUnknown(f"{told} was not answered; read back")
        answer = proceed()
        if is_heard:
            return answer
        if call.operation.writes:
            raise OutcomeUnknown(f"{told} was not answered; read back")
        raise Unavailable(f"the answer to {told} was lost; retry")


class CrashAt:
    """Ends the process at the ``nth`` call (from 1): before its effect, or after it (``Effect.HAPPENED``).

    Every call after the crash raises too: a dead process calls nothing. ``nth=None`` never crashes and counts
    only, which gives the upper end of a sweep.
    """

    def __init__(self, nth: int | None, effect: Effect = Effect.NONE) -> None:
        self.calls = 0
        """Calls begun so far."""
        self.crashed = False
        self._nth = nth
        self._effect = effect
        self._lock = threading.Lock()

    def around(self, call: Call, proceed: Callable[[], T]) -> T:
        """Count; crash at the nth call."""
        with self._lock:
            self.calls += 1
            number = self.calls
            is_dead = self.crashed
            hit = number == self._nth
            self.crashed = is_dead or hit
        if hit and self._effect is Effect.HAPPENED:
            proceed()
        if hit or is_dead:
            raise SimulatedCrash(f"crash at call {self._nth}: {call.operation} of {call.subject!r}")
        return proceed()


@dataclass(slots=True)
class _Armed:
    operation: Operation
    error: CheckpointError
    matching: str
    effect: Effect
    times: int


class FailNext:
    """Fails chosen calls: arm it, then run the code under test. Not armed, it lets everything through.

    >>> fail = FailNext().arm(Operation.CREATE, Unavailable("disk is full"), matching="*/_metadata")
    """

    def __init__(self) -> None:
        self._armed: list[_Armed] = []
        self._lock = threading.Lock()

    def arm(
        self,
        operation: Operation,
        error: CheckpointError,
        *,
        matching: str = "*",
        effect: Effect = Effect.NONE,
        times: int = 1,
    ) -> FailNext:
        """Let the next ``times`` calls whose subject matches the glob raise ``error``; return self.

        Raises InvalidRequest for what cannot be raised, and for less than one time.
        """
        if not isinstance(error, Exception):
            raise InvalidRequest(f"a fault raises an exception, got {error!r}")
        if times < 1:
            raise InvalidRequest(f"a fault fires at least once, got times={times}")
        with self._lock:
            self._armed.append(_Armed(operation, error, matching, effect, times))
        return self

    def disarm(self) -> None:
        """Forget everything armed and not yet fired."""
        with self._lock:
            self._armed.clear()

    def around(self, call: Call, proceed: Callable[[], T]) -> T:
        """Fail the call where one is armed for it."""
        armed = self._take(call)
        if armed is None:
            return proceed()
        if armed.effect is Effect.HAPPENED:
            proceed()
        raise armed.error

    def _take(self, call: Call) -> _Armed | None:
        with self._lock:
            for armed in self._armed:
                if armed.operation is call.operation and fnmatch.fnmatchcase(call.subject, armed.matching):
                    armed.times -= 1
                    if armed.times == 0:
                        self._armed.remove(armed)
                    return armed
        return None


class Gate:
    """Holds the named operations (all, when none is named) until ``release``; closed from the start.

    A call held for longer than ``patience`` seconds fails with Unavailable, so that no test hangs for ever.
    """

    def __init__(self, *operations: Operation, patience: float = 30.0) -> None:
        self._operations = frozenset(operations or Operation)
        self._patience = patience
        self._changed = threading.Condition()
        self._is_open = False
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Calls held at this moment."""
        with self._changed:
            return self._waiting

    def release(self) -> None:
        """Let held and future calls through."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def close(self) -> None:
        """Hold calls from now on."""
        with self._changed:
            self._is_open = False

    def await_waiting(self, calls: int = 1, timeout: float = 10.0) -> None:
        """Return when ``calls`` calls are held; raises TimeoutError after ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting >= calls, timeout):
                raise TimeoutError(f"{self._waiting} of {calls} calls arrived at the gate in {timeout} s")

    def around(self, call: Call, proceed: Callable[[], T]) -> T:
        """Hold the call while the gate is closed."""
        if call.operation in self._operations:
            self._pass(call)
        return proceed()

    def _pass(self, call: Call) -> None:
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            opened = self._changed.wait_for(lambda: self._is_open, self._patience)
            self._waiting -= 1
        if not opened:
            raise Unavailable(
                f"{call.operation} of {call.subject!r} hung for {self._patience} s and was given up"
            )


# --- ready-made wrappers ------------------------------------------------------------------------------------


class UnreliableStore(FaultyStore):
    """A store of which each call happens, and is heard, by a seeded draw."""

    def __init__(
        self, inner: CoordinatorStore, *, seed: int, happened: float = 0.8, heard: float = 0.8
    ) -> None:
        super().__init__(inner, Unreliable(seed, happened=happened, heard=heard))


class UnreliableStorage(FaultyStorage):
    """A storage of which each call happens, and is heard, by a seeded draw."""

    def __init__(
        self, inner: CheckpointStorage, *, seed: int, happened: float = 0.8, heard: float = 0.8
    ) -> None:
        super().__init__(inner, Unreliable(seed, happened=happened, heard=heard))


class BlockedDeletions(FaultyStorage):
    """A storage whose deletions wait at ``gate`` until it is released; everything else works."""

    def __init__(self, inner: CheckpointStorage, *, patience: float = 30.0) -> None:
        self.gate = Gate(Operation.DELETE, patience=patience)
        super().__init__(inner, self.gate)


class HangingStorage(FaultyStorage):
    """A storage that answers nothing until ``gate`` is released."""

    def __init__(self, inner: CheckpointStorage, *, patience: float = 30.0) -> None:
        self.gate = Gate(patience=patience)
        super().__init__(inner, self.gate)
