"""Options of a pipeline: how it shows in Dagster, which sensors and checks watch it, where its stages run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import dagster as dg
from dagster._utils.schedules import is_valid_cron_schedule

from dagster_ckpt.core.config import DAY, HOUR, Dated, newest_of_each
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.settings import refusing_unknown
from dagster_ckpt.core.supervision.ownership import ConcurrentRuns
from dagster_ckpt.dagster.names import CareAction, SavepointAction
from dagster_ckpt.dagster.reporting import ReportPolicy
from dagster_ckpt.dagster.supervision import AlarmPolicy, RestartPolicy
from dagster_ckpt.errors import InvalidRequest


def check_times(cron_schedule: str, timezone: str, *, setting: str = "cron_schedule") -> None:
    """Raise InvalidRequest for a cron schedule or a time zone that Dagster cannot keep."""
    if not is_valid_cron_schedule(cron_schedule):
        raise InvalidRequest(
            f"{setting}={cron_schedule!r} is no cron schedule: give five fields, minute hour day month weekday, "
            "such as '0 3 * * *' for every night at three"
        )
    try:
        ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRequest(
            f"timezone={timezone!r} is no time zone: give a name such as 'UTC' or 'Europe/Berlin'"
        ) from None


def _check_durations(options: Any) -> None:
    for name in ("max_checkpoint_age", "table_freshness", "keep_for", "wait_for_run"):
        value = getattr(options, name, None)
        if value is not None and not isinstance(value, timedelta):
            raise InvalidRequest(
                f"{name}={value!r} is no duration: give a timedelta, such as timedelta(hours=1)"
            )


class Tables(StrEnum):
    """Tables as Dagster sees them."""

    EXTERNAL = "external"
    MATERIALIZABLE = "materializable"


S = TypeVar("S", bound=Dated)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointRetention:
    """Bounds of scheduled savepoints: one is removed only when it is outside every bound that is set.

    The newest is never removed, and with no bound set none is. Never applied to savepoints a person took.
    """

    keep_last: int | None = None
    """At least this many of the newest are kept."""
    keep_for: float | None = None
    """Everything younger than this many seconds is kept."""
    keep_hourly: int | None = None
    """The newest of each hour (UTC) is kept, for so many of the latest hours that have one."""
    keep_daily: int | None = None
    """The same by days."""

    def __post_init__(self) -> None:
        for name in ("keep_last", "keep_hourly", "keep_daily"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(f"{name} must be at least 1, got {value}")
        if self.keep_for is not None and self.keep_for < 0:
            raise InvalidRequest(f"keep_for must not be negative, got {self.keep_for}")

    def expired(self, savepoints: Sequence[S], *, now: float) -> tuple[S, ...]:
        """Return the savepoints to dispose of, oldest first; ``now`` in seconds since the Unix epoch."""
        bounds = (self.keep_last, self.keep_for, self.keep_hourly, self.keep_daily)
        if all(bound is None for bound in bounds):
            return ()
        oldest_first = sorted(savepoints, key=lambda s: s.checkpoint_id)  # clocks are set back, numbers grow
        beyond_count = oldest_first[: -(self.keep_last or 1)]
        standing = {
            *newest_of_each(oldest_first, HOUR, self.keep_hourly or 0),
            *newest_of_each(oldest_first, DAY, self.keep_daily or 0),
        }
        return tuple(
            s
            for s in beyond_count
            if s.checkpoint_id not in standing
            and (self.keep_for is None or now - s.completed_at > self.keep_for)
        )


@refusing_unknown
@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointSchedule:
    """Scheduled savepoints. Raises InvalidRequest for bounds or a time of day that mean nothing."""

    cron_schedule: str
    """Five fields, e.g. ``0 3 * * *``."""
    timezone: str = "UTC"
    keep_last: int | None = None
    """At least this many of the schedule's savepoints are kept …"""
    keep_for: timedelta | None = None
    """… and all that are younger than this; with neither bound none is ever disposed of."""
    keep_hourly: int | None = None
    """The newest of each hour, for so many of the latest hours that have one; in UTC."""
    keep_daily: int | None = None
    """The same by days: ``keep_last=3, keep_hourly=24, keep_daily=7``."""
    wait_for_run: timedelta = timedelta(hours=1)
    """So long a savepoint waits for the end of a run that is alive at its time; then it fails."""
    target: str = ""
    """URI of the folder to write below; empty: the coordinator resource's ``savepoint_dir``."""
    note: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_times(self.cron_schedule, self.timezone)
        _check_durations(self)
        _ = self.retention

    @property
    def retention(self) -> SavepointRetention:
        """The bounds as the decision about them takes them."""
        seconds = None if self.keep_for is None else self.keep_for.total_seconds()
        return SavepointRetention(
            keep_last=self.keep_last,
            keep_for=seconds,
            keep_hourly=self.keep_hourly,
            keep_daily=self.keep_daily,
        )


@refusing_unknown
@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSchedule:
    """Epochs on a schedule. Raises InvalidRequest for a time that means nothing."""

    cron: str
    """Five fields, e.g. ``0 * * * *``."""
    timezone: str = "UTC"
    concurrent_runs: str = "skip"
    """When an earlier run is still alive at its time: ``skip``, ``queue`` or ``take_over``."""

    def __post_init__(self) -> None:
        check_times(self.cron, self.timezone, setting="cron")
        ConcurrentRuns.of(self.concurrent_runs)


@refusing_unknown
@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """Options of a pipeline for ``build_pipeline_definitions``, beside its stages."""

    group_name: str = "checkpoints"
    """Asset group of the checkpoints."""
    table_group_name: str = ""
    """Asset group of the published tables; empty: the pipeline's name."""
    tables: str = "external"
    """``external``: the pipeline's jobs write its tables. ``materializable``: Materialize, schedules, automation and
    asset jobs that select them run an epoch, too."""
    table_freshness: timedelta | None = None
    """Older than this the rows of a table are stale; a checkpoint that brings it none is no news."""
    table_automation: dg.AutomationCondition[Any] | None = None
    """When Dagster materializes the tables by itself; needs ``tables="materializable"``."""
    owners: Sequence[str] = ()
    """E-mail addresses or ``team:name``."""
    tags: Mapping[str, str] = field(default_factory=dict)
    max_checkpoint_age: timedelta | None = None
    """Older than this the newest checkpoint is stale: ``checkpoint_age``, alarm, freshness of ``report="all"``."""
    report: str = "changed"
    """Checkpoints of a stream that become events: ``changed`` (at once, then per ``progress_interval``), ``every: 10``,
    ``all``."""
    alarm_after_failures: int | None = 3
    """Consecutive failed checkpoints after which people are told; None: never on their account."""
    notify: Callable[[Any], None] | None = None
    """Called with an ``AlarmMessage``, once when an episode begins and once when it is over; of a snapshot's horizon
    once when it is near, and once when something is gone."""
    restart: RestartPolicy | None = None
    """Adds the sensor that starts the pipeline again after its run failed; off until enabled, as schedules below."""
    epochs: EpochSchedule | None = None
    """Adds the schedule that runs an epoch."""
    new_files: Sequence[str] = ()
    """Globs, local or of an object store: adds the sensor that runs an epoch when files arrive."""
    savepoints: SavepointSchedule | None = None
    """Adds the savepoint schedule."""
    verify_every: str = ""
    """Cron: adds the schedule that reads back the newest savepoint and the latest checkpoint."""
    dry_run_every: str = ""
    """Cron: adds the schedule that tries the restore of the newest savepoint, or of the latest checkpoint."""
    publish_facts: str = ""
    """File, a path or a URI, that an epoch's job writes its checkpoint's facts to, for ``dagster-ckpt plan``."""
    launch: Launch | None = None
    """The stages run in a program launched elsewhere by a Pipes client; None: in the run's own process."""
    concurrent_runs: str = ""
    """What a run does that finds another one alive: ``queue``, ``skip``, ``take_over``; empty: as the resource says."""
    refused_actions: Collection[str] = ()
    """Actions of the jobs ``<pipeline>_savepoint`` and ``<pipeline>_care`` that are not done in this code location,
    such as ``dispose``: Dagster gives permissions by code location, so those may be another one's."""

    executor: dg.ExecutorDefinition = dg.in_process_executor
    """What executes the steps of jobs that run or restore the pipeline; all of its processes must see ``work_dir``."""

    def __post_init__(self) -> None:
        _check_durations(self)
        if not isinstance(self.executor, dg.ExecutorDefinition):
            raise InvalidRequest(
                f"executor={self.executor!r} is no executor: give Dagster's, such as dg.multiprocess_executor"
            )
        ConcurrentRuns.of(self.concurrent_runs)
        ReportPolicy.of(self.report)
        for setting in ("verify_every", "dry_run_every"):
            if getattr(self, setting):
                check_times(getattr(self, setting), "UTC", setting=setting)
        if self.launch is not None and not isinstance(self.launch, Launch):
            raise InvalidRequest(
                f"launch={self.launch!r} is no Launch: give Launch(client=..., arguments=...)"
            )
        if self.launch is not None and self.executor is not dg.in_process_executor:
            raise InvalidRequest(
                "launch and executor: the stages of a launched pipeline run in one program, which no executor divides. "
                "Leave executor out"
            )
        if isinstance(self.refused_actions, str) or not set(self.refused_actions) <= set(_ACTIONS):
            raise InvalidRequest(
                f"refused_actions={self.refused_actions!r}: give a list of some of {', '.join(_ACTIONS)}"
            )
        if isinstance(self.new_files, str):
            raise InvalidRequest(f"new_files={self.new_files!r}: give a list, new_files=[{self.new_files!r}]")
        if self.tables not in tuple(Tables):
            raise InvalidRequest(f"tables must be one of {', '.join(Tables)}, got {self.tables!r}")
        if self.table_automation is not None and self.tables != Tables.MATERIALIZABLE:
            raise InvalidRequest(
                "table_automation starts nothing while tables are external: set tables to materializable"
            )

    @property
    def table_freshness_policy(self) -> dg.FreshnessPolicy | None:
        """The tables' freshness."""
        age = self.table_freshness
        return None if age is None else dg.FreshnessPolicy.time_window(fail_window=age)

    @property
    def alarm_policy(self) -> AlarmPolicy:
        """Alarm thresholds."""
        age = self.max_checkpoint_age
        return AlarmPolicy(
            after_failures=self.alarm_after_failures, max_age=None if age is None else age.total_seconds()
        )

    @property
    def freshness_policy(self) -> dg.FreshnessPolicy | None:
        """The checkpoints asset's freshness; Dagster takes it from materializations, which idle pipelines lack."""
        age = self.max_checkpoint_age
        return (
            None
            if age is None or not ReportPolicy.of(self.report).is_all
            else dg.FreshnessPolicy.time_window(fail_window=age)
        )


_ACTIONS = tuple(str(action) for action in (*SavepointAction, *CareAction))


def options_of(
    options: PipelineOptions | Mapping[str, PipelineOptions] | None, pipeline: PipelineId
) -> PipelineOptions:
    """Return one pipeline's options; those of a mapping that has no entry for it are the defaults."""
    if isinstance(options, PipelineOptions):
        return options
    return (options or {}).get(pipeline, PipelineOptions())


def refuse_unknown(
    options: PipelineOptions | Mapping[str, PipelineOptions] | None, pipelines: Sequence[PipelineId]
) -> None:
    """Raise InvalidRequest when options name a pipeline that is not there: a typing error would go unseen."""
    given = options.values() if isinstance(options, Mapping) else [options]
    for each in given:
        if each is not None and not isinstance(each, PipelineOptions):
            raise InvalidRequest(
                f"options={each!r} are no options: give PipelineOptions(...), or these by pipeline"
            )
    if options is None or isinstance(options, PipelineOptions):
        return
    unknown = sorted(set(options) - set(pipelines))
    if unknown:
        raise InvalidRequest(f"options are given for {unknown}, but the pipelines are {sorted(pipelines)}")


_OURS = ("context", "extras")

Context = dg.OpExecutionContext | dg.AssetExecutionContext


@refusing_unknown
@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Launch of a plain program that runs a pipeline's stages elsewhere and calls ``run_launched``."""

    client: dg.PipesClient
    """Any Pipes client: ``PipesSubprocessClient``, ``PipesDatabricksClient``, ``PipesK8sClient`` …"""
    arguments: Mapping[str, Any] | Callable[[Context], Mapping[str, Any]] = field(default_factory=dict)
    """What the client's ``run`` takes beside ``context`` and ``extras``, such as ``command`` or ``task``; or a function
    of the op's context that returns it."""

    def __post_init__(self) -> None:
        if not isinstance(self.client, dg.PipesClient):
            raise InvalidRequest(
                f"launch: client={self.client!r} is no Pipes client: give one, such as dg.PipesSubprocessClient()"
            )
        if not callable(self.arguments):
            self._refuse_ours(self.arguments)

    def arguments_for(self, context: Context) -> dict[str, Any]:
        """Return the arguments of the client's ``run`` in an op. Raises InvalidRequest."""
        found = dict(self.arguments(context) if callable(self.arguments) else self.arguments)
        self._refuse_ours(found)
        return found

    @staticmethod
    def _refuse_ours(arguments: Mapping[str, Any]) -> None:
        taken = sorted(set(arguments) & set(_OURS))
        if taken:
            raise InvalidRequest(f"launch: arguments has {taken[0]!r}, which the op gives: leave it out")
