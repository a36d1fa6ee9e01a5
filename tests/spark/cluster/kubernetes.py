"""A cluster of Kubernetes as Spark's own scheduler for it sees one: pods are processes, each a machine of its own.

Real is all of Spark: its resource manager, its watches of pods, its executors. Played are the API server and the
kubelet. On a real API server the same tests run in ``tests/platforms/test_kubernetes.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.spark.cluster.kubernetes_api import Objects, api_server
from tests.spark.cluster.machines import machine_room
from tests.spark.cluster.pods import Object, Pods

GRACE = 30.0
"""Seconds that a pod has to end, as where its spec says nothing."""


@dataclass
class KubernetesCluster(Pods):
    """The pods of executors, and the API they are asked for with."""

    port: int = 0
    objects: Objects = field(init=False)

    def __post_init__(self) -> None:
        self.objects = Objects(on_pod=self.run, on_deleted=self._end)

    @property
    def url(self) -> str:
        return f"k8s://http://127.0.0.1:{self.port}"

    def _end(self, name: str) -> None:
        self.end(name, grace=GRACE)

    def tell(self, name: str, status: Object) -> None:
        self.objects.update("pods", name, {"status": status})

    def evict(self, name: str) -> None:
        self.objects.delete("pods", name)

    def left(self) -> list[str]:
        kinds = ("pods", "services", "configmaps", "persistentvolumeclaims")
        return [
            f"{kind}/{one['metadata']['name']}" for kind in kinds for one in self.objects.select(kind, ())
        ]


@contextmanager
def kubernetes_cluster() -> Iterator[KubernetesCluster]:
    """Serve a cluster without pods. Raises ServerMissing where mounts cannot be made private."""
    with machine_room() as (folder, unshare):
        cluster = KubernetesCluster(folder, unshare)
        cluster.private.mkdir()
        cluster.install_python()
        with api_server(cluster.objects) as cluster.port:
            try:
                yield cluster
            finally:
                cluster.stop()
