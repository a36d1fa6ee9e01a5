"""A YARN cluster: ResourceManager, node managers and an HDFS as real processes, each node a machine of its own."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.adapters.servers import BRIEF, ServerMissing, cached_jars, free_port
from tests.spark.cluster.machines import Machine, Machines, java_home, machine_room, spark_home

HDFS = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
LOST_AFTER_MS = 6000
"""A node that does not answer for so long is lost; ten minutes where nothing is set."""
_OPENED = ("java.lang", "java.util", "java.net", "java.math", "java.io")
_RM_PORTS = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")


def hadoop_version() -> str:
    """Return the Hadoop that the installed PySpark talks to."""
    [jar] = (spark_home() / "jars").glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


@dataclass
class YarnCluster(Machines):
    """A ResourceManager, its nodes, and the HDFS that bare paths mean."""

    jars: Sequence[Path]
    hdfs_port: int = field(default_factory=free_port)
    rm_ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in _RM_PORTS})
    workers: dict[str, Machine] = field(default_factory=dict)
    servers: dict[str, Machine] = field(default_factory=dict)

    # --- what a driver is told ----------------------------------------------------------------------------------

    url = "yarn"

    @property
    def driver_environment(self) -> dict[str, str]:
        return {**super().driver_environment, "HADOOP_CONF_DIR": str(self.folder / "conf")}

    @property
    def spark_conf(self) -> dict[str, str]:
        return {
            "spark.executor.instances": "2",
            "spark.executor.memoryOverhead": "384m",
            "spark.yarn.am.memory": "512m",
            "spark.yarn.am.extraJavaOptions": " ".join(BRIEF),
            "spark.executorEnv.PATH": f"{self.folder / 'python' / 'bin'}:/usr/bin:/bin",
            "spark.yarn.jars": f"local:{spark_home()}/jars/*",
            "spark.sql.warehouse.dir": f"file://{self.folder}/warehouse",
        }

    @property
    def pids(self) -> list[int]:
        return [one.process.pid for one in (*self.servers.values(), *self.workers.values())]

    # --- machines -----------------------------------------------------------------------------------------------

    def start_servers(self) -> None:
        """Start HDFS and the ResourceManager."""
        self._configure("conf", {})
        how = ["-nomr", "-format", "-datanodes", "1", "-nnport", str(self.hdfs_port)]
        how += ["-D", f"hdfs.minidfs.basedir={self.folder / 'hdfs'}", "-D", "dfs.permissions.enabled=false"]
        self.servers["hdfs"] = self._java("hdfs", [HDFS, *how], conf="conf", masked=())
        self.servers["rm"] = self._java("rm", [RESOURCE_MANAGER], conf="conf", masked=())

    def start_worker(self, name: str, *, masked: Sequence[Path] = ()) -> None:
        """Start a node; its containers find an empty disk of their own at ``private`` and at ``masked``."""
        home = self.folder / name
        local = {
            "yarn.nodemanager.local-dirs": str(home / "local"),
            "yarn.nodemanager.log-dirs": str(home / "logs"),
            "yarn.nodemanager.address": "127.0.0.1:0",
            "yarn.nodemanager.localizer.address": "127.0.0.1:0",
            "yarn.nodemanager.webapp.address": "127.0.0.1:0",
        }
        conf = f"conf-{name}"
        self._configure(conf, local)
        self.workers[name] = self._java(name, [NODE_MANAGER], conf=conf, masked=(self.private, *masked))

    def kill_worker(self, name: str) -> None:
        """End a node with all its containers."""
        self.workers.pop(name).kill()

    def wait_for_workers(self) -> None:
        """Wait until all nodes are part of the cluster."""
        self.servers["hdfs"].wait_for("Cluster is active")
        for worker in self.workers.values():
            worker.wait_for("Registered with ResourceManager")

    def ask(self, path: str) -> dict[str, Any]:
        """Return what the ResourceManager answers."""
        where = f"http://127.0.0.1:{self.rm_ports['webapp.address']}/ws/v1/cluster/{path}"
        with urllib.request.urlopen(where) as answer:
            return dict(json.load(answer))

    def hdfs_paths(self) -> list[str]:
        """Return what lies in HDFS."""
        command = [*self._program("conf"), "org.apache.hadoop.fs.FsShell", "-ls", "-R", "-C", "/"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.split()

    def stop(self) -> None:
        for machine in (*self.workers.values(), *self.servers.values()):
            machine.kill()
        self.workers.clear()
        self.servers.clear()

    # --- how --------------------------------------------------------------------------------------------------------

    def _java(self, name: str, command: Sequence[str], *, conf: str, masked: Sequence[Path]) -> Machine:
        environment = {"HADOOP_CONF_DIR": str(self.folder / conf)}
        return self.boot(name, [*self._program(conf), *command], masked=masked, environment=environment)

    def _program(self, conf: str) -> list[str]:
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        path = ":".join([str(self.folder / conf), *map(str, self.jars), f"{spark_home()}/jars/*"])
        return [f"{java_home()}/bin/java", "-Xmx384m", "-XX:-UsePerfData", *BRIEF, *opened, "-cp", path]

    def _configure(self, name: str, more: Mapping[str, str]) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        hdfs = f"hdfs://127.0.0.1:{self.hdfs_port}"
        _write(folder / "core-site.xml", {"fs.defaultFS": hdfs})
        manager = {f"yarn.resourcemanager.{key}": f"127.0.0.1:{port}" for key, port in self.rm_ports.items()}
        _write(folder / "yarn-site.xml", {**YARN, **manager, **more})
        (folder / "log4j2.properties").write_text(LOG4J2)


YARN = {
    "yarn.resourcemanager.scheduler.class": f"{RESOURCE_MANAGER.rpartition('.')[0]}.scheduler.fifo.FifoScheduler",
    "yarn.resourcemanager.am.max-attempts": "10",
    "yarn.nm.liveness-monitor.expiry-interval-ms": str(LOST_AFTER_MS),
    "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
    "yarn.resourcemanager.resource-tracker.nm.ip-hostname-check": "false",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.nodemanager.resource.memory-mb": "2048",
    "yarn.nodemanager.resource.cpu-vcores": "4",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.container-monitor.enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
}
LOG4J2 = """rootLogger.level=info
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%p %c{1}: %m%n
"""


def _write(file: Path, settings: Mapping[str, str]) -> None:
    told = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    file.write_text(f"<configuration>{told}</configuration>")


@contextmanager
def yarn_cluster(*workers: str) -> Iterator[YarnCluster]:
    """Start a cluster in a temporary folder. Raises ServerMissing."""
    hadoop, certificates = cached_jars(f"hadoop-{hadoop_version()}"), cached_jars("bouncycastle")
    if not hadoop or not certificates:
        raise ServerMissing("YARN is not installed: scripts/bootstrap python hadoop, which needs Maven")
    with machine_room() as (folder, unshare):
        cluster = YarnCluster(folder, unshare, [*hadoop, *certificates])
        try:
            cluster.private.mkdir()
            cluster.install_python()
            cluster.start_servers()
            for name in workers:
                cluster.start_worker(name)
            cluster.wait_for_workers()
            yield cluster
        finally:
            cluster.stop()
