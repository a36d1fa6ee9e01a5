"""Servers of Kubernetes as processes of this machine: etcd, kube-apiserver and kube-controller-manager."""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.adapters.servers import ServerMissing, free_port
from tests.progress import Sampled, wait_until, work_of
from tests.root import ROOT
from tests.spark.cluster.kubernetes_client import Client, Refused

CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
)
"""Of some forty: what has to do with the objects that Spark makes."""
AUDIT_POLICY = """apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    verbs: [get, list, watch, create, update, patch, delete, deletecollection]
"""


def programs() -> Path:
    """Return the folder that scripts/bootstrap has built the servers into. Raises ServerMissing."""
    pinned = b"".join((ROOT / "scripts" / "kubernetes" / name).read_bytes() for name in ("go.mod", "go.sum"))
    version = hashlib.sha256(pinned).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "dagster-ckpt" / f"kubernetes-{version}"
    if not folder.exists():
        raise ServerMissing("Kubernetes is not built: scripts/bootstrap kubernetes, which needs Go")
    return folder


@dataclass(frozen=True)
class Servers:
    """A running API server; ``admin`` may do everything."""

    folder: Path
    port: int = field(default_factory=free_port)
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def certificate(self) -> Path:
        """What its clients trust; kube-apiserver makes it itself."""
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def audit(self) -> Path:
        """A line of JSON for each request."""
        return self.folder / "audit.log"

    @property
    def admin(self) -> Client:
        return self.client(self.token)

    def client(self, token: str) -> Client:
        return Client(self.port, token, self.certificate)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]


@contextmanager
def kubernetes_servers(folder: Path) -> Iterator[Servers]:
    """Start the servers with their state in a folder. Raises ServerMissing."""
    built, servers = programs(), Servers(folder)
    folder.mkdir()
    _write_keys(servers)
    store, peers = free_port(), free_port()
    with ExitStack() as running:

        def start(name: str, options: Sequence[str]) -> None:
            process = running.enter_context(_process(built / name, options, folder / f"{name}.log"))
            servers.processes.append(process)

        start("etcd", _etcd(folder, store, peers))
        start("kube-apiserver", _api_server(servers, store))
        _wait_for(servers, "/readyz")
        start("kube-controller-manager", _controllers(servers))
        _wait_for(servers, "/api/v1/namespaces/default/serviceaccounts/default")
        yield servers


def _etcd(folder: Path, port: int, peers: int) -> list[str]:
    own, other = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    return [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={own}",
        f"--advertise-client-urls={own}",
        f"--listen-peer-urls={other}",
        f"--initial-advertise-peer-urls={other}",
        f"--initial-cluster=default={other}",
        "--unsafe-no-fsync",
    ]


def _api_server(servers: Servers, store: int) -> list[str]:
    folder, key = servers.folder, servers.folder / "service-accounts.key"
    return [
        f"--etcd-servers=http://127.0.0.1:{store}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",  # it takes no address of this machine alone
        f"--secure-port={servers.port}",
        f"--cert-dir={folder / 'certificates'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--anonymous-auth=false",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.96.0.0/24",
        f"--audit-policy-file={folder / 'audit.yaml'}",
        f"--audit-log-path={servers.audit}",
    ]


def _controllers(servers: Servers) -> list[str]:
    folder = servers.folder
    return [
        f"--kubeconfig={folder / 'admin.yaml'}",
        f"--controllers={','.join(CONTROLLERS)}",
        f"--service-account-private-key-file={folder / 'service-accounts.key'}",
        f"--root-ca-file={servers.certificate}",
        "--leader-elect=false",
        "--secure-port=0",
    ]


def _write_keys(servers: Servers) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    folder = servers.folder
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    (folder / "service-accounts.key").write_bytes(key)
    (folder / "tokens.csv").write_text(f'{servers.token},admin,admin,"system:masters"\n')
    (folder / "audit.yaml").write_text(AUDIT_POLICY)
    (folder / "admin.yaml").write_text(
        f"""apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: admin}}}}]
clusters:
  - name: here
    cluster: {{server: "https://127.0.0.1:{servers.port}", certificate-authority: "{servers.certificate}"}}
users: [{{name: admin, user: {{token: "{servers.token}"}}}}]
"""
    )


@contextmanager
def _process(program: Path, options: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen([program, *options], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_for(servers: Servers, path: str) -> None:
    def answers() -> bool:
        with suppress(OSError, Refused):
            servers.admin.read(path)
            return True
        return False

    def check() -> None:
        for process in servers.processes:
            log = servers.folder / f"{Path(process.args[0]).name}.log"  # type: ignore[arg-type, index]
            assert process.poll() is None, log.read_text()[-4000:]

    moves = Sampled(lambda: [work_of(pid) for pid in servers.pids])
    wait_until(answers, f"Kubernetes answers {path}", moves=moves, check=check, every=0.2)
