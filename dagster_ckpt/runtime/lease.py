"""Keeps an attempt's lease: renews it from a thread of its own, whatever the attempt's own threads are at."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dagster_ckpt.errors import Fenced

log = logging.getLogger("dagster_ckpt.coordinator")


class LeaseKeeper:
    """Calls ``renew`` until it is stopped or the attempt is fenced; a store that is away is asked again."""

    def __init__(self, renew: Callable[[], None], *, every: float) -> None:
        self._renew = renew
        self._every = every
        self._stopping = threading.Event()
        self._renewing = threading.Lock()

    def start(self) -> None:
        """Renew at once, and from now on."""
        threading.Thread(target=self._run, name="lease", daemon=True).start()

    def stop(self) -> None:
        """Renew no more; one renewal that is on its way is waited for, so that none comes after the end."""
        with self._renewing:
            self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._renewing:
                if not self._stopping.is_set() and not self._renewed():
                    return
            self._stopping.wait(self._every)

    def _renewed(self) -> bool:
        try:
            self._renew()
        except Fenced:
            return False
        except Exception as error:  # the next renewal may come in time
            log.warning("the lease could not be renewed: %s", error)
        return True
