"""The Spark session as a Dagster resource: made on first use, stopped when the run ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from dagster_ckpt.core.config import refuse_unknown
from dagster_ckpt.core.settings import seconds_of
from dagster_ckpt.dagster.launchpad import QuietResource
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.extensions import SESSIONS, extension

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Duration = float | str
    """Seconds, or text with a unit."""
else:
    Duration = Any  # Dagster's config has no union of scalars


_making = threading.RLock()


class SparkSessionResource(QuietResource):
    """The Spark session of a run: made when a stage first asks for it, stopped when the run ends.

    Sensors and the UI never start a JVM. A session that already exists in the process is used and left running.
    """

    master: str = Field(
        default="local[*,3]",
        description="Spark master; local[*,3] is all cores, and retries a failed task twice.",
    )
    app_name: str = Field(default="dagster_ckpt", description="Name shown in Spark's UI.")
    conf: dict[str, str] = Field(
        default_factory=dict,
        description="Spark settings; they win over the library's defaults. Secrets by EnvVar.",
        repr=False,
    )
    class_archive: str = Field(
        default="",
        description="Folder that `dagster-ckpt class-archive` filled: Spark starts in half the time.",
    )
    ship_package: bool = Field(
        default=False,
        description="Send dagster_ckpt to executors that have none, or another version.",
    )
    warm_engine: str = Field(
        default="",
        description="Folder of a JVM that outlives the run, for the next run on this machine to use again.",
    )
    warm_engine_idle: Duration = Field(
        default="10 min",
        description="Without a run for so long (seconds, or with a unit), the warm engine ends.",
    )

    if not TYPE_CHECKING:  # type checkers know the fields

        def __init__(self, **settings: Any) -> None:
            """Take the settings. Raises InvalidRequest for one there is not."""
            from dagster_ckpt.spark.session import refuse_remote

            refuse_unknown(settings, type(self).model_fields, of=type(self).__name__)
            if isinstance(settings.get("conf"), Mapping):
                refuse_remote(settings["conf"])
            super().__init__(**settings)

    _session: Any = PrivateAttr(default=None)
    _is_ours: bool = PrivateAttr(default=False)
    _opened: ExitStack = PrivateAttr(default_factory=ExitStack)

    @property
    def session(self) -> SparkSession:
        """The session, made now if need be; another one where the cluster has let go of the one before.

        Raises InvalidRequest where a session that this resource has not started was stopped.
        """
        from dagster_ckpt.spark.cluster.lost import is_lost, refuse_stopped

        with _making:
            if self._session is not None and self._is_ours and is_lost(self._session):
                self._session = None
                self._opened.close()
            if self._session is None:
                self._session = self._opened.enter_context(self._started())
            if not self._is_ours:
                refuse_stopped(self._session)
            return self._session

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[SparkSessionResource]:
        """Stop the session at the end of the run if this resource started it."""
        with self.held():
            yield self

    @contextmanager
    def held(self) -> Iterator[None]:
        """The same, outside of a Dagster run."""
        try:
            yield
        finally:
            self._session = None
            self._opened.close()

    @contextmanager
    def _started(self) -> Iterator[SparkSession]:
        """Yield the session of this process, left running, or one that is stopped at the end."""
        from dagster_ckpt.spark.cluster.sent import ship_package

        with self._made() as session:
            if self.ship_package:
                ship_package(session)
            yield session

    @contextmanager
    def _made(self) -> Iterator[SparkSession]:
        from dagster_ckpt.spark.java.process import stop_session
        from dagster_ckpt.spark.java.sessions import active_context
        from dagster_ckpt.spark.session import build_session

        how: dict[str, Any] = {"master": self.master, "conf": self.conf}
        # Not the active session: that one is known to the thread only that made it.
        self._is_ours = active_context() is None
        if not self._is_ours:
            yield build_session(self.app_name, **how)
        elif self.warm_engine or self.class_archive:
            with extension(SESSIONS, "warm")(
                self.app_name,
                folder=self.warm_engine,
                idle=_idle(self.warm_engine_idle),
                class_archive=self.class_archive,
                **how,
            ) as session:
                yield session
        else:
            session = build_session(self.app_name, **how)
            try:
                yield session
            finally:
                stop_session(session)


def _idle(value: Duration) -> float:
    try:
        return float(seconds_of(value))
    except ValueError as error:
        raise InvalidRequest(f"`warm_engine_idle` is {value!r}: it {error}") from error
