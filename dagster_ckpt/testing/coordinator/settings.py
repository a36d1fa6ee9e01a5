"""Settings that a harness takes by name, for type checkers; a test compares them with the settings themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from dagster_ckpt.core.config import (
    CheckpointingMode,
    ClaimMode,
    ExternalizedCheckpointRetention,
    RestoreOptions,
    Retention,
)
from dagster_ckpt.core.coordinator.state import AckDurability
from dagster_ckpt.core.graph import StageSpec
from dagster_ckpt.core.paths import StorageKind
from dagster_ckpt.core.request import SnapshotScope
from dagster_ckpt.core.restore.facts import DirectoryState, Seen
from dagster_ckpt.ports import CheckpointStorage, CoordinatorStore
from dagster_ckpt.runtime.attempt_setup import Ownership
from dagster_ckpt.runtime.driver.hooks import MasterHook
from dagster_ckpt.testing.coordinator.events import RecordingOperatorCoordinator
from dagster_ckpt.testing.coordinator.world import EdgeLike, ScenarioWorld


class Settings(TypedDict, total=False):
    """The settings of CheckpointConfig, and of RestoreOptions but for ``restore_from``."""

    interval: float | None
    initial_delay: float | None
    interval_during_backlog: float | None
    mode: CheckpointingMode | str
    timeout: float
    min_pause: float
    max_concurrent_checkpoints: int
    tolerable_failed_checkpoints: int
    externalized_checkpoint_retention: ExternalizedCheckpointRetention | str
    num_retained: int
    retention: Mapping[str, int] | Retention
    checkpoint_storage: StorageKind | str
    savepoint_dir: str
    incremental: bool
    checkpoints_after_tasks_finish: bool
    aligned_checkpoint_timeout: float
    unaligned: bool
    instant_cuts: bool
    local_backup: bool
    pause_sources_until_first_checkpoint: bool
    operator_chaining: bool
    claim_mode: ClaimMode | str
    allow_non_restored_state: bool
    adopt_history: bool
    roll_back_tables: bool
    keep_rows_of: tuple[str, ...]
    fork: bool
    allow_missing_files: bool
    without_channel_state_of: int | None


class AttemptOptions(Settings, total=False):
    """Options of another attempt."""

    stages: Mapping[str, int] | Sequence[StageSpec]
    edges: Sequence[EdgeLike]
    pipeline: str
    union_state: Iterable[str]
    hooks: Sequence[MasterHook]
    coordinators: Sequence[RecordingOperatorCoordinator]
    root: str
    ownership: Ownership | str
    restore: RestoreOptions | None
    directory: DirectoryState | str
    acks: AckDurability | str
    seed: int
    world: ScenarioWorld | None
    store: CoordinatorStore | None
    storage: CheckpointStorage | None
    seen: Sequence[Seen]
    strict_history: bool
    history_size: int


class HarnessOptions(AttemptOptions, total=False):
    """Everything that CoordinatorHarness takes."""

    owner: str
    restore_from: str
    running: bool


class RequestFields(TypedDict, total=False):
    """Fields of a request."""

    name: str
    labels: Mapping[str, str]
    note: str
    request_id: str


class TriggerFields(RequestFields, total=False):
    """Fields of a request whose kind is known."""

    periodic: bool
    scope: SnapshotScope | str
    target: str
