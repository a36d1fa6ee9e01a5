"""Applications a cluster has let go of: stopped from outside, or left without executors by a master that forgot them.

A restart within the same session would wait for ever. Whoever made the session makes another one instead.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dagster_ckpt.core.units import duration
from dagster_ckpt.errors import CheckpointError, InvalidRequest, Unavailable
from dagster_ckpt.spark.java.process import java_has_ended
from dagster_ckpt.spark.java.sessions import executor_ids, has_stopped, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 300.0
"""Seconds without any executor, while tasks wait, after which an attempt is given up (Flink: slot.request.timeout)."""
_LOOK_EVERY = 5.0
_abandoned: set[str] = set()
"""Ids of applications that are to be replaced by whoever has begun them."""


def is_stopped(spark: SparkSession) -> bool:
    """Tell whether the session's application has ended, here or on the cluster's order, or Java with it."""
    return java_has_ended() or has_stopped(spark)


def is_lost(spark: SparkSession) -> bool:
    """Tell whether nothing can run in the session any more, or nothing is expected to."""
    return is_stopped(spark) or spark.sparkContext.applicationId in _abandoned


def refuse_stopped(spark: SparkSession) -> None:
    """Raise InvalidRequest for a session whose application has ended."""
    if is_stopped(spark):
        raise InvalidRequest(
            "the Spark session of this process was stopped, and the run did not start it: start another one, or let "
            "the run start its own (SparkSessionResource in a process without a session)"
        )


def abandon_if_deserted(spark: SparkSession) -> bool:
    """Let the session be replaced where all its executors are gone; for a session that runs nothing."""
    try:
        if is_stopped(spark) or is_local(spark) or executor_ids(spark):
            return False
    except Exception:  # its JVM does not answer: the next attempt tells why
        return False
    _abandoned.clear()  # of applications that are over
    _abandoned.add(str(spark.sparkContext.applicationId))
    return True


class ExecutorWatch:
    """Looks whether the tasks of one session still have an executor to wait for."""

    def __init__(self, spark: SparkSession, *, now: Callable[[], float] = time.monotonic) -> None:
        self._spark, self._now = spark, now
        self._is_local: bool | None = None
        self._looked_at = now()
        self._none_since: float | None = None

    def look(self) -> str:
        """Return why the attempt should end; empty: it should not."""
        now = self._now()
        if self._is_local or now - self._looked_at < _LOOK_EVERY:
            return ""
        self._looked_at = now
        master, waits = self._spark.sparkContext.master, False
        try:
            if self._is_local is None:
                self._is_local = is_local(self._spark)
            waits = not self._is_local and self._tasks_wait()
        except Exception:
            if not is_stopped(self._spark):
                raise
        if is_stopped(self._spark):
            return f"Spark's application was ended: {master}"
        if not waits:
            self._none_since = None
            return ""
        if self._none_since is None:
            self._none_since = now
        if now - self._none_since < PATIENCE:
            return ""
        return (
            f"there is no executor and none has come for {duration(PATIENCE)}, while tasks wait for one: {master} has "
            "no room, or was restarted without its state (spark.deploy.recoveryMode) and does not know this application"
        )

    def _tasks_wait(self) -> bool:
        if executor_ids(self._spark):
            return False
        return bool(self._spark.sparkContext.statusTracker().getActiveJobsIds())


@contextlib.contextmanager
def not_for_ever(spark: SparkSession) -> Iterator[None]:
    """Give up jobs of a session that nothing else uses once they have waited too long for an executor.

    Raises Unavailable then, and whoever has begun the application begins another one.
    """
    over = threading.Event()
    told: list[str] = []

    def look() -> None:
        watch = ExecutorWatch(spark)
        while not told and not over.wait(_LOOK_EVERY):
            with contextlib.suppress(Exception):  # of an application that is being stopped
                if found := watch.look():
                    told.append(found)
                    if not over.is_set() and abandon_if_deserted(spark):
                        spark.sparkContext.cancelAllJobs()

    thread = threading.Thread(target=look, name="ckpt-executors", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if told:
            raise Unavailable(told[0]) from error
        raise
    finally:
        over.set()


_ANSWER = re.compile(
    r"KubernetesClientException: Failure executing: \w+ at: (\S+)\. Message: (.*?)\. Received status: .*?"
    r"code=(401|403)\b",
    re.DOTALL,
)
_GIVEN_UP = "Spark context stopped while waiting for backend"
_ENDING = "Shutdown hooks cannot be modified during shutdown"
RIGHTS = (
    "create, delete, deletecollection, get, list and watch of pods, create and deletecollection of configmaps, "
    "deletecollection of services and persistentvolumeclaims"
)


def refused_by_kubernetes(error: BaseException, master: str) -> CheckpointError | None:
    """Return the sentence for a session whose API server said no; None for another error.

    InvalidRequest where a driver has no rights, Unavailable where there may be room later.
    """
    if not master.startswith("k8s://"):
        return None
    said = str(error)
    if (answer := _ANSWER.search(said)) is not None:
        return _refused(*answer.groups())
    if _GIVEN_UP in said:
        return Unavailable(
            f"Spark gave up before the first executor came: {master} has refused pod after pod. Spark's log, above, "
            "has its words (KubernetesClientException): a quota of the namespace that is used up, or a service account "
            f"that may not create pods; it needs {RIGHTS}"
        )
    if _ENDING in said:
        return Unavailable(
            "Spark is ending its Java, as it does on Kubernetes where too many executors have failed "
            "(spark.executor.maxNumFailures): the next session begins another one"
        )
    return None


def _refused(asked: str, said: str, code: str) -> CheckpointError:
    if code == "401":
        return InvalidRequest(
            f"Kubernetes does not know who asks for {asked} (401 {said}): run the driver in a pod that has a service "
            "account, or give it a valid token (spark.kubernetes.authenticate.oauthTokenFile)"
        )
    if "exceeded quota" in said:
        return Unavailable(f"Kubernetes has no room for the session: {said}")
    return InvalidRequest(
        f"Kubernetes does not let the driver do what Spark does: {said}. Its service account needs {RIGHTS}"
    )
