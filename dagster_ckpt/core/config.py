"""Settings under Flink's option names. Durations are seconds, or text with a unit; None means "not set".

The full table of options, defaults and their Flink names is ``docs/reference/configuration.md``;
a test holds it against this file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    field_validator,
    model_validator,
)

from dagster_ckpt.core.flink_options import DURATIONS
from dagster_ckpt.core.paths import (
    NO_SAVEPOINTS_IN_STORE,
    STORE_LIMITS,
    StorageKind,
    StoreLimits,
    is_in_store,
)
from dagster_ckpt.core.restore_point import Latest, RestorePoint, restore_point
from dagster_ckpt.core.settings import (
    NamedSettings,
    is_of_flink,
    meant_by,
    nearest,
    our_name,
    refusal,
    refuse_without_unit,
    seconds_of,
    word_of,
)
from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Dated(Protocol):
    """Completed checkpoint or savepoint, as periods look at it."""

    @property
    def checkpoint_id(self) -> int:
        """Its number."""
        ...

    @property
    def completed_at(self) -> float:
        """Seconds since the Unix epoch."""
        ...


HOUR, DAY = 3600.0, 86400.0


class Retention(BaseModel):
    """Checkpoints kept: the newest, and beyond these the newest of each hour and day (UTC) that has one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keep_last: int | None = Field(default=None, ge=1)
    """So many of the newest; not set: ``num_retained``."""
    hourly: int = Field(default=0, ge=0)
    """Of so many of the latest hours that have one."""
    daily: int = Field(default=0, ge=0)
    """The same by days."""

    def standing(self, entries: Sequence[Dated]) -> dict[int, str]:
        """Return why each of those that stand for an hour or a day is kept: ``hour``, ``day`` or ``hour, day``."""
        oldest_first = sorted(entries, key=lambda e: (e.completed_at, e.checkpoint_id))
        found: dict[int, list[str]] = {}
        for name, seconds, periods in (("hour", HOUR, self.hourly), ("day", DAY, self.daily)):
            for number in newest_of_each(oldest_first, seconds, periods):
                found.setdefault(number, []).append(name)
        return {number: ", ".join(names) for number, names in found.items()}


NEWEST_ONLY = Retention()


def retention_of(given: Any) -> Any:
    """Return a setting of retention, checked. Raises ValueError with one sentence."""
    if not isinstance(given, Mapping):
        return given
    known = list(Retention.model_fields)
    for name, value in given.items():
        least = 1 if name == "keep_last" else 0
        if name not in known:
            raise ValueError(f"`{name}` is none of {', '.join(known)}")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"`{name}` must be a whole number, at least {least}")
    return dict(given)


def newest_of_each(oldest_first: Sequence[Dated], seconds: float, periods: int) -> Iterable[int]:
    """Return the newest of each period, of so many of the latest periods that have any."""
    newest = {s.completed_at // seconds: s.checkpoint_id for s in oldest_first}
    latest = sorted(newest, reverse=True)[:periods]
    return [newest[period] for period in latest]


class CheckpointingMode(StrEnum):
    """Guarantee for the pipeline's state (and its two-phase sinks)."""

    EXACTLY_ONCE = "exactly_once"
    """Barriers are aligned; two-phase sinks publish when the checkpoint completes."""
    AT_LEAST_ONCE = "at_least_once"
    """Nothing is ever held; sinks publish at once; after a failure rows may repeat."""


class ExternalizedCheckpointRetention(StrEnum):
    """Retention of checkpoints after the end of the run (Flink: externalized-checkpoint-retention)."""

    NO_EXTERNALIZED_CHECKPOINTS = "no_externalized_checkpoints"
    DELETE_ON_CANCELLATION = "delete_on_cancellation"
    RETAIN_ON_CANCELLATION = "retain_on_cancellation"


class ClaimMode(StrEnum):
    """Claim mode: who owns the snapshot a run is restored from (Flink: RecoveryClaimMode)."""

    CLAIM = "claim"
    """The pipeline takes it over and deletes it when it is subsumed."""
    NO_CLAIM = "no_claim"
    """It is never deleted, and the next checkpoint depends on none of its files."""
    LEGACY = "legacy"
    """It is never deleted, but later checkpoints may depend on its files."""


Seconds = Annotated[float, Field(ge=0)]
RestoreFrom = Annotated[RestorePoint, PlainValidator(restore_point), PlainSerializer(str, return_type=str)]
TOLERATED_BY_STREAMS = 3
"""Failed checkpoints in a row that a stream survives where nobody says how many."""
STREAM_INTERVAL = 10.0
"""Seconds between checkpoints of a stream where neither the pipeline nor the resource says."""
M = TypeVar("M", bound=BaseModel)


class CheckpointConfig(BaseModel):
    """Settings of one pipeline's checkpoints: how they are taken, counted and kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    interval: float | None = None
    """Seconds between periodic checkpoints; None: none are taken by timer. At least 0.01."""
    initial_delay: Seconds | None = None
    """Seconds before a run's first periodic checkpoint; None: drawn from ``min_pause`` to ``interval``, as in Flink."""
    interval_during_backlog: Seconds | None = None
    """Interval while a stream's source has a backlog: None as ``interval``, 0 none, else >= ``interval``."""
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
    retention: Annotated[Retention, BeforeValidator(retention_of)] = Retention()
    """Beside these the newest of older hours and days: ``{"keep_last": 3, "hourly": 24, "daily": 7}``."""
    checkpoint_storage: StorageKind = StorageKind.FILESYSTEM
    """``filesystem``: checkpoints go to ``checkpoint_dir``; ``store``: small ones, into the coordinator store."""
    savepoint_dir: str = ""
    """URI under which savepoints are written when none is given."""
    incremental: bool = False
    """Upload only files no earlier retained checkpoint has (the Dagster resource sets this to true)."""
    checkpoints_after_tasks_finish: bool = True
    """A stream takes checkpoints after a bounded source has ended, and a final one when all have."""
    aligned_checkpoint_timeout: Seconds = 0.0
    """Seconds after which an aligned checkpoint turns unaligned (with ``unaligned``); 0: unaligned at once."""
    unaligned: bool = False
    instant_cuts: bool = True
    """A stream's checkpoint is cut where its last stages stand, without barriers; off: barriers flow, as in Flink."""
    local_backup: bool = False
    """Keep a local copy of the latest checkpoint and prefer it on restore when it is intact."""
    pause_sources_until_first_checkpoint: bool = False
    """A stream's sources write nothing before a checkpoint of the attempt has completed: a restart loses nothing."""
    operator_chaining: bool = True
    """Stages that need no channel between them run as one Spark query (Flink: pipeline.operator-chaining.enabled)."""

    _durations = field_validator("initial_delay", *sorted(DURATIONS), mode="before")(seconds_of)
    _words = field_validator(
        "mode", "externalized_checkpoint_retention", "checkpoint_storage", mode="before"
    )(word_of)

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
        if is_in_store(self.savepoint_dir):
            raise ValueError(f"savepoint_dir: {NO_SAVEPOINTS_IN_STORE}")
        return self

    @property
    def cuts_at_once(self) -> bool:
        """True where a stream's checkpoints are cut without barriers, where that is possible."""
        return self.instant_cuts and self.mode is CheckpointingMode.EXACTLY_ONCE

    @property
    def store_limits(self) -> StoreLimits | None:
        """Limits of a checkpoint's size; None: its storage sets none."""
        return STORE_LIMITS if self.checkpoint_storage is StorageKind.STORE else None

    @property
    def of_epoch(self) -> CheckpointConfig:
        """Settings of an epoch run: it ends with its checkpoint, and the timer is for the same pipeline's streams."""
        return self.model_copy(update={"interval": None})

    @property
    def of_stream(self) -> CheckpointConfig:
        """Settings of a stream: checkpoints on a timer, every 10 s unless somebody says otherwise."""
        update: dict[str, Any] = {} if self.interval is not None else {"interval": STREAM_INTERVAL}
        if "tolerable_failed_checkpoints" not in self.model_fields_set:
            update["tolerable_failed_checkpoints"] = TOLERATED_BY_STREAMS
        return self.model_copy(update=update)

    @classmethod
    def of(cls, **settings: Any) -> CheckpointConfig:
        """Build a config; raises InvalidRequest (one sentence per bad value) instead of pydantic's error."""
        return cls.layered(settings)

    @classmethod
    def layered(cls, *layers: Mapping[str, Any]) -> CheckpointConfig:
        """Build a config from the resource's settings, the pipeline's and the run's: a later layer counts.

        Raises InvalidRequest as ``of``.
        """
        return _built(cls, layers, "Checkpoint configuration")


class RestoreOptions(BaseModel):
    """Restore options of a run: what it starts from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    restore_from: RestoreFrom = Latest()
    """Given as text: ``latest``, ``none``, a key (``chk-31``, ``savepoint-7``), or the path/URI of a checkpoint's
    folder or ``_metadata`` file."""
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    allow_non_restored_state: bool = False
    """Skip state of stages the pipeline no longer has (Flink: ignore-unclaimed-state)."""
    roll_back_tables: bool = True
    """Set aside rows that two-phase tables received after the restore point."""
    keep_rows_of: tuple[str, ...] = ()
    """Sinks, by uid, whose rows after the restore point stay all the same, and are written again: those that cannot go
    back, or begin with a fork's."""
    fork: bool = False
    """The snapshot may be another pipeline's: queries get new ids, tables begin with the rows of the cut."""
    adopt_history: bool = False
    """Go on although the coordinator store is behind what storage, working directory or sinks have seen, or another
    history's: from the restore point, above every number seen."""
    allow_missing_files: bool = False
    """Go on although files are gone that a file source has read after the restore point: their rows are left out."""
    without_channel_state_of: int | None = None
    """Drop the in-flight data of exactly this checkpoint id."""

    _words = field_validator("claim_mode", mode="before")(word_of)

    @classmethod
    def of(cls, **options: Any) -> RestoreOptions:
        """Build the options; raises InvalidRequest (one sentence per bad value) instead of pydantic's error."""
        return _built(cls, [options], "Restore configuration")


def _built(model: type[M], layers: Sequence[Mapping[str, Any]], what: str) -> M:
    settings = NamedSettings()
    for layer in layers:
        refuse_without_unit(layer)
        settings = settings.under(NamedSettings.of(layer))
    try:
        return model(**settings.values)
    except ValidationError as error:
        sentences = "; ".join(_sentence(detail, model, settings.written) for detail in error.errors())
        raise InvalidRequest(f"{what} is not valid: {sentences}") from error


def with_defaults(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return recorded settings of checkpoints with the defaults beside them; those of a newer library as they are."""
    try:
        return CheckpointConfig.model_validate(settings).model_dump(mode="json")
    except ValidationError:
        return settings


def _sentence(detail: ErrorDetails, model: type[BaseModel], written: Mapping[str, str]) -> str:
    name = str(detail["loc"][0]) if detail["loc"] else ""
    if isinstance(whole := detail.get("ctx", {}).get("error"), InvalidRequest):
        return str(whole)
    if detail["type"] == "extra_forbidden":
        return _refusal(name, written[name], model.model_fields)
    said = detail["msg"].removeprefix("Value error, ")
    return f"{written.get(name, name)}: {said}, got {detail['input']!r}" if name else said


def refuse_unknown(given: Collection[str], known: Collection[str], *, of: str) -> None:
    """Raise InvalidRequest when ``of`` is given a setting it does not have."""
    unknown = [_refusal(our_name(name), name, known) for name in given if our_name(name) not in known]
    if unknown:
        raise InvalidRequest(f"{of}: {'; '.join(unknown)}")


def _refusal(name: str, written: str, known: Collection[str]) -> str:
    """Return the sentence about a setting that is not ``known``: where it belongs, or what is near to it."""
    where = _place(name)
    if where:
        return f"`{written}` {where}"
    elsewhere = meant_by(written)
    if not elsewhere and not nearest(name, known) and not is_of_flink(written):
        elsewhere = nearest(name, [*CheckpointConfig.model_fields, *RestoreOptions.model_fields])
    if elsewhere and elsewhere not in known and _place(elsewhere):
        return f"`{written}`: did you mean `{elsewhere}`? It {_place(elsewhere)}"
    return refusal(written, known)


def _place(name: str) -> str:
    if name in RestoreOptions.model_fields:
        return "says what a run starts from: give it in the run config of the run's first op"
    if name in CheckpointConfig.model_fields:
        return "says how checkpoints are taken: give it in `checkpointing`"
    return (
        "says where checkpoints live: give it to the coordinator resource" if name == "checkpoint_dir" else ""
    )
