"""Owner of an attached pipeline: one process, which others may know to be gone, or have to take to be alive."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.coordinator.mailbox import is_alive
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Fenced

LOOK_EVERY = 0.25


@dataclass(frozen=True, slots=True)
class ProgramOwner:
    """A process that owns a pipeline, or means to; ``name`` is the owner in the record."""

    name: str

    @classmethod
    def here(cls) -> ProgramOwner:
        """Return this process."""
        return cls(f"{socket.gethostname()}-{_processes()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")

    @property
    def is_gone(self) -> bool:
        """True where it was a process beside this one that is gone: nobody need wait for its lease."""
        parts = self.name.rsplit("-", 3)
        if len(parts) != 4 or not _processes() or parts[1] != _processes() or not parts[2].isdecimal():
            return False
        if int(parts[2]) == os.getpid():
            return True  # its number was given again, to this one
        try:
            os.kill(int(parts[2]), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def admit(self, record: CoordinatorRecord) -> None:
        """Let this process claim the pipeline. Raises Fenced where another copy of the program is alive."""
        if record.owner == self.name or ProgramOwner(record.owner).is_gone:
            return
        if is_alive(record, time.time()):
            raise Fenced(
                f"another copy of this program is attached to {record.pipeline!r} and alive ({record.owner}): stop it "
                "first, or attach this one under another name, with directories of its own"
            )

    def wait(self, record: Callable[[], CoordinatorRecord | None]) -> None:
        """Let the lease of a copy that was killed elsewhere be over. Raises Fenced for one that renews it."""
        first = now = record()
        while first is not None and now is not None and not ProgramOwner(now.owner).is_gone:
            if not is_alive(now, time.time()):
                return
            if now.lease_until != first.lease_until:
                self.admit(now)
            time.sleep(LOOK_EVERY)
            now = record()


def _processes() -> str:
    """Return a name of the processes that this one sees by their numbers; empty: nobody can tell."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return digest_bytes(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).checksum[-12:]
    return ""
