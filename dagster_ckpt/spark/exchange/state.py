"""State of a query whose tasks share no disk with the driver: below ``state/`` of its checkpointLocation, in the
object store; offsets, commits and source logs stay on the driver's disk, where nobody waits for requests.

Spark knows one checkpointLocation. It is a mount table of Hadoop's (ViewFs): the folder ``state`` is in the object
store, by Spark's own connector (S3A and its like), and everything else falls back to the query's local folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidRequest, first_line
from dagster_ckpt.spark.exchange.mounts import Exchange, exchange_of
from dagster_ckpt.spark.files import replace_whole, run_in_parallel, spark_uri
from dagster_ckpt.spark.java.sessions import finds_file_of_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.core.paths import StoredObject
    from dagster_ckpt.spark.exchange.objects import RemoteFolder

MARK = "state_in_exchange"
"""In a stage's directory: its query's state is in the object store."""
_STATE = "state"
_UPLOADS = 16
_CONNECTORS = {
    "s3a": ("spark.jars.packages org.apache.hadoop:hadoop-aws of Spark's Hadoop version", "fs.s3a"),
    "abfs": ("spark.jars.packages org.apache.hadoop:hadoop-azure of Spark's Hadoop version", "fs.azure"),
    "gs": ("spark.jars with the shaded jar of com.google.cloud.bigdataoss:gcs-connector", "fs.gs"),
}
"""Spark's own connectors by scheme: where they come from, and how their settings begin."""


def is_there(stage_dir: Path) -> bool:
    """Tell whether the state of a stage's query is in the object store."""
    return (stage_dir / MARK).exists()


def exchange_with_state(stage_dir: Path) -> Exchange | None:
    """Return the exchange that holds the state of a stage's query; None: it has none, or its state is on the disk."""
    return exchange_of(stage_dir) if is_there(stage_dir) else None


def location(query: Path, exchange: Exchange) -> tuple[str, dict[str, str]]:
    """Return a checkpointLocation with state in the object store, and the settings it stands on."""
    state = exchange.below(query / _STATE).uri
    name = f"ckpt-{hashlib.sha256(state.encode()).hexdigest()[:24]}"
    table = f"fs.viewfs.mounttable.{name}"
    return f"viewfs://{name}/", {
        f"{table}.link./{_STATE}": _for_hadoop(exchange.below(query / _STATE)),
        f"{table}.linkFallback": spark_uri(query),
        # A checksum beside each file is another file to write, and the store has its own.
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    }


def prove_connector(spark: SparkSession, uid: str, query: Path, exchange: Exchange) -> None:
    """Raise InvalidRequest where Spark's own connector does not find what Python has written to the object store."""
    folder = exchange.below(query)
    with folder.write("probe") as stream:
        stream.write(b"probe")
    place = f"{_for_hadoop(folder)}/probe"
    try:
        found = finds_file_of_query(spark, place)
        why = "" if found else f"it does not find {place}, which was written a moment ago"
    except Exception as error:
        cause = getattr(error, "java_exception", None)
        why = first_line(error if cause is None else cause)
    if why:
        scheme = place.partition("://")[0].replace("abfss", "abfs")
        package, settings = _CONNECTORS.get(scheme, (f"spark.jars.packages for {scheme}://", "fs"))
        raise InvalidRequest(
            f"stage {uid!r} keeps state, which executors write through Spark's own connector to {exchange.remote.uri}, "
            f"and it does not get there: {why}. Give Spark the connector ({package}) and its "
            f"settings (spark.hadoop.{settings}.…), or give work_dir a folder that all machines mount"
        )


def move_there(query: Path, exchange: Exchange) -> None:
    """Let the state that a restore has built be in the object store, and note that it is."""
    local = query / _STATE
    files = [path for path in local.rglob("*") if path.is_file() and not path.name.endswith(".crc")]
    folder = exchange.below(local)
    run_in_parallel(
        lambda path: folder.upload(path, path.relative_to(local).as_posix()), files, parallelism=_UPLOADS
    )
    stage_dir = query.parent
    stage_dir.mkdir(parents=True, exist_ok=True)
    replace_whole(stage_dir / MARK, b"")
    if local.exists():
        local.rename(stage_dir / "state-before")


def listed(query: Path, exchange: Exchange) -> Mapping[str, StoredObject]:
    """Return the files of the state by their path below ``state/``."""
    key = exchange.key_of(query / _STATE)
    found = ((one.key.removeprefix(f"{key}/"), one) for one in exchange.storage.list(key))
    return {path: one for path, one in found if path and not path.endswith("/")}


def _for_hadoop(folder: RemoteFolder) -> str:
    """Return the folder as Spark's connector spells it: S3A has a scheme of its own, ABFS wants the account named."""
    scheme, _, rest = folder.uri.partition("://")
    container, slash, path = rest.partition("/")
    if scheme in ("abfs", "abfss") and "@" not in container:
        settings = dict(folder.settings)
        where = settings.get("dfs_storage_authority", ".dfs.core.windows.net")
        suffix = where if where.startswith(".") else ".dfs.core.windows.net"
        return f"{scheme}://{container}@{settings['account_name']}{suffix}{slash}{path}"
    return f"{'s3a' if scheme == 's3' else scheme}://{rest}"
