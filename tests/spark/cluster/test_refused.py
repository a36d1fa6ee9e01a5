"""What people read where Kubernetes refuses a session; the answers are those of a real API server."""

from __future__ import annotations

import pytest

from dagster_ckpt.errors import CheckpointError, InvalidRequest, Unavailable
from dagster_ckpt.spark.cluster.lost import RIGHTS, refused_by_kubernetes

MASTER = "k8s://https://127.0.0.1:6443"
START = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "
URL = "https://127.0.0.1:6443/api/v1/namespaces/pipelines/configmaps"
FAILED = f"{START}io.fabric8.kubernetes.client.KubernetesClientException: Failure executing: POST at: {URL}. Message: "
FORBIDDEN = (
    'configmaps is forbidden: User "system:serviceaccount:pipelines:nobody" cannot create resource "configmaps" in '
    'API group "" in the namespace "pipelines"'
)
FULL = 'configmaps "spark-exec" is forbidden: exceeded quota: few, requested: count/configmaps=1'


def status(code: int) -> str:
    return f". Received status: Status(apiVersion=v1, code={code}, details=StatusDetails(causes=[]), kind=Status)."


NOT_KNOWN = (
    f"Kubernetes does not know who asks for {URL} (401 Unauthorized): run the driver in a pod that has a service "
    "account, or give it a valid token (spark.kubernetes.authenticate.oauthTokenFile)"
)
NO_RIGHTS = (
    f"Kubernetes does not let the driver do what Spark does: {FORBIDDEN}. Its service account needs {RIGHTS}"
)
POD_AFTER_POD = (
    f"Spark gave up before the first executor came: {MASTER} has refused pod after pod. Spark's log, above, has its "
    "words (KubernetesClientException): a quota of the namespace that is used up, or a service account that may not "
    f"create pods; it needs {RIGHTS}"
)
GIVEN_UP = "java.lang.IllegalStateException: Spark context stopped while waiting for backend"
HOOKS = "java.lang.IllegalStateException: Shutdown hooks cannot be modified during shutdown."
ANOTHER = (
    "Spark is ending its Java, as it does on Kubernetes where too many executors have failed "
    "(spark.executor.maxNumFailures): the next session begins another one"
)
TOLD: dict[str, tuple[type[CheckpointError], str]] = {
    f"{FAILED}Unauthorized{status(401)}": (InvalidRequest, NOT_KNOWN),
    f"{FAILED}{FORBIDDEN}{status(403)}": (InvalidRequest, NO_RIGHTS),
    f"{FAILED}{FULL}{status(403)}": (Unavailable, f"Kubernetes has no room for the session: {FULL}"),
    f"{START}{GIVEN_UP}\n\tat org...": (Unavailable, POD_AFTER_POD),
    f"{START}{HOOKS}\n\tat org...": (Unavailable, ANOTHER),
}


@pytest.mark.parametrize("said", TOLD)
def test_a_session_that_kubernetes_refuses_is_told_in_a_sentence(said: str) -> None:
    kind, told = TOLD[said]
    found = refused_by_kubernetes(RuntimeError(said), MASTER)
    assert type(found) is kind
    assert str(found) == told


def test_other_errors_and_other_masters_are_left_alone() -> None:
    assert refused_by_kubernetes(RuntimeError(f"{FAILED}Conflict{status(409)}"), MASTER) is None
    assert refused_by_kubernetes(RuntimeError(GIVEN_UP), "spark://master:7077") is None
