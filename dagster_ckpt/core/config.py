"""Settings under Flink's option names. Durations are seconds as floats at this level; None means "not set".

The full table of options, defaults and their Flink names is ``docs/reference/configuration.md``;
a test holds it against this file.
"""

from __future__ import annotations

from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class CheckpointingMode(StrEnum):
    """Guarantee for the pipeline's state (and its two-phase sinks)."""

    EXACTLY_ONCE = "exactly_once"
    """Barriers are aligned; two-phase sinks publish when the checkpoint completes."""
    AT_LEAST_ONCE = "at_least_once"
    """Nothing is ever held; sinks publish at once; after a failure rows may repeat."""


class ExternalizedCheckpointRetention(StrEnum):
    """What becomes of retained checkpoints when the run ends (Flink: externalized-checkpoint-retention)."""

    NO_EXTERNALIZED_CHECKPOINTS = "no_externalized_checkpoints"
    DELETE_ON_CANCELLATION = "delete_on_cancellation"
    RETAIN_ON_CANCELLATION = "retain_on_cancellation"


class ClaimMode(StrEnum):
    """Who owns the snapshot a run is restored from (Flink: RecoveryClaimMode)."""

    CLAIM = "claim"
    """The pipeline takes it over and deletes it when it is subsumed."""
    NO_CLAIM = "no_claim"
    """It is never deleted, and the next checkpoint depends on none of its files."""
    LEGACY = "legacy"
    """It is never deleted, but later checkpoints may depend on its files."""


Seconds = Annotated[float, Field(ge=0)]
M = TypeVar("M", bound=BaseModel)


class CheckpointConfig(BaseModel):
    """How checkpoints of one pipeline are taken, counted and kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    interval: float | None = None
    """Seconds between periodic checkpoints; None: none are taken by timer. At least 0.01."""
    initial_delay: float | None = Field(default=None, ge=0)
    """Seconds before a run's first periodic checkpoint; None: drawn from ``min_pause`` to ``interval``, as in Flink."""
    interval_during_backlog: float | None = Field(default=None, ge=0)
    """Interval while a source works off a backlog: None as ``interval``, 0 none, else >= ``interval``."""
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    timeout: float = 600.0
    """Seconds from trigger to completion; then the checkpoint expires. At least 0.01."""
    min_pause: Seconds = 0.0
    """Seconds after a completion in which no periodic checkpoint is triggered."""
    max_concurrent_checkpoints: int = Field(default=1, ge=1)
    tolerable_failed_checkpoints: int = Field(default=0, ge=0)
    """Consecutive counted failures the run survives; it fails when there are more. 2**31 - 1: unlimited."""
    externalized_checkpoint_retention: ExternalizedCheckpointRetention = (
        ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
    )
    num_retained: int = Field(default=1, ge=1)
    """Completed checkpoints kept."""
    savepoint_dir: str = ""
    """URI under which savepoints are written when none is given."""
    incremental: bool = False
    """Upload only files no earlier retained checkpoint has (the Dagster resource sets this to true)."""
    data_inline_threshold: int = Field(default=20 * 1024, ge=0, le=1024 * 1024)
    """Files up to this many bytes are kept in the manifest itself."""
    checkpoints_after_tasks_finish: bool = True
    aligned_checkpoint_timeout: Seconds = 0.0
    """Seconds after which an aligned checkpoint turns unaligned (with ``unaligned``); 0: unaligned at once."""
    unaligned: bool = False
    unaligned_forced: bool = False
    cleaner_parallel_mode: bool = True
    local_backup: bool = False
    """Keep a local copy of the latest checkpoint and prefer it on restore when it is intact."""
    pause_sources_until_first_checkpoint: bool = False
    """A stream's sources write nothing before a checkpoint of the attempt has completed: a restart loses nothing."""
    history_size: int = Field(default=10, ge=0)
    """Checkpoints kept in the statistics (Flink: web.checkpoints.history)."""

    @model_validator(mode="after")
    def _check(self) -> CheckpointConfig:
        if self.timeout < 0.01:
            raise ValueError(f"timeout must be at least 0.01 s, got {self.timeout}")
        if self.interval is not None and self.interval < 0.01:
            raise ValueError(
                f"interval must be at least 0.01 s, got {self.interval}: leave it out for no timer"
            )
        if self.unaligned and self.max_concurrent_checkpoints > 1:
            raise ValueError("unaligned checkpoints allow max_concurrent_checkpoints = 1 only")
        if self.unaligned and self.mode is CheckpointingMode.AT_LEAST_ONCE:
            raise ValueError("unaligned checkpoints need mode = exactly_once")
        backlog = self.interval_during_backlog
        if backlog and self.interval and backlog < self.interval:
            raise ValueError("interval_during_backlog must be 0 (no checkpoints) or at least interval")
        return self

    @classmethod
    def of(cls, **settings: Any) -> CheckpointConfig:
        """Build a config; raises InvalidRequest (one sentence per bad value) instead of pydantic's error."""
        return _built(cls, settings, "Checkpoint configuration")


class RestoreOptions(BaseModel):
    """What a run starts from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    restore_from: str = "latest"
    """``latest``, ``none``, a key (``chk-31``, ``savepoint-7``), or the path/URI of a checkpoint's folder or
    ``_metadata`` file."""
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    allow_non_restored_state: bool = False
    """Skip state of stages the pipeline no longer has (Flink: ignore-unclaimed-state)."""
    roll_back_tables: bool = True
    """Set aside rows that two-phase tables received after the restore point."""
    fork: bool = False
    """The snapshot may be another pipeline's: queries get new ids, tables begin with the rows of the cut."""
    without_channel_state_of: int | None = None
    """Drop the in-flight data of exactly this checkpoint id."""

    @classmethod
    def of(cls, **options: Any) -> RestoreOptions:
        """Build the options; raises InvalidRequest (one sentence per bad value) instead of pydantic's error."""
        return _built(cls, options, "Restore configuration")


def _built(model: type[M], values: dict[str, Any], what: str) -> M:
    try:
        return model(**values)
    except ValidationError as error:
        sentences = "; ".join(_sentence(detail, model) for detail in error.errors())
        raise InvalidRequest(f"{what} is not valid: {sentences}") from error


def _sentence(detail: ErrorDetails, model: type[BaseModel]) -> str:
    name = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        near = get_close_matches(name, model.model_fields, n=1)
        return f"there is no {name}" + (f", did you mean {near[0]}?" if near else "")
    said = detail["msg"].removeprefix("Value error, ")
    return f"{name}: {said}, got {detail['input']!r}" if name else said
