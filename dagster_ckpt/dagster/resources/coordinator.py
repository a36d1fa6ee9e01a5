"""The coordinator as a Dagster resource: settings in, a client of the shared coordinator out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import dagster as dg
from pydantic import Field, PrivateAttr

from dagster_ckpt.core.config import CheckpointConfig, refuse_unknown
from dagster_ckpt.core.paths import (
    CHECKPOINTS_IN_STORE,
    StorageKind,
    is_in_store,
    local_folder,
    sqlite_url,
)
from dagster_ckpt.core.settings import NamedSettings, our_name
from dagster_ckpt.core.supervision.ownership import ConcurrentRuns
from dagster_ckpt.dagster.console import in_sentences
from dagster_ckpt.dagster.launchpad import QuietResource
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.exchange.options import is_in_object_store, remote_folder

if TYPE_CHECKING:
    from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.core.ids import PipelineId
    from dagster_ckpt.operations.deployment import Deployment
    from dagster_ckpt.ports import CheckpointStorage

    Duration = float | str
    """Seconds, or text with a unit."""
else:
    Duration = Any  # Dagster's config has no union of scalars


class CheckpointCoordinatorResource(QuietResource):
    """Coordinator as a resource: where checkpoints live and how they are taken; the run's first op opens it.

    Cheap to set up: no JVM, no connection, no migration before it is used. Without any setting everything is kept in
    ``<Dagster storage>/dagster_ckpt``: SQLite, local checkpoints, local tables.
    """

    base_dir: str = Field(default="", description="Folder the other locations default into.")
    store_url: str = Field(
        default="",
        description="SQLAlchemy URL of the coordinator store (SQLite, PostgreSQL); with a password by EnvVar.",
        repr=False,
    )
    checkpoint_storage: str = Field(
        default="filesystem",
        description="filesystem: checkpoint_dir; store: the coordinator store (small state).",
    )
    checkpoint_dir: str = Field(default="", description="fsspec URI of checkpoint storage.")
    savepoint_dir: str = Field(default="", description="fsspec URI under which savepoints are written.")
    work_dir: str = Field(
        default="",
        description="Folder for running queries: local, mounted by all machines, or in an object store (s3://…).",
    )
    table_dir: str = Field(default="", description="Folder of the tables sinks write.")
    storage_options: dict[str, str] = Field(
        default_factory=dict,
        description="fsspec options of checkpoint storage (endpoint_url, profile, …); secrets by EnvVar.",
        repr=False,
    )
    ui_base_url: str = Field(default="", description="Prefix of links into the Dagster UI, when it has one.")
    page_url: str = Field(
        default="",
        description="Where `dagster-ckpt page --serve` answers, http://host:3070: assets and events link to it.",
    )

    interval: Duration = Field(
        default=0.0,
        description="Between periodic checkpoints, in seconds or with a unit (10 min); 0: no timer.",
    )
    initial_delay: Duration | None = Field(
        default=None, description="Before a stream's first periodic checkpoint; not set: drawn, as in Flink."
    )
    interval_during_backlog: Duration | None = Field(
        default=None, description="Interval while a stream's source has a backlog; 0: no checkpoints."
    )
    mode: str = Field(default="exactly_once", description="exactly_once or at_least_once.")
    timeout: Duration = Field(default=600.0, description="After this a pending checkpoint expires.")
    min_pause: Duration = Field(
        default=0.0, description="Time without periodic checkpoint after a completed one."
    )
    max_concurrent_checkpoints: int = Field(default=1, description="Pending checkpoints at a time.")
    tolerable_failed_checkpoints: int | None = Field(
        default=None,
        description="Consecutive failed checkpoints the run survives; one more fails it. Not set: 3 for a stream, none "
        "for an epoch, whose only checkpoint it is.",
    )
    externalized_checkpoint_retention: str = Field(
        default="retain_on_cancellation", description="What a canceled or failed run leaves behind."
    )
    num_retained: int = Field(default=3, description="Completed checkpoints kept.")
    retention: dict[str, int] = Field(
        default_factory=dict,
        description="Beside these the newest of older hours and days: keep_last, hourly, daily.",
    )
    incremental: bool = Field(default=True, description="Upload only files no retained checkpoint has.")
    unaligned: bool = Field(default=False, description="Streaming runs: barriers overtake data.")
    instant_cuts: bool = Field(
        default=True,
        description="Streaming runs: cut checkpoints at what the last stages have read, without barriers.",
    )
    aligned_checkpoint_timeout: Duration = Field(
        default=0.0, description="Streaming runs, with unaligned: time of alignment before barriers overtake."
    )
    checkpoints_after_tasks_finish: bool = Field(
        default=True, description="Streaming runs: checkpoints after a bounded source has ended."
    )
    pause_sources_until_first_checkpoint: bool = Field(
        default=False, description="Streaming runs: sources write nothing before the first checkpoint."
    )
    operator_chaining: bool = Field(
        default=True, description="Run stages that need no channel between them as one Spark query."
    )
    local_backup: bool = Field(default=False, description="Keep a local copy of the latest checkpoint.")
    concurrent_runs: str = Field(
        default="queue",
        description="A run that finds another one of its pipeline alive: queue waits, skip ends, take_over fences.",
    )
    snapshot_retries: int = Field(
        default=2,
        description="How often an op, or a trigger, is retried on transient errors of checkpoint storage.",
    )
    snapshot_retry_delay: float = Field(
        default=1.0, description="Seconds before the first such retry; doubles."
    )

    _instance: Any = PrivateAttr(default=None)
    _attempts: dict[tuple[str, str], Any] = PrivateAttr(default_factory=dict)
    _store: Any = PrivateAttr(default=None)

    if not TYPE_CHECKING:  # type checkers know the fields

        def __init__(self, **settings: Any) -> None:
            """Take settings by our names or Flink's. Raises InvalidRequest for what is unknown or impossible."""
            refuse_unknown(settings, type(self).model_fields, of=type(self).__name__)
            known = _without_environment(settings)
            CheckpointConfig.layered(_checkpointing(known))
            ConcurrentRuns.of(known.get("concurrent_runs", ""))
            for name in _LOCAL_FOLDERS & known.keys():
                if name != "work_dir" or not is_in_object_store(str(known[name] or "")):
                    local_folder(str(known[name] or ""), setting=name)
            super().__init__(**NamedSettings.of(settings).values)

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[CheckpointCoordinatorResource]:
        """Close what the run opened and did not close itself (failure, termination)."""
        self._instance = context.instance
        in_sentences(context)
        with self.held():
            yield self

    @contextmanager
    def held(self) -> Iterator[None]:
        """The same, outside of a Dagster run."""
        try:
            yield
        finally:
            for attempt in self._attempts.values():
                attempt.leave()
            self._attempts.clear()
            if self._store is not None:
                self._store.close()
                self._store = None

    def use_instance(self, instance: dg.DagsterInstance) -> None:
        """Take default locations from ``instance``, outside a run (sensors)."""
        before = self._instance and self.resolved_store_url
        self._instance = instance
        if self._store is not None and self.resolved_store_url != before:
            self._store.close()
            self._store = None

    # --- locations ---------------------------------------------------------------------------------------------

    @property
    def base(self) -> Path:
        """Folder the other locations default into."""
        if self.base_dir:
            return _folder(self.base_dir, "base_dir")
        instance = self._instance or dg.DagsterInstance.get()
        return Path(instance.storage_directory()) / "dagster_ckpt"

    @property
    def resolved_store_url(self) -> str:
        """The coordinator store's URL."""
        return self.store_url or sqlite_url(str(self.base / "coordinator.db"))

    def page_of(self, pipeline: PipelineId) -> str:
        """Return the address of a pipeline's checkpoint page; empty: it is not served."""
        return f"{self.page_url.rstrip('/')}/{quote(pipeline)}" if self.page_url else ""

    @property
    def resolved_checkpoint_dir(self) -> str:
        """URI of checkpoint storage."""
        return self.checkpoint_dir or str(self.base / "checkpoints")

    @property
    def _storage_kind(self) -> StorageKind:
        return CheckpointConfig.of(checkpoint_storage=self.checkpoint_storage).checkpoint_storage

    @property
    def resolved_savepoint_dir(self) -> str:
        """URI under which savepoints are written when a request names none; empty: each must name one.

        Where checkpoints are in the store nobody has chosen a folder yet: a local one would be lost with the machine.
        """
        if not self.savepoint_dir and not self.base_dir and self._storage_kind is StorageKind.STORE:
            return ""
        return self.savepoint_dir or str(self.base / "savepoints")

    @property
    def resolved_work_dir(self) -> Path:
        """Folder for running queries."""
        if is_in_object_store(self.work_dir):
            return self._mounted_work_dir()
        return _folder(self.work_dir, "work_dir") if self.work_dir else self.base / "work"

    def _mounted_work_dir(self) -> Path:
        """Folder of the driver's own, whose rows lie in the object store that ``work_dir`` names."""
        from dagster_ckpt.spark.exchange.mounts import mount, scratch_of

        scratch, remote = scratch_of(self.work_dir), remote_folder(self.work_dir, self.storage_options)
        mount(scratch, remote, self.open_storage(remote.uri))
        return scratch

    def resolved_table_dir(self, pipeline: CheckpointedPipeline) -> Path:
        """Folder of a pipeline's tables."""
        chosen = pipeline.table_dir or self.table_dir
        return _folder(chosen, "table_dir") if chosen else self.base / "tables" / pipeline.name

    # --- components --------------------------------------------------------------------------------------------

    def checkpoint_config(
        self, pipeline: CheckpointedPipeline, run: Mapping[str, Any] | None = None
    ) -> CheckpointConfig:
        """The run's settings over the pipeline's over this resource's. Raises InvalidRequest for impossible values."""
        if any(our_name(name) == "checkpoint_storage" for name in run or {}):
            raise InvalidRequest(
                "`checkpoint_storage` says where a pipeline's checkpoints live, also for the runs after this one: give "
                "it to the pipeline or the coordinator resource, not in run config"
            )
        return CheckpointConfig.layered(
            _checkpointing({name: getattr(self, name) for name in type(self).model_fields}),
            {"savepoint_dir": self.resolved_savepoint_dir},
            pipeline.checkpointing,
            run or {},
        )

    def check_settings(self, pipeline: CheckpointedPipeline) -> None:
        """Raise InvalidRequest for settings that cannot be, as far as they are known before a run."""
        known = _without_environment({name: getattr(self, name) for name in type(self).model_fields})
        CheckpointConfig.layered(_checkpointing(known), pipeline.checkpointing)

    def store(self) -> SqlCoordinatorStore:
        """The coordinator store, migrated to the newest schema."""
        if self._store is None:
            from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore

            store = SqlCoordinatorStore(self.resolved_store_url)
            store.migrate()
            self._store = store
        return self._store  # type: ignore[no-any-return]

    def open_storage(self, uri: str) -> CheckpointStorage:
        """Checkpoint storage at a URI: with this resource's options, or in its store (``store://…``)."""
        if is_in_store(uri):
            return self.store().checkpoint_storage(uri)
        from dagster_ckpt.adapters.fsspec_storage import open_storage

        return open_storage(uri, **self.storage_options)

    def storage(self, pipeline: CheckpointedPipeline | None = None) -> CheckpointStorage:
        """A pipeline's own checkpoint storage; None: of pipelines that choose none themselves."""
        chosen = (
            self._storage_kind if pipeline is None else self.checkpoint_config(pipeline).checkpoint_storage
        )
        if is_in_store(self.checkpoint_dir):
            raise InvalidRequest(
                f"checkpoint_dir is a folder or a bucket, not {self.checkpoint_dir!r}: set checkpoint_storage to store"
            )
        in_store = chosen is StorageKind.STORE
        return self.open_storage(CHECKPOINTS_IN_STORE if in_store else self.resolved_checkpoint_dir)

    def deployment(self, pipeline: CheckpointedPipeline | None = None) -> Deployment:
        """Deployment of this resource, as ``find_snapshot``, ``preview_restore`` and their like take it.

        ``pipeline``: the one whose storage is cleaned or examined, where it chooses its own.
        """
        from dagster_ckpt.operations.deployment import Deployment

        return Deployment(
            store=self.store(),
            storage=self.storage(pipeline),
            open_storage=self.open_storage,
            savepoint_dir=self.resolved_savepoint_dir,
        )

    def remember(self, key: tuple[str, str], attempt: Any) -> None:
        """Keep an attempt, to close it when the run ends."""
        self._attempts[key] = attempt

    def remembered(self, key: tuple[str, str]) -> Any:
        """The attempt this run has opened in this process, or None."""
        return self._attempts.get(key)


_FROM_ENV = (dg.EnvVar, type(dg.EnvVar.int("")))
"""Values that are known in a run only."""


_LOCAL_FOLDERS = frozenset({"base_dir", "work_dir", "table_dir"})


def _folder(text: str, setting: str) -> Path:
    return Path(local_folder(text, setting=setting)).expanduser().absolute()


def _without_environment(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if not isinstance(value, _FROM_ENV)}


def _checkpointing(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resource's settings that say how checkpoints are taken."""
    chosen = {
        name: value for name, value in settings.items() if our_name(name) in CheckpointConfig.model_fields
    }
    if chosen.get("tolerable_failed_checkpoints", 0) is None:
        del chosen["tolerable_failed_checkpoints"]
    if chosen.get("interval") == 0:
        chosen["interval"] = None
    return chosen
