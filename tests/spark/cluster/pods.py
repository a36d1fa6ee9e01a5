"""Pods of Spark's executors as processes: what a kubelet does with a pod, and the image's ``entrypoint.sh`` in it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.spark.cluster.machines import Machine, Machines, java_home, spark_home

Object = dict[str, Any]
"""An object of Kubernetes' API, in the API's own words."""

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
FIRST_IP = 2
"""Pods have addresses 127.0.0.2, 127.0.0.3, ...: what two of them have on their disks Spark does not share then."""
KILLED = 128 + signal.SIGKILL


@dataclass
class Pods(Machines, ABC):
    """The pods of executors, each a machine of its own; an API server hears how they go."""

    pods: dict[str, Machine] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    """Names of all pods there ever were."""
    _watchers: dict[str, threading.Thread] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @abstractmethod
    def tell(self, name: str, status: Object) -> None:
        """Give a pod another status; it may be gone."""

    @abstractmethod
    def evict(self, name: str) -> None:
        """Have the API server take a pod off its node, as a drained node does."""

    @abstractmethod
    def left(self) -> list[str]:
        """Return what the API server still has of applications: kinds and names."""

    # --- what a driver is told ----------------------------------------------------------------------------------

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

    def stop(self) -> None:
        with self._lock:
            left = [*self.pods.values()]
        for machine in left:
            machine.kill()

    # --- the kubelet --------------------------------------------------------------------------------------------

    def run(self, pod: Object) -> None:
        """Start a pod's container, say that it runs, and how it ends."""
        name = pod["metadata"]["name"]
        [container] = pod["spec"]["containers"]
        with self._lock:
            address = f"127.0.0.{FIRST_IP + len(self.started) % 250}"
            self.started.append(name)
        fields = {"status.podIP": address, "metadata.name": name}
        given = {one["name"]: _value(one, fields) for one in container["env"]}
        assert container["args"] == ["executor"], container["args"]
        disks = _own_disks(pod)
        for disk in disks:
            disk.mkdir(parents=True, exist_ok=True)
        image = {"SPARK_HOME": str(spark_home()), **given}
        machine = self.boot(name, _entrypoint(given), masked=(self.private, *disks), environment=image)
        watcher = threading.Thread(target=self._watch, args=(name, machine, address), daemon=True)
        with self._lock:
            self.pods[name], self._watchers[name] = machine, watcher
            watcher.start()

    def end(self, name: str, grace: float = 0.0) -> None:
        """End a pod's container: asked to, and after ``grace`` seconds killed."""
        with self._lock:
            machine, watcher = self.pods.get(name), self._watchers.get(name)
        if machine is None or watcher is None:
            return
        if grace:
            with suppress(ProcessLookupError):
                os.killpg(machine.process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                machine.process.wait(grace)
        machine.kill()
        watcher.join()  # how it ended is told before the pod is gone
        with self._lock:
            self.pods.pop(name, None)

    def _watch(self, name: str, machine: Machine, address: str) -> None:
        self.tell(name, {"phase": "Running", "podIP": address, "containerStatuses": [_state(running={})]})
        code = machine.process.wait()
        code = 128 - code if code < 0 else code
        why = {0: "Completed", KILLED: "OOMKilled"}.get(code, "Error")
        over = _state(terminated={"exitCode": code, "reason": why})
        self.tell(name, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [over]})


def _own_disks(pod: Object) -> list[Path]:
    empty = [volume["name"] for volume in pod["spec"].get("volumes", ()) if "emptyDir" in volume]
    [container] = pod["spec"]["containers"]
    return [Path(mount["mountPath"]) for mount in container.get("volumeMounts", ()) if mount["name"] in empty]


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
        "image": "spark-with-python",
        "imageID": "",
        "state": state,
        "restartCount": 0,
        "ready": "running" in state,
    }
