"""Deletions in an object store, behind the back of what is being processed: nobody waits for them.

What cannot be deleted now stays until the attempt that wrote it is over: the next one removes all that is left of it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_ckpt.errors import CheckpointError

if TYPE_CHECKING:
    from dagster_ckpt.ports import CheckpointStorage

log = logging.getLogger("dagster_ckpt.exchange")

_AT_ONCE = 256
"""Keys that are handed to the storage in one call."""


@dataclass
class Deletions:
    """Keys to delete, by one thread that is there from the first of them on."""

    storage: CheckpointStorage
    _todo: queue.Queue[Callable[[], Sequence[str]]] = field(default_factory=queue.Queue)
    _starting: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def add(self, keys: Sequence[str]) -> None:
        """Delete these keys soon."""
        self._put(lambda: keys)

    def add_listed(self, prefix: str, chosen: Callable[[str], bool]) -> None:
        """Delete soon what lies below a prefix then and is chosen."""
        self._put(lambda: [found.key for found in self.storage.list(prefix) if chosen(found.key)])

    def wait(self) -> None:
        """Return once all that was added is done."""
        self._todo.join()

    def _put(self, keys: Callable[[], Sequence[str]]) -> None:
        self._todo.put(keys)
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="ckpt-exchange-garbage", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            keys = self._todo.get()
            try:
                self._delete(list(keys()))
            except CheckpointError as error:
                log.info("rows that are no longer needed stay in the object store for now: %s", error)
            except Exception:
                log.exception("rows that are no longer needed stay in the object store for now")
            finally:
                self._todo.task_done()

    def _delete(self, keys: list[str]) -> None:
        for start in range(0, len(keys), _AT_ONCE):
            self.storage.delete(keys[start : start + _AT_ONCE])
