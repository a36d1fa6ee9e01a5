"""Two bags that a run is set up with: what its host gives, and what each of its attempts has beside."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any

from dagster_ckpt.core.checkpoint.lease import Lease
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import Moved
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.coordinator.effects import CoordinatorEvent
from dagster_ckpt.core.coordinator.state import AckDurability, Now, Setup
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.core.restore.choice import RestoreDecision
from dagster_ckpt.core.restore.facts import DirectoryState, RestorePurpose, Seen
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.ports import CheckpointStorage, Clock, CoordinatorStore, SystemClock, TaskGateway
from dagster_ckpt.runtime.driver.hooks import MasterHook, OperatorCoordinator
from dagster_ckpt.runtime.files import Background, ReadHandles, ThreadBackground, no_manifest
from dagster_ckpt.runtime.record_store import NOBODY, Operator, RecordStore

Listener = Callable[[CoordinatorEvent], None]


def directory_state(path: str, _record: CoordinatorRecord) -> DirectoryState:
    """Return the state of a working directory on this machine's file system."""
    return DirectoryState.INTACT if path and Path(path).is_dir() else DirectoryState.MISSING


def _random_lineage() -> str:
    return secrets.token_hex(8)


Admit = Callable[[CoordinatorRecord], None]
"""Raises Occupied where the record's owner must not be fenced."""


class Occupied(CheckpointError):
    """Another run owns the pipeline now and is alive: look again. Nothing was changed."""

    kind = "occupied"


def admit_anyone(_record: CoordinatorRecord) -> None:
    """Let the claim go on, whoever owns the pipeline."""


def unheard(_moved: Moved) -> None:
    """Tell nobody that tables show another checkpoint."""


def starts_anyway(_decision: RestoreDecision) -> None:
    """Know nothing that an attempt would need beside what is restored."""


class Ownership(StrEnum):
    """Treatment of an owner that holds the newest epoch already."""

    ATTACH = "attach"
    """Take part in it: another process of the same run."""
    NEW_ATTEMPT = "new_attempt"
    """Claim the next epoch: what is left of the last one, of whichever run, is fenced."""
    RESTART = "restart"
    """Claim the next epoch only while the owner holds the newest one: a fenced run must not fence its successor."""


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """Setup of a run as its host gives it: settings, where everything is kept, who runs and from what."""

    config: CheckpointConfig
    store: CoordinatorStore
    storage: CheckpointStorage
    open_storage: Callable[[str], CheckpointStorage]
    owner: str
    """The Dagster run, or the name of a program's."""
    root: str = ""
    """First run of a chain of retries: what an earlier try completed beats the restore point. Empty: the owner."""
    restore: RestoreOptions = RestoreOptions()
    operator: Operator = NOBODY
    """Who chose what to restore, and what they were shown."""
    listeners: Sequence[Listener] = ()
    clock: Clock = field(default_factory=SystemClock)
    library_version: str = ""
    storage_retries: int = 0
    """How often storage that is unavailable for a moment is asked again while a checkpoint is triggered."""
    admit: Admit = admit_anyone
    """Called with the record a claim is decided on."""


@dataclass(frozen=True, kw_only=True)
class AttemptSetup(RunSetup):
    """Setup of an attempt: its run's, and what the attempt has beside; ``CheckpointCoordinator.open`` takes it."""

    graph: PipelineGraph
    fits_fresh: bool = True
    """The graph's chains are those of a start without state; else such a start raises OtherChains."""
    gateway: TaskGateway
    ownership: Ownership = Ownership.ATTACH
    purpose: RestorePurpose = RestorePurpose.IN_PLACE
    hooks: Mapping[str, MasterHook] = field(default_factory=dict)
    """As ``distinct_hooks`` returns them."""
    coordinators: Mapping[StageUid, OperatorCoordinator] = field(default_factory=dict)
    """As ``distinct_coordinators`` returns them."""
    read_manifest: ReadHandles = no_manifest
    """Names a stage's files; without it, shared files this process did not see are never deleted."""
    directory_state: Callable[[str, CoordinatorRecord], DirectoryState] = directory_state
    seen: Callable[[], Sequence[Seen]] = tuple
    """Returns what working directory and sinks have seen of the pipeline: asked before every claim."""
    check_start: Callable[[RestoreDecision], None] = starts_anyway
    """Raises InvalidRequest where the attempt could not go on from what it starts from: nothing was claimed then."""
    tell_shown: Callable[[Moved], None] = unheard
    """Told what all tables show, once readers find that in the store."""
    new_lineage: Callable[[], str] = _random_lineage
    """Makes the identity of a history."""
    acks: AckDurability = AckDurability.PER_STAGE
    lease: Lease | None = None
    """What tells others that the attempt lives; None: nothing does, and anyone may claim the next epoch."""
    background: Background = field(default_factory=ThreadBackground)
    random: Random = field(default_factory=Random)
    _storages: dict[str, CheckpointStorage] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, run: RunSetup, **of_attempt: Any) -> AttemptSetup:
        """Return the setup of an attempt of a run."""
        given = {each.name: getattr(run, each.name) for each in fields(RunSetup)}
        return cls(**{**given, **of_attempt})

    @property
    def records(self) -> RecordStore:
        """The coordinator's records."""
        return RecordStore(self.store)

    @property
    def store_place(self) -> str:
        """Place of the store, which tells a copy from the original; empty where it does not say."""
        return str(getattr(self.store, "place", ""))

    @property
    def decisions(self) -> Setup:
        """Setup as decisions take it."""
        return Setup(
            graph=self.graph,
            config=self.config,
            storage_uri=self.storage.base_uri,
            hooks=frozenset(self.hooks),
            coordinators=frozenset(self.coordinators),
            library_version=self.library_version,
            acks=self.acks,
        )

    def lease_from(self, now: Now) -> dict[str, object]:
        """Return the changes of the record by which the attempt takes its lease."""
        if self.lease is None:
            return {"lease_until": None, "has_mailbox": True}
        return {"lease_until": now.wall + self.lease.seconds, "has_mailbox": self.lease.reads_mailbox}

    def storage_at(self, uri: str) -> CheckpointStorage:
        """Return the storage at a base URI; the pipeline's own where it is that."""
        if same_place(uri, self.storage.base_uri):
            return self.storage
        if uri not in self._storages:
            self._storages[uri] = self.open_storage(uri)
        return self._storages[uri]

    def now(self) -> Now:
        """The moment, by both clocks."""
        return Now(self.clock.now(), self.clock.monotonic())

    def is_try_of(self, record: CoordinatorRecord) -> bool:
        """Tell whether the record's owner and this one are tries of the same run."""
        return self.owner == record.owner or record.root == (self.root or self.owner)
