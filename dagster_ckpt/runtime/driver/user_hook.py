"""A user's hook as a master hook: called in a thread of its own, one call at a time, each within a time limit."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooSlow
from typing import Any, Protocol

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.metadata_text import decode_state, encode_state
from dagster_ckpt.errors import CheckpointError, Declined, Unavailable
from dagster_ckpt.runtime.driver.hooks import ResultPending

log = logging.getLogger("dagster_ckpt.hooks")

CLOSE_WITHIN = 10.0
"""Seconds the end of an attempt waits for calls that have not returned."""


class TakesAnswers(Protocol):
    """Where the result of ``trigger`` goes: the coordinator."""

    def acknowledge_hook(self, checkpoint_id: CheckpointId, hook_id: str, state: object) -> None:
        """Take the state; None: it has none."""
        ...

    def fail_hook(self, checkpoint_id: CheckpointId, hook_id: str, error: Exception) -> None:
        """Fail the checkpoint."""
        ...


class HookFailed(Exception):
    """A hook raised, or did not answer in time: that fails a checkpoint, and is never counted against the pipeline."""


class UserHook:
    """Calls the methods the user's object has; the others do nothing.

    A call that hangs holds up later calls of this hook, never the coordinator: each checkpoint meanwhile fails for it.
    """

    def __init__(
        self, identifier: str, hook: object, *, timeout: float, warn: Callable[[str], None] = log.warning
    ) -> None:
        self.identifier = identifier
        self.hook = hook
        """What the user made."""
        self._timeout = timeout
        self._warn = warn
        self._answers: TakesAnswers | None = None
        self._calls: queue.SimpleQueue[tuple[str, Callable[[], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._busy = ""
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def answer_to(self, coordinator: TakesAnswers) -> None:
        """Give the results of ``trigger`` to this coordinator."""
        self._answers = coordinator

    # --- a checkpoint -----------------------------------------------------------------------------------------

    def trigger(self, checkpoint_id: CheckpointId, timestamp: float) -> ResultPending | None:
        """Ask for the state; it follows, or the checkpoint fails when it does not in time."""
        if not hasattr(self.hook, "trigger"):
            return None
        call = self._call("trigger", checkpoint_id, timestamp)
        timer = threading.Timer(self._timeout, self._give_up, (checkpoint_id, call))
        timer.daemon = True
        timer.start()

        def answer(done: Future[Any]) -> None:
            timer.cancel()
            self._answer(checkpoint_id, done)

        call.add_done_callback(answer)
        return ResultPending()

    def _answer(self, checkpoint_id: CheckpointId, done: Future[Any]) -> None:
        if self._answers is None or done.cancelled():
            return
        error = done.exception()
        try:
            if error is None:
                self._answers.acknowledge_hook(checkpoint_id, self.identifier, done.result())
            else:
                self._answers.fail_hook(checkpoint_id, self.identifier, _as_failure(error))
        except (
            CheckpointError
        ) as failure:  # the attempt is over, or its store does not answer: the timeout ends it
            log.warning(
                "hook %r: the answer for checkpoint %s was lost: %s", self.identifier, checkpoint_id, failure
            )

    def _give_up(self, checkpoint_id: CheckpointId, call: Future[Any]) -> None:
        if call.cancel() or not call.done():
            late = HookFailed(
                f"it did not answer within {self._timeout:g} s (it is in {self._busy or 'no call'})"
            )
            if self._answers is not None:
                try:
                    self._answers.fail_hook(checkpoint_id, self.identifier, late)
                except CheckpointError as failure:
                    log.warning("hook %r: %s", self.identifier, failure)

    def serialize(self, state: Any) -> str:
        """Return a state as text."""
        return encode_state(f"hook {self.identifier!r}", state)

    def deserialize(self, text: str) -> Any:
        """Return the state that ``serialize`` was given."""
        return decode_state(f"hook {self.identifier!r}", text)

    def complete(self, checkpoint_id: CheckpointId) -> None:
        """Pass it on; nobody waits for it."""
        self._tell("complete", checkpoint_id)

    def subsumed(self, checkpoint_id: CheckpointId) -> None:
        """Pass it on; nobody waits for it."""
        self._tell("subsumed", checkpoint_id)

    def aborted(self, checkpoint_id: CheckpointId) -> None:
        """Pass it on; nobody waits for it."""
        self._tell("aborted", checkpoint_id)

    def _tell(self, method: str, checkpoint_id: CheckpointId) -> None:
        if hasattr(self.hook, method):
            self._call(method, checkpoint_id).add_done_callback(
                lambda done: self._warn_if_failed(f"{method}({checkpoint_id})", done)
            )

    def _warn_if_failed(self, what: str, done: Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._warn(f"hook {self.identifier!r} failed in {what}: {_sentence(error)}")

    # --- the attempt ------------------------------------------------------------------------------------------

    def restore(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Give the state back, or begin empty where the checkpoint has none. Raises Unavailable when that fails."""
        if state is None:
            self.reset()
        else:
            self._start_with("restore", checkpoint_id, state)

    def resume(self, checkpoint_id: CheckpointId | None, state: Any) -> None:
        """As ``restore``, unless the hook has a ``resume`` of its own. Raises Unavailable when that fails."""
        if hasattr(self.hook, "resume"):
            self._start_with("resume", checkpoint_id, state)
        elif checkpoint_id is not None:
            self.restore(checkpoint_id, state)

    def reset(self) -> None:
        """Begin empty. Raises Unavailable when that fails."""
        self._start_with("reset")

    def _start_with(self, method: str, *args: Any) -> None:
        if not hasattr(self.hook, method):
            return
        call = self._call(method, *args)
        try:
            call.result(self._timeout)
        except TooSlow as error:
            why = _sentence(error) if call.done() else f"it did not return within {self._timeout:g} s"
            raise Unavailable(self._not_started(method, why)) from error
        except Exception as error:
            raise Unavailable(self._not_started(method, _sentence(error))) from error

    def _not_started(self, method: str, why: str) -> str:
        return f"hook {self.identifier!r} failed in {method}: {why}. The run cannot start without it: start it again"

    def close(self) -> None:
        """Let calls in progress end, within ``CLOSE_WITHIN`` seconds, and close the hook. Again: nothing happens."""
        if self._is_closed:
            return
        self._is_closed = True
        if hasattr(self.hook, "close"):
            self._call("close").add_done_callback(lambda done: self._warn_if_failed("close", done))
        thread = self._thread
        if thread is None:
            return
        self._calls.put(None)
        if thread is not threading.current_thread():
            thread.join(min(self._timeout, CLOSE_WITHIN))
        if thread.is_alive() and self._busy:
            self._warn(f"hook {self.identifier!r} was left behind in {self._busy}: it does not return")

    # --- its thread -------------------------------------------------------------------------------------------

    def _call(self, method: str, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        work = getattr(self.hook, method)
        name = f"{method}({', '.join(map(repr, args[:1]))})"
        self._calls.put((name, lambda: work(*args), future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"hook-{self.identifier}", daemon=True)
            self._thread.start()
        return future

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            self._busy, work, future = item
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            self._busy = ""


def _as_failure(error: BaseException) -> Exception:
    """Return the failure of the checkpoint; only a ``Declined`` brings a reason of its own."""
    return error if isinstance(error, Declined) else HookFailed(_sentence(error))


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
