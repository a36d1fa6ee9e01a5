"""Real servers for tests and benchmarks: throw-away PostgreSQL and Kafka, an S3 over HTTP, a faulty wire."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from importlib.metadata import version
from pathlib import Path

from tests.root import ROOT

POSTGRES_BINARIES = "/usr/lib/postgresql/*/bin"


class ServerMissing(Exception):
    """The server is not installed; the message says how to get it."""


# --- PostgreSQL -----------------------------------------------------------------------------------------------


class PostgresCluster:
    """A running cluster; ``new_database`` gives each test its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._databases = 0

    def url(self, database: str, port: int | None = None) -> str:
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def new_database(self) -> str:
        import psycopg

        self._databases += 1
        name = f"test_{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        return self.url(name)


@contextmanager
def postgres_cluster(*settings: str) -> Iterator[PostgresCluster]:
    """Start a cluster in a temporary folder on a free port; ``settings`` are ``name=value``."""
    binaries = _postgres_binaries()
    folder = Path(tempfile.mkdtemp(prefix="dagster-ckpt-pg-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    data = folder / "data"
    port = free_port()
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 " + " ".join(f"-c {s}" for s in settings)

    def run(program: str, *arguments: str) -> None:
        command = [*as_user, str(binaries / program), *arguments]
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")

    try:
        run(
            "initdb",
            "-D",
            str(data),
            "-U",
            "postgres",
            "-A",
            "trust",
            "--no-sync",
            "--no-locale",
            "-E",
            "UTF8",
        )
        run("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield PostgresCluster(port)
        finally:
            run("pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgres_binaries() -> Path:
    found = sorted(Path("/").glob(POSTGRES_BINARIES.removeprefix("/")))
    if found:
        return found[-1]
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    raise ServerMissing("PostgreSQL's server is not installed: apt-get install postgresql")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- S3 -------------------------------------------------------------------------------------------------------


class S3Server:
    """A running S3 over HTTP; ``new_bucket`` gives each test its own."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.options = {"key": "test", "secret": "test", "client_kwargs": self._client_settings()}
        self._buckets = 0

    def _client_settings(self) -> dict[str, str]:
        return {"endpoint_url": self.endpoint, "region_name": "us-east-1"}

    def new_bucket(self) -> str:
        import boto3

        self._buckets += 1
        name = f"bucket-{self._buckets}"
        client = boto3.client(
            "s3", aws_access_key_id="test", aws_secret_access_key="test", **self._client_settings()
        )
        client.create_bucket(Bucket=name)
        client.close()
        return name


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start moto's S3 on a free port of this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}")
    finally:
        server.stop()


@contextmanager
def s3_server_process() -> Iterator[S3Server]:
    """Start moto's S3 in a process of its own: delta-rs holds Python's lock while it waits for an answer."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield S3Server(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()


# --- Kafka ------------------------------------------------------------------------------------------------------


BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Of a JVM that lives for minutes."""


def cached_jars(folder: str) -> list[Path]:
    """Jars that scripts/bootstrap has put into the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return sorted((cache / "dagster-ckpt" / folder).glob("*.jar"))


def spark_kafka_jars() -> list[Path]:
    """Spark's Kafka connector for the installed PySpark; none: scripts/bootstrap spark_kafka has not run."""
    return cached_jars(f"spark-kafka-{version('pyspark')}")


def spark_s3_jars() -> list[Path]:
    """Hadoop's connector to S3 for the installed PySpark; none: scripts/bootstrap spark_s3 has not run."""
    return cached_jars(f"spark-s3-{version('pyspark')}")


def spark_azure_jars() -> list[Path]:
    """Hadoop's connector to Azure for the installed PySpark; none: scripts/bootstrap spark_azure has not run."""
    return cached_jars(f"spark-azure-{version('pyspark')}")


def spark_google_jars() -> list[Path]:
    """Google's connector for Hadoop; none: scripts/bootstrap spark_google has not run."""
    return cached_jars("spark-google")


USERS = ("admin", "app")
"""Users of a broker that asks; their passwords are their names."""


class KafkaBroker:
    """A broker that is its own controller, in a folder; it can be killed and started again."""

    def __init__(self, program: list[Path | str], folder: Path, has_users: bool) -> None:
        self.users = USERS if has_users else ()
        port, controller = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": folder / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
        }
        if has_users:
            settings |= {
                "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
                "inter.broker.listener.name": "SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                    "org.apache.kafka.common.security.plain.PlainLoginModule required "
                    f'username="{USERS[0]}" password="{USERS[0]}" '
                    + " ".join(f'user_{one}="{one}"' for one in USERS)
                    + ";"
                ),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": f"User:{USERS[0]};User:ANONYMOUS",
            }
        self._program, self._log, self._file = program, folder / "log", folder / "server.properties"
        self._file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        identity = ["format", "-t", "4L6g3nShT-eMCtK--X86sw", "-c", self._file]
        subprocess.run([*program, "kafka.tools.StorageTool", *identity], check=True, capture_output=True)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*self._program, "kafka.Kafka", self._file], stdout=log, stderr=log
            )
        _wait_for_kafka(self, self._process, self._log)

    def client(self, user: str = "") -> dict[str, str]:
        """Return what a client needs to reach it, as one of its ``users``; the first may do everything."""
        who = user or next(iter(self.users), "")
        said = {"sasl.mechanisms": "PLAIN", "sasl.username": who, "sasl.password": who}
        return {
            "bootstrap.servers": self.address,
            **({"security.protocol": "SASL_PLAINTEXT", **said} if who else {}),
        }

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


@contextmanager
def kafka_broker(*, has_users: bool = False) -> Iterator[KafkaBroker]:
    """Start a broker in a temporary folder; ``has_users``: it asks who somebody is, and what that one may do."""
    java = subprocess.run([ROOT / "scripts" / "java-home"], capture_output=True, text=True, check=False)
    jars = cached_jars("kafka")
    if not any(jar.name.startswith("kafka_") for jar in jars) or java.returncode:
        raise ServerMissing("Kafka is not installed: scripts/bootstrap kafka, which needs Maven")
    folder = Path(tempfile.mkdtemp(prefix="dagster-ckpt-kafka-"))
    program = [Path(java.stdout.strip()) / "bin" / "java", "-Xmx256m", *BRIEF, "-cp", f"{jars[0].parent}/*"]
    broker = None
    try:
        broker = KafkaBroker(program, folder, has_users)
        yield broker
    finally:
        if broker is not None:
            broker.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_kafka(kafka: KafkaBroker, broker: subprocess.Popen[bytes], log: Path) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({**kafka.client(), "log_level": 0})
    for _ in range(120):
        if broker.poll() is not None:
            raise RuntimeError(f"Kafka ended: {log.read_text()}")
        with suppress(KafkaException):
            if admin.list_topics(timeout=2).brokers:
                return
    raise RuntimeError(f"Kafka does not answer: {log.read_text()}")


# --- a wire that loses COMMITs ----------------------------------------------------------------------------------


class Loss(Enum):
    NOTHING = "nothing"
    REQUEST = "the server never hears COMMIT"
    ANSWER = "the server commits, the client never hears"
    LATE = "the client loses the connection before COMMIT, which arrives half a second later"
    ANSWER_THEN_DEAF = "the server commits, and nobody reaches it any more"


class CommitLosingProxy:
    """A TCP proxy in front of PostgreSQL that mistreats the next COMMIT as ``loss`` says."""

    def __init__(self, server_port: int) -> None:
        self.loss = Loss.NOTHING
        self.fired = threading.Event()
        self._server_port = server_port
        self._is_deaf = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_deaf:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._server_port))
            swallow = threading.Event()
            threading.Thread(target=self._upstream, args=(client, server, swallow), daemon=True).start()
            threading.Thread(target=self._downstream, args=(client, server, swallow), daemon=True).start()

    def _upstream(self, client: socket.socket, server: socket.socket, swallow: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.loss is not Loss.NOTHING and b"COMMIT" in data:
                    self._mistreat(data, client, server, swallow)
                    return
                server.sendall(data)
        _shut(server)

    def _mistreat(
        self, data: bytes, client: socket.socket, server: socket.socket, swallow: threading.Event
    ) -> None:
        loss, self.loss = self.loss, Loss.NOTHING
        swallow.set()
        self._is_deaf = loss is Loss.ANSWER_THEN_DEAF
        match loss:
            case Loss.ANSWER | Loss.ANSWER_THEN_DEAF:
                server.sendall(data)
                time.sleep(0.2)
                _shut(client)
            case Loss.LATE:
                _shut(client)
                time.sleep(0.5)
                server.sendall(data)
                time.sleep(0.2)
            case Loss.REQUEST | Loss.NOTHING:
                _shut(client)
        _shut(server)
        self.fired.set()

    @staticmethod
    def _downstream(client: socket.socket, server: socket.socket, swallow: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if not swallow.is_set():
                    client.sendall(data)
        _shut(client)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
