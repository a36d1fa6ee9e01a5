"""Dagster resources: settings in, a client of the shared coordinator out; and the Spark session, made on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
    from dagster_ckpt.operations.deployment import Deployment
    from dagster_ckpt.pipeline import CheckpointedPipeline
    from dagster_ckpt.ports import CheckpointStorage


class SparkSessionResource(dg.ConfigurableResource[Any]):
    """The Spark session of a run: made when a stage first asks for it, stopped when the run ends.

    Sensors and the UI never start a JVM. A session that already exists in the process is used and left running.
    """

    master: str = Field(
        default="local[2,3]", description="Spark master; local[N,3] retries a failed task twice."
    )
    app_name: str = Field(default="dagster_ckpt", description="Name shown in Spark's UI.")
    conf: dict[str, str] = Field(
        default_factory=dict, description="Spark settings; they win over the library's defaults."
    )

    _session: Any = PrivateAttr(default=None)
    _owned: bool = PrivateAttr(default=False)

    @property
    def session(self) -> SparkSession:
        """The session, made now if need be."""
        if self._session is None:
            from pyspark import SparkContext

            from dagster_ckpt.spark.session import build_session

            # Not the active session: that one is known to the thread only that made it.
            self._owned = SparkContext._active_spark_context is None
            self._session = build_session(self.app_name, master=self.master, conf=self.conf)
        return self._session

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[SparkSessionResource]:
        """Stop the session at the end of the run if this resource started it."""
        try:
            yield self
        finally:
            if self._session is not None and self._owned:
                self._session.stop()
            self._session = None


class CheckpointCoordinatorResource(dg.ConfigurableResource[Any]):
    """Where checkpoints live and how they are taken; the coordinator itself is opened by the run's first op.

    Cheap to set up: no JVM, no connection, no migration before it is used. Without any setting everything is kept in
    ``<Dagster storage>/dagster_ckpt``: SQLite, local checkpoints, local tables.
    """

    base_dir: str = Field(default="", description="Folder the other locations default into.")
    store_url: str = Field(
        default="", description="SQLAlchemy URL of the coordinator store (SQLite, PostgreSQL)."
    )
    checkpoint_dir: str = Field(default="", description="fsspec URI of checkpoint storage.")
    savepoint_dir: str = Field(default="", description="fsspec URI under which savepoints are written.")
    work_dir: str = Field(default="", description="Local or shared POSIX folder for running queries.")
    table_dir: str = Field(default="", description="Folder of the tables sinks write.")
    storage_options: dict[str, str] = Field(
        default_factory=dict, description="fsspec options of checkpoint storage (endpoint_url, profile, …)."
    )
    ui_base_url: str = Field(default="", description="Prefix of links into the Dagster UI, when it has one.")

    interval: float = Field(default=0.0, description="Seconds between periodic checkpoints; 0: no timer.")
    mode: str = Field(default="exactly_once", description="exactly_once or at_least_once.")
    timeout: float = Field(default=600.0, description="Seconds after which a pending checkpoint expires.")
    min_pause: float = Field(
        default=0.0, description="Seconds without periodic checkpoint after a completed one."
    )
    max_concurrent_checkpoints: int = Field(default=1, description="Pending checkpoints at a time.")
    tolerable_failed_checkpoints: int = Field(
        default=3, description="Consecutive failed checkpoints the run survives; one more fails it."
    )
    externalized_checkpoint_retention: str = Field(
        default="retain_on_cancellation", description="What a cancelled or failed run leaves behind."
    )
    num_retained: int = Field(default=3, description="Completed checkpoints kept.")
    incremental: bool = Field(default=True, description="Upload only files no retained checkpoint has.")
    unaligned: bool = Field(default=False, description="Streaming runs: barriers overtake data.")
    aligned_checkpoint_timeout: float = Field(
        default=0.0,
        description="Streaming runs, with unaligned: seconds of alignment before barriers overtake.",
    )
    local_backup: bool = Field(default=False, description="Keep a local copy of the latest checkpoint.")
    snapshot_retries: int = Field(
        default=2, description="How often an op is retried when checkpoint storage fails in passing."
    )
    snapshot_retry_delay: float = Field(
        default=1.0, description="Seconds before the first such retry; doubles."
    )

    _instance: Any = PrivateAttr(default=None)
    _attempts: dict[tuple[str, str], Any] = PrivateAttr(default_factory=dict)
    _store: Any = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[CheckpointCoordinatorResource]:
        """Close what the run opened and did not close itself (failure, termination)."""
        self._instance = context.instance
        try:
            yield self
        finally:
            for attempt in self._attempts.values():
                attempt.close_after_failure()
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
            return Path(self.base_dir).absolute()
        instance = self._instance or dg.DagsterInstance.get()
        return Path(instance.storage_directory()) / "dagster_ckpt"

    @property
    def resolved_store_url(self) -> str:
        """The coordinator store's URL."""
        return self.store_url or f"sqlite:///{self.base / 'coordinator.db'}"

    @property
    def resolved_checkpoint_dir(self) -> str:
        """URI of checkpoint storage."""
        return self.checkpoint_dir or str(self.base / "checkpoints")

    @property
    def resolved_savepoint_dir(self) -> str:
        """URI under which savepoints are written when a request names none."""
        return self.savepoint_dir or str(self.base / "savepoints")

    @property
    def resolved_work_dir(self) -> Path:
        """Folder for running queries."""
        return Path(self.work_dir).absolute() if self.work_dir else self.base / "work"

    def resolved_table_dir(self, pipeline: CheckpointedPipeline) -> Path:
        """Folder of a pipeline's tables."""
        chosen = pipeline.table_dir or self.table_dir
        return Path(chosen).absolute() if chosen else self.base / "tables" / pipeline.name

    # --- components --------------------------------------------------------------------------------------------

    def checkpoint_config(self, pipeline: CheckpointedPipeline) -> CheckpointConfig:
        """The pipeline's settings over this resource's. Raises InvalidRequest for impossible values."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in _SETTINGS}
        settings["interval"] = self.interval or None
        settings["savepoint_dir"] = self.resolved_savepoint_dir
        return CheckpointConfig.of(**{**settings, **pipeline.checkpointing})

    def store(self) -> SqlCoordinatorStore:
        """The coordinator store, migrated to the newest schema."""
        if self._store is None:
            from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore

            store = SqlCoordinatorStore(self.resolved_store_url)
            store.migrate()
            self._store = store
        return self._store  # type: ignore[no-any-return]

    def open_storage(self, uri: str) -> CheckpointStorage:
        """Checkpoint storage at a URI, with this resource's options."""
        from dagster_ckpt.adapters.fsspec_storage import open_storage

        return open_storage(uri, **self.storage_options)

    def storage(self) -> CheckpointStorage:
        """The pipeline's own checkpoint storage."""
        return self.open_storage(self.resolved_checkpoint_dir)

    def deployment(self) -> Deployment:
        """Where this resource keeps things, as ``find_snapshot``, ``preview_restore`` and their like take it."""
        from dagster_ckpt.operations.deployment import Deployment

        return Deployment(
            store=self.store(),
            storage=self.storage(),
            open_storage=self.open_storage,
            savepoint_dir=self.resolved_savepoint_dir,
        )

    def remember(self, key: tuple[str, str], attempt: Any) -> None:
        """Keep an attempt, to close it when the run ends."""
        self._attempts[key] = attempt

    def remembered(self, key: tuple[str, str]) -> Any:
        """The attempt this run has opened in this process, or None."""
        return self._attempts.get(key)


_SETTINGS = (
    "mode",
    "timeout",
    "min_pause",
    "max_concurrent_checkpoints",
    "tolerable_failed_checkpoints",
    "externalized_checkpoint_retention",
    "num_retained",
    "incremental",
    "unaligned",
    "aligned_checkpoint_timeout",
    "local_backup",
)


def location_error(setting: str, value: str, error: Exception) -> InvalidRequest:
    """Return one sentence about a location that cannot be used."""
    return InvalidRequest(
        f"{setting} = {value!r} cannot be used ({error}): correct the coordinator resource's setting"
    )
