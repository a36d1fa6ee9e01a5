"""Iceberg tables in a REST catalog that is not ours: the server of Iceberg's own project, with a catalog in SQLite."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import pyspark
import pytest

from dagster_ckpt.ext.iceberg.lake import Outside
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import Staging
from dagster_ckpt.testing.sinks.run import Step
from tests.adapters.servers import BRIEF, ServerMissing, cached_jars, free_port
from tests.adapters.started import started
from tests.ext.iceberg.test_iceberg_rest import TestIcebergSinkOfARestCatalog as OfARestCatalog
from tests.ext.iceberg.test_iceberg_together import OfARestCatalog as Together
from tests.progress import wait_until
from tests.root import ROOT

pytestmark = pytest.mark.platform


@contextmanager
def icebergs_server(folder: Path) -> Iterator[dict[str, str]]:
    """Start the server; yields a catalog's settings."""
    java = subprocess.run([ROOT / "scripts" / "java-home"], capture_output=True, text=True, check=False)
    jars = cached_jars("iceberg-rest")
    if not any(jar.name.startswith("iceberg-open-api") for jar in jars) or java.returncode:
        raise ServerMissing(
            "Iceberg's server is not installed: scripts/bootstrap iceberg_rest, which needs Maven"
        )
    of_spark = Path(pyspark.__file__).parent / "jars"
    hadoop = [
        *of_spark.glob("hadoop-client-*.jar"),
        *of_spark.glob("*log4j*.jar"),
        *of_spark.glob("commons-logging*"),
    ]
    uri, warehouse = f"http://127.0.0.1:{free_port()}", f"file://{folder}/lake"
    told = {
        "CATALOG_REST_PORT": uri.rpartition(":")[2],
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_WAREHOUSE": warehouse,
    }
    path = ":".join(map(str, [*jars, *hadoop]))
    command = [
        f"{java.stdout.strip()}/bin/java",
        *BRIEF,
        "-cp",
        path,
        "org.apache.iceberg.rest.RESTCatalogServer",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **told}, stdout=log, stderr=log)

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return bool(urllib.request.urlopen(f"{uri}/v1/config", timeout=10).read())
        except URLError:
            return False

    try:
        wait_until(answers, "the server answers")
        yield {"type": "rest", "uri": uri, "warehouse": warehouse}
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with started(icebergs_server(tmp_path_factory.mktemp("iceberg"))) as settings:
        yield settings


class TestSinkOfIcebergsServer(OfARestCatalog):
    @pytest.fixture(autouse=True)
    def catalog(self, settings: dict[str, str]) -> None:
        self.settings = settings

    def staging(self, sink: Sink, context: SinkContext) -> Staging:
        return Together.staging(self, sink, context)

    test_a_catalog_that_keeps_no_tags_is_told_with_the_first_rows = None  # type: ignore[assignment]


class TestTogetherOfIcebergsServer(Together):
    @pytest.fixture(autouse=True)
    def catalog(self, settings: dict[str, str]) -> None:
        self.settings = settings

    def steps(self) -> Sequence[Step]:
        return [(Outside, "commit"), (Outside, "commit_together")]


del OfARestCatalog
