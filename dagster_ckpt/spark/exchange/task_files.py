"""Files that tasks write to an object store: rows of a micro-batch, each named to the driver, and a query's state.

Not by Spark's file writers: those rename, which an object store does by copying, and need its connector in every
session. Here a task writes one object, and what a task that failed or was repeated has left is named by nobody. So
nothing is listed, renamed or counted: the names that the driver gets are the rows.

Spark knows one checkpointLocation. It is a mount table of Hadoop's (ViewFs): the folder ``state`` is in the object
store, by Spark's own connector (S3A and its like), and everything else falls back to the query's local folder.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest, first_line
from dagster_ckpt.spark.exchange.mounts import Exchange, exchange_of
from dagster_ckpt.spark.exchange.objects import RemoteFolder
from dagster_ckpt.spark.files import DataFile, bounded_by_pyarrow, replace_whole, run_in_parallel, spark_uri
from dagster_ckpt.spark.java.sessions import finds_file_of_query

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt.core.paths import StoredObject

_SAID = "name string, rows bigint, bytes bigint, value bigint"
_ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Bytes of Arrow data that are kept in memory until they are written as one row group."""

Said = dict[int | None, list[DataFile]]


def write_rows(
    frame: DataFrame, exchange: Exchange, folder: Path, root: Path, target: pa.Schema, *, by: str = ""
) -> Said:
    """Write the rows as Parquet of the schema ``target``; return the files, named relative to ``root``.

    Their order is that of Spark's partitions, as of files that Spark writes itself. ``by``: a column of whole numbers
    that is not in ``target``; the rows of each have files of their own, by it. Without one they are those of None.
    """
    task = _writes(exchange.below(folder), target, frame.columns.index(by) if by else None)
    # mapInArrow looks columns up by name: names may have dots in them, or be there twice.
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    inside = folder.relative_to(root).as_posix()
    found: Said = {}
    for name, rows, size, value in sorted(numbered.mapInArrow(task, _SAID).collect()):
        found.setdefault(value, []).append(DataFile(f"{inside}/{name}", rows, size))
    return found


def _writes(
    remote: RemoteFolder, target: pa.Schema, by: int | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches):  # type: ignore[no-untyped-def]  # Spark takes hints for those of pandas
        return write_part(batches, remote, target, by)

    return task


def write_part(
    batches: Iterator[pa.RecordBatch], remote: RemoteFolder, target: pa.Schema, by: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task as one object, or one for each value of column ``by``; yield what says of them.

    Which is the name, rows, size and value of each; nothing where there are no rows.
    """
    import pyarrow as pa

    objects: dict[int | None, _Object] = {}
    for batch in batches:
        for value, rows in _by_value(batch, by):
            if value not in objects:
                objects[value] = _Object(remote, target)
            objects[value].add(rows)
    for value, one in objects.items():
        said = {"name": one.name, "rows": one.rows, "bytes": one.close(), "value": value}
        yield pa.RecordBatch.from_pylist([said], schema=_said())


def _said() -> pa.Schema:
    import pyarrow as pa

    numbers = [pa.field(name, pa.int64()) for name in ("rows", "bytes", "value")]
    return pa.schema([pa.field("name", pa.string()), *numbers])


def _by_value(batch: pa.RecordBatch, by: int | None) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    if by is None or not batch.num_rows:
        yield from [(None, batch)] if batch.num_rows else []
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    column, others = batch.column(by), [n for n in range(batch.num_columns) if n != by]
    rows = pa.RecordBatch.from_arrays([batch.column(n) for n in others], [str(n) for n in others])
    for value in pc.unique(column).to_pylist():
        yield value, rows.filter(pc.equal(column, value))


class _Object:
    """An object that one task writes, a row group at a time."""

    def __init__(self, remote: RemoteFolder, target: pa.Schema) -> None:
        import pyarrow.parquet as pq
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        self.name, self.rows = f"part-{number:05d}-{uuid.uuid4().hex}.parquet", 0
        self._target, self._waiting, self._size = target, list[Any](), 0
        self._opened = ExitStack()
        self._stream = self._opened.enter_context(remote.write(self.name))
        bounded = bounded_by_pyarrow(target)
        self._writer = pq.ParquetWriter(self._stream, target, store_schema=False, write_statistics=bounded)

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(_as(rows, self._target))
        self._size += self._waiting[-1].nbytes
        self.rows += rows.num_rows
        if self._size >= _ROW_GROUP_BYTES:
            self._write()

    def close(self) -> int:
        """Make the object whole, and return its size."""
        if self._waiting:
            self._write()
        self._writer.close()
        size: int = self._stream.tell()
        self._opened.close()
        return size

    def _write(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_batches(self._waiting, self._target))
        self._waiting, self._size = [], 0


def _as(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


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
