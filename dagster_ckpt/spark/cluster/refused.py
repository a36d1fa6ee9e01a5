"""Sessions that Kubernetes refuses to start: a sentence instead of Java's stack."""

from __future__ import annotations

import re

from dagster_ckpt.errors import CheckpointError, InvalidRequest, Unavailable

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
