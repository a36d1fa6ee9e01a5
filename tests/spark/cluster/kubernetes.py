"""A cluster of Kubernetes as Spark's own scheduler for it sees one: pods are processes, each a machine of its own.

Real is all of Spark: its resource manager, its watches of pods, its executors. Played are the API server and the
kubelet, which does with a pod of Spark's image what the image's ``entrypoint.sh`` does.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.spark.cluster.kubernetes_api import Object, Objects, api_server
from tests.spark.cluster.machines import Machine, Machines, java_home, machine_room, spark_home

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
FIRST_IP = 2
"""Pods have addresses 127.0.0.2, 127.0.0.3, ...: what two of them have on their disks Spark does not share then."""


@dataclass
class KubernetesCluster(Machines):
    """The pods of executors, and the API they are asked for with."""

    port: int = 0
    pods: dict[str, Machine] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    """Names of all pods there ever were."""
    objects: Objects = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.objects = Objects(on_pod=self._run, on_deleted=self._end)

    # --- what a driver is told ----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"k8s://http://127.0.0.1:{self.port}"

    @property
    def driver_environment(self) -> dict[str, str]:
        own = {"KUBECONFIG": str(self.folder / "none"), "SPARK_LOCAL_DIRS": str(self.folder / "spark-local")}
        return {**super().driver_environment, **own}

    @property
    def spark_conf(self) -> dict[str, str]:
        return {
            "spark.executor.instances": "2",
            "spark.kubernetes.container.image": "spark-with-python",
            "spark.kubernetes.allocation.batch.delay": "200ms",
        }

    @property
    def pids(self) -> list[int]:
        with self._lock:
            return [machine.process.pid for machine in self.pods.values()]

    # --- what happens to pods -----------------------------------------------------------------------------------

    def running(self) -> list[str]:
        """Return the names of the pods whose process lives."""
        with self._lock:
            return [name for name, machine in self.pods.items() if machine.process.poll() is None]

    def run_out_of_memory(self, name: str) -> None:
        """End a pod as the kernel does that of a container over its limit."""
        with self._lock:
            machine = self.pods[name]
        with suppress(ProcessLookupError):
            os.killpg(machine.process.pid, signal.SIGKILL)

    def evict(self, name: str) -> None:
        """Delete a pod, as ``kubectl delete pod`` and a drained node do."""
        self.objects.delete("pods", name)

    def stop(self) -> None:
        with self._lock:
            left = [*self.pods.values()]
        for machine in left:
            machine.kill()

    # --- the kubelet --------------------------------------------------------------------------------------------

    def _run(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        [container] = pod["spec"]["containers"]
        with self._lock:
            address = f"127.0.0.{FIRST_IP + len(self.started) % 250}"
            self.started.append(name)
        fields = {"status.podIP": address, "metadata.name": name}
        given = {one["name"]: _value(one, fields) for one in container["env"]}
        assert container["args"] == ["executor"], container["args"]
        empty = [volume["name"] for volume in pod["spec"].get("volumes", ()) if "emptyDir" in volume]
        disks = [Path(m["mountPath"]) for m in container.get("volumeMounts", ()) if m["name"] in empty]
        for disk in disks:
            disk.mkdir(parents=True, exist_ok=True)
        image = {"SPARK_HOME": str(spark_home()), **given}
        machine = self.boot(name, _entrypoint(given), masked=(self.private, *disks), environment=image)
        with self._lock:
            self.pods[name] = machine
        ready = {"phase": "Running", "podIP": address, "containerStatuses": [_state(running={})]}
        self.objects.update("pods", name, {"status": ready})
        threading.Thread(target=self._watch, args=(name, machine), daemon=True).start()

    def _watch(self, name: str, machine: Machine) -> None:
        code = machine.process.wait()
        code = 128 - code if code < 0 else code
        over = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [_state(terminated={"exitCode": code})],
        }
        self.objects.update("pods", name, {"status": over})

    def _end(self, name: str) -> None:
        with self._lock:
            machine = self.pods.pop(name, None)
        if machine is not None:
            machine.kill()


def _value(one: Object, fields: dict[str, str]) -> str:
    """Return an environment variable's value; fields of the pod itself are asked for by path."""
    if "value" in one or "valueFrom" not in one:
        return str(one.get("value", ""))
    return fields[one["valueFrom"]["fieldRef"]["fieldPath"]]


def _entrypoint(given: dict[str, str]) -> Sequence[str]:
    options = [value for name, value in sorted(given.items()) if name.startswith("SPARK_JAVA_OPT_")]
    memory = given["SPARK_EXECUTOR_MEMORY"]
    told = {
        "--driver-url": "SPARK_DRIVER_URL",
        "--executor-id": "SPARK_EXECUTOR_ID",
        "--cores": "SPARK_EXECUTOR_CORES",
        "--app-id": "SPARK_APPLICATION_ID",
        "--hostname": "SPARK_EXECUTOR_POD_IP",
        "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "--podName": "SPARK_EXECUTOR_POD_NAME",
    }
    java = [f"{java_home()}/bin/java", *options, f"-Xmx{memory}", "-cp", f"{spark_home()}/jars/*", _BACKEND]
    return [*java, *(text for option, name in told.items() for text in (option, given[name]))]


def _state(**state: Object) -> Object:
    return {
        "name": "spark-kubernetes-executor",
        "state": state,
        "restartCount": 0,
        "ready": "running" in state,
    }


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
