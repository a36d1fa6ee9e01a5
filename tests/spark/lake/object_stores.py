"""An object store that lasts, as each client of a deployment is told of it: S3, Azure, Google."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tests.adapters.clouds import ACCOUNT, KEY, AzureServer, GoogleServer
from tests.adapters.servers import S3Server, spark_azure_jars, spark_google_jars, spark_s3_jars


class ObjectStore(Protocol):
    """One bucket, and how it is reached."""

    @property
    def root(self) -> str:
        """Its URI."""
        ...

    @property
    def options(self) -> dict[str, str]:
        """Of fsspec: ``storage_options``."""
        ...

    @property
    def delta(self) -> dict[str, str] | None:
        """Of delta-rs; None: it cannot write there."""
        ...

    @property
    def iceberg(self) -> dict[str, str]:
        """Of PyIceberg's catalog."""
        ...

    @property
    def connector(self) -> dict[str, str]:
        """Of Spark's own connector, which writes state."""
        ...


@dataclass(frozen=True)
class InS3:
    """A bucket of S3."""

    bucket: str
    endpoint: str

    @property
    def root(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def options(self) -> dict[str, str]:
        return {"endpoint_url": self.endpoint, "key": "test", "secret": "test"}

    @property
    def delta(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def iceberg(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": "test",
            "s3.secret-access-key": "test",
            "s3.region": "us-east-1",
        }

    @property
    def connector(self) -> dict[str, str]:
        return {
            "spark.jars": ",".join(map(str, spark_s3_jars())),
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.access.key": "test",
            "spark.hadoop.fs.s3a.secret.key": "test",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        }


@dataclass(frozen=True)
class InAzure:
    """A container of an account."""

    bucket: str
    endpoint: str
    """``host:port`` of Azurite."""

    @property
    def _server(self) -> AzureServer:
        return AzureServer(self.endpoint)

    @property
    def root(self) -> str:
        return f"abfs://{self.bucket}"

    @property
    def options(self) -> dict[str, str]:
        return self._server.options

    @property
    def delta(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": f"http://{self.endpoint}/{ACCOUNT}",
            "azure_allow_http": "true",
        }

    @property
    def iceberg(self) -> dict[str, str]:
        return {"adls.connection-string": self._server.connection_string}

    @property
    def connector(self) -> dict[str, str]:
        settings = {f"spark.hadoop.{name}": value for name, value in self._server.spark_settings.items()}
        return {"spark.jars": ",".join(map(str, spark_azure_jars())), **settings}


@dataclass(frozen=True)
class InGoogle:
    """A bucket of Google's."""

    bucket: str
    endpoint: str
    """``host:port`` of the emulator."""

    @property
    def _server(self) -> GoogleServer:
        return GoogleServer(self.endpoint)

    @property
    def root(self) -> str:
        return f"gs://{self.bucket}"

    @property
    def options(self) -> dict[str, str]:
        return self._server.options

    @property
    def delta(self) -> None:
        """No emulator knows the XML API, which delta-rs speaks: one refuses its listings, the other its puts."""

    @property
    def iceberg(self) -> dict[str, str]:
        return {
            "gcs.service.host": f"http://{self.endpoint}",
            "gcs.oauth2.token": "anon",
            "gcs.oauth2.token-expires-at": "4102444800000",  # pyarrow takes none without
            "gcs.project-id": "test",
        }

    @property
    def connector(self) -> dict[str, str]:
        settings = {f"spark.hadoop.{name}": value for name, value in self._server.spark_settings.items()}
        return {"spark.jars": ",".join(map(str, spark_google_jars())), **settings}


STORES: dict[str, type[InS3] | type[InAzure] | type[InGoogle]] = {
    "s3": InS3,
    "azure": InAzure,
    "google": InGoogle,
}


def new_store(server: S3Server | AzureServer | GoogleServer) -> tuple[str, str, str]:
    """Make an empty bucket; return kind, name and endpoint of it."""
    match server:
        case AzureServer():
            return "azure", server.new_container(), server.address
        case GoogleServer():
            return "google", server.new_bucket(), server.address
        case S3Server():
            return "s3", server.new_bucket(), server.endpoint
