"""A real cluster of Kubernetes with one node: API server and controllers are real, the node's agent is ours.

It binds pods as a scheduler does, runs them as processes, writes their statuses, and ends those that are deleted,
within their grace period, before the API server forgets them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from pathlib import Path

from tests.progress import wait_until
from tests.spark.cluster.kubernetes_client import Client, Refused
from tests.spark.cluster.kubernetes_servers import Servers, kubernetes_servers
from tests.spark.cluster.machines import machine_room
from tests.spark.cluster.pods import Object, Pods

NODE = "this-machine"
NAMESPACE = "pipelines"
ACCOUNT = "driver"
PATH = f"/api/v1/namespaces/{NAMESPACE}"
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
RULES = {
    "pods": ("create", "delete", "deletecollection", "get", "list", "watch"),
    "configmaps": ("create", "deletecollection"),
    "services": ("deletecollection",),
    "persistentvolumeclaims": ("deletecollection",),
}
"""What a service account of drivers may do, and no more: as docs/extensions/clusters.md says it."""


@dataclass
class RealKubernetes(Pods):
    """The pods of executors on a real API server, which drivers ask as a service account."""

    servers: Servers = field(kw_only=True)
    _seen: set[tuple[str, str]] = field(default_factory=set)
    """What has been done with pods, by uid: bound, run, ended."""
    _over: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def admin(self) -> Client:
        return self.servers.admin

    # --- what a driver is told ----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"k8s://https://127.0.0.1:{self.servers.port}"

    @property
    def token(self) -> Path:
        """File with the token of the drivers' service account."""
        return self.folder / "driver.token"

    @property
    def spark_conf(self) -> dict[str, str]:
        return {
            **super().spark_conf,
            "spark.kubernetes.namespace": NAMESPACE,
            "spark.kubernetes.authenticate.caCertFile": str(self.servers.certificate),
            "spark.kubernetes.authenticate.oauthTokenFile": str(self.token),
        }

    @property
    def pids(self) -> list[int]:
        return [*super().pids, *self.servers.pids]

    def allow_drivers(self) -> None:
        """Make a namespace, and a service account with the rights that a driver needs in it."""
        self.admin.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.token.write_text(self.new_account(ACCOUNT))
        rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        rules = [{"apiGroups": [""], "resources": [kind], "verbs": [*verbs]} for kind, verbs in RULES.items()]
        self.admin.create(f"{rights}/roles", {"metadata": {"name": ACCOUNT}, "rules": rules})
        binding = {
            "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
        }
        self.admin.create(f"{rights}/rolebindings", binding)

    def new_account(self, name: str) -> str:
        """Make a service account without rights, and return a token of it."""
        self.admin.create(f"{PATH}/serviceaccounts", {"metadata": {"name": name}})
        issued = self.admin.create(f"{PATH}/serviceaccounts/{name}/token", {"spec": {}})
        return str(issued["status"]["token"])

    # --- what tests ask -----------------------------------------------------------------------------------------

    def evict(self, name: str) -> None:
        with suppress(Refused):  # it has gone by itself
            self.admin.create(f"{PATH}/pods/{name}/eviction", {"metadata": {"name": name}})

    def create_driver(self, name: str) -> None:
        """Make the pod that a driver is said to run in."""
        container = {"name": "driver", "image": "spark-with-python"}
        pod = {"metadata": {"name": name}, "spec": {"containers": [container], "restartPolicy": "Never"}}
        self.admin.create(f"{PATH}/pods", pod)

    def delete_pod(self, name: str) -> None:
        self.admin.delete(f"{PATH}/pods/{name}")

    def clear(self) -> None:
        """Remove what killed drivers have left."""
        for kind in RULES:
            self.admin.delete(f"{PATH}/{kind}?labelSelector=spark-app-selector")

    @contextmanager
    def no_room(self) -> Iterator[None]:
        """Let a quota of the namespace forbid all pods that are not there yet."""
        quotas = f"{PATH}/resourcequotas"
        there = len(self.admin.get(f"{PATH}/pods")["items"])
        self.admin.create(quotas, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": str(there)}}})
        wait_until(lambda: "hard" in self.admin.get(f"{quotas}/few")["status"], "the quota is in force")
        try:
            yield
        finally:
            self.admin.delete(f"{quotas}/few")

    def left(self) -> list[str]:
        return [
            f"{kind}/{one['metadata']['name']}"
            for kind in RULES
            for one in self.admin.get(f"{PATH}/{kind}")["items"]
            if one["metadata"]["name"] != "kube-root-ca.crt"
        ]

    def denied(self) -> list[str]:
        """Return what drivers asked for and may not have."""
        requests = [json.loads(line) for line in self.servers.audit.read_text().splitlines()]
        user = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
        return [
            f"{one['verb']} {one['requestURI']}"
            for one in requests
            if one["user"]["username"] == user and one["responseStatus"]["code"] in (401, 403)
        ]

    # --- the node's agent ---------------------------------------------------------------------------------------

    def tell(self, name: str, status: Object) -> None:
        with suppress(Refused, OSError, HTTPException):  # gone, or the API server is
            self.admin.merge(f"{PATH}/pods/{name}/status", {"status": status})

    def follow(self) -> None:
        """Do with pods what a node does, until the cluster is over."""
        while not self._over.is_set():
            with suppress(OSError, HTTPException, Refused):
                listed = self.admin.get(f"{PATH}/pods")
                for pod in listed["items"]:
                    self._changed(pod)
                for event in self.admin.watch(f"{PATH}/pods", listed["metadata"]["resourceVersion"]):
                    self._heard(event)
            time.sleep(0.2)

    def stop(self) -> None:
        self._over.set()
        super().stop()

    def _heard(self, event: Object) -> None:
        match event["type"]:
            case "DELETED":
                self.end(event["object"]["metadata"]["name"])
            case "ADDED" | "MODIFIED":
                self._changed(event["object"])

    def _changed(self, pod: Object) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            if self._first("ended", pod):
                threading.Thread(target=self._terminate, args=(pod,), daemon=True).start()
        elif "nodeName" not in pod["spec"]:
            if self._first("bound", pod):
                self._bind(pod["metadata"]["name"])
        elif self._first("run", pod):
            if pod["metadata"].get("labels", {}).get("spark-role") == "executor":
                self.run(pod)
            else:  # where a driver is said to run: the test has its process
                self.tell(pod["metadata"]["name"], RUNNING)

    def _first(self, what: str, pod: Object) -> bool:
        done = (what, pod["metadata"]["uid"])
        if done in self._seen:
            return False
        self._seen.add(done)
        return True

    def _bind(self, name: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        with suppress(Refused):  # deleted meanwhile
            self.admin.create(f"{PATH}/pods/{name}/binding", {"metadata": {"name": name}, "target": target})

    def _terminate(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self.end(name, grace=pod["metadata"].get("deletionGracePeriodSeconds", 0))
        at_once = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        with suppress(Refused, OSError, HTTPException):
            self.admin.delete(f"{PATH}/pods/{name}", at_once)


@contextmanager
def real_kubernetes() -> Iterator[RealKubernetes]:
    """Start a cluster without pods. Raises ServerMissing."""
    with machine_room() as (folder, unshare):
        with kubernetes_servers(folder / "kubernetes") as servers:
            cluster = RealKubernetes(folder, unshare, servers=servers)
            cluster.private.mkdir()
            cluster.install_python()
            cluster.allow_drivers()
            agent = threading.Thread(target=cluster.follow, daemon=True)
            agent.start()
            try:
                yield cluster
            finally:
                cluster.stop()
        agent.join()
