"""Owner of an attached pipeline: one process, which others may know to be gone, or have to take to be alive.

Launched by Dagster it owns the pipeline under the name of the run; a note beside the stages says which process that is.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.supervision.ownership import may_be_asked
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Fenced
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.runtime.attempt_setup import AttemptSetup, Ownership
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.snapshot.upload import handles_in_manifest
from dagster_ckpt.version import __version__

LOOK_EVERY = 0.25
JAVA_ENDS_WITHIN = 60.0
"""Seconds in which the JVM of a program that has ended is waited for; one that still runs then is named."""
STARTED_BY = "DAGSTER_CKPT_ATTACHED"
"""Variable of the environment that names this process to its JVM, which outlives it for a moment, and writes."""


@dataclass(frozen=True, slots=True)
class ProgramOwner:
    """A process that owns a pipeline, or means to; ``name`` is the owner in the record."""

    name: str
    note: Path | None = None
    """File that says which process goes by a run's name."""

    @classmethod
    def here(cls, note: Path | None = None, *, run_id: str = "") -> ProgramOwner:
        """Return this process; ``run_id``: the run of Dagster's that launched it."""
        process = f"{socket.gethostname()}-{_processes()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        if run_id and note is not None:
            note.parent.mkdir(parents=True, exist_ok=True)
            replace_whole(note, f"{run_id} {process}".encode())
        return cls(run_id or process, note)

    def name_to_java(self) -> None:
        """Have a JVM that is started from now on say whose it is."""
        os.environ[STARTED_BY] = self._process_of(self.name).rpartition("-")[0]

    def is_gone(self, owner: str) -> bool:
        """Tell whether an owner was a process beside this one that is gone with its JVM: nobody waits for its lease."""
        parts = self._process_of(owner).rsplit("-", 3)
        if len(parts) != 4 or not _processes() or parts[1] != _processes() or not parts[2].isdecimal():
            return False
        if int(parts[2]) == os.getpid():
            return True  # its number was given again, to this one
        try:
            os.kill(int(parts[2]), 0)
        except ProcessLookupError:
            return not self._java_of(owner)
        except PermissionError:
            pass
        return False

    def _java_of(self, owner: str) -> str:
        """Return the number of a JVM that an owner has started, which may be gone itself; empty: none is there."""
        wanted = f"{STARTED_BY}={self._process_of(owner).rpartition('-')[0]}".encode()
        for one in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_java = (one / "comm").read_text() == "java\n"
                if is_java and wanted in (one / "environ").read_bytes().split(b"\0"):
                    return one.name
        return ""

    def _process_of(self, owner: str) -> str:
        try:
            run_id, _, process = ("" if self.note is None else self.note.read_text()).partition(" ")
        except OSError:
            return owner
        return process if run_id == owner else owner

    def admit(self, record: CoordinatorRecord) -> None:
        """Let this process claim the pipeline. Raises Fenced where another copy of the program is alive."""
        if record.owner == self.name or self.is_gone(record.owner):
            return
        if may_be_asked(record, time.time()):
            raise Fenced(
                f"another copy of this program is attached to {record.pipeline!r} and alive ({record.owner}): stop it "
                "first, or attach this one under another name, with directories of its own"
            )
        if java := self._java_of(record.owner):
            raise Fenced(
                f"the Java process {java} of another copy of this program still runs, and its queries may write: end "
                "it first"
            )

    def setup(self, deployment: Deployment, **more: Any) -> AttemptSetup:
        """Return the setup of an attempt of this process; ``more``: fields that are its own."""
        return AttemptSetup(
            store=deployment.store,
            storage=deployment.storage,
            open_storage=deployment.open_storage,
            owner=self.name,
            admit=self.admit,
            library_version=__version__,
            ownership=Ownership.NEW_ATTEMPT,
            read_manifest=handles_in_manifest,
            **more,
        )

    def wait(self, record: Callable[[], CoordinatorRecord | None]) -> None:
        """Let the lease of a copy that was killed elsewhere be over, and the JVM of one that has ended.

        Raises Fenced for a copy that renews its lease.
        """
        first = now = record()
        patience = time.monotonic() + JAVA_ENDS_WITHIN
        while first is not None and now is not None and not self.is_gone(now.owner):
            if not may_be_asked(now, time.time()):
                if time.monotonic() > patience or not self._java_of(now.owner):
                    return
            elif now.lease_until != first.lease_until:
                self.admit(now)
            time.sleep(LOOK_EVERY)
            now = record()


def _processes() -> str:
    """Return a name of the processes that this one sees by their numbers; empty: nobody can tell."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return digest_bytes(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).checksum[-12:]
    return ""
