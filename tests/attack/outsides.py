"""Where the rows of a played pipeline end: the sinks that histories draw, their rows as readers find them, staging."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable as DeltaReader
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from dagster_ckpt.authoring.targets import ForEachCheckpoint, SinkTarget
from dagster_ckpt.core.ids import CoordinatorEpoch
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.ext.iceberg.sink import IcebergSink
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.ext.sql.target import SqlTable
from dagster_ckpt.spark.sink.port import Sink
from dagster_ckpt.spark.sink.staged_sink import StagedSink
from dagster_ckpt.testing import Staging
from tests.attack.topic import PlayedTopic, read_topic

TABLES = ("rows", "newest")
Row = tuple[int, int]


class Kind(StrEnum):
    """Sinks of one history; a function's rows cannot have a key, so its other table is one of the pipeline's own."""

    OWN = "own"
    SQL = "sql"
    ICEBERG = "iceberg"
    FUNCTION = "function"
    KAFKA = "kafka"


@dataclass(frozen=True)
class WritesFiles:
    """A user's function: a file for each idempotency key."""

    folder: Path

    def __call__(self, rows: pa.RecordBatchReader, token: Any) -> None:
        """Write the rows, whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{token.idempotency_key.replace('/', '~')}.parquet"
        pq.write_table(rows.read_all(), path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)


def target_of(kind: Kind, table: str, folder: Path, partition_by: tuple[str, ...] = ()) -> SinkTarget:
    """Return where a table's rows go; ``folder`` is the deployment's."""
    place = folder / "tables" / table
    match kind:
        case Kind.SQL:
            place.mkdir(parents=True, exist_ok=True)
            return SqlTable(f"sqlite:///{place}/rows.db", table, keep_before_images=True)
        case Kind.ICEBERG:
            return IcebergTable(table, catalog=catalog_in(place), partition_by=partition_by)
        case Kind.FUNCTION if table == "rows":
            return ForEachCheckpoint(WritesFiles(place))
        case Kind.KAFKA:
            return PlayedTopic(str(folder / "tables"), table)
        case _:
            return DeltaTable(str(place), partition_by=partition_by)


def catalog_in(place: Path) -> dict[str, str]:
    """Return the settings of a catalog that lies in the folder of its one table, and is attacked with it."""
    place.mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}"}


def rows_of(kind: Kind, place: Path) -> list[Row]:
    """Every row that any reader of the table finds; one row of text where it cannot be read."""
    try:
        return sorted(_read(kind, place))
    except TableNotFoundError:
        return []
    except Exception as error:
        return [(type(error).__name__, str(error))]  # type: ignore[list-item]


def _read(kind: Kind, place: Path) -> list[Row]:
    match kind:
        case Kind.SQL:
            return _of_database(place / "rows.db", place.name)
        case Kind.FUNCTION if place.name == "rows":
            return _of_files(place)
        case Kind.ICEBERG:
            return _of_catalog(place)
        case Kind.KAFKA:
            return read_topic(place, newest=place.name == "newest")
        case _:
            found = DeltaReader(str(place)).to_pyarrow_table(columns=["k", "v"])
            return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))


def records_of(kind: Kind, place: Path) -> list[dict[str, Any]]:
    """Return every column of every row, as any reader of a table finds it."""
    match kind:
        case Kind.SQL:
            with closing(sqlite3.connect(f"file:{place / 'rows.db'}?mode=ro", uri=True)) as connection:
                connection.row_factory = sqlite3.Row
                return [dict(row) for row in connection.execute(f'SELECT * FROM "{place.name}"')]
        case Kind.ICEBERG:
            catalog = load_catalog("default", **catalog_in(place))
            found = catalog.load_table(f"default.{place.name}").scan().to_arrow()
            catalog.engine.dispose()  # type: ignore[attr-defined]
            return list(found.to_pylist())
        case Kind.OWN:
            files = pafs.SubTreeFileSystem(str(place), pafs.LocalFileSystem())
            return list(DeltaReader(str(place)).to_pyarrow_table(filesystem=files).to_pylist())
        case _:
            return []  # a topic and a function have no columns that could change


def _of_database(file: Path, table: str) -> list[Row]:
    if not file.exists():
        return []
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        return list(connection.execute(f'SELECT k, v FROM "{table}"'))
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return []
        raise
    finally:
        connection.close()


def _of_catalog(place: Path) -> list[Row]:
    if not (place / "catalog.db").exists():
        return []
    catalog = load_catalog("default", **catalog_in(place))
    try:
        found = catalog.load_table(f"default.{place.name}").scan().to_arrow()
    except NoSuchTableError:
        return []
    finally:
        catalog.engine.dispose()  # type: ignore[attr-defined]
    return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))


def _files_of_catalog(place: Path) -> list[str]:
    """Return the files that any snapshot of the table shows."""
    if not (place / "catalog.db").exists():
        return []
    catalog = load_catalog("default", **catalog_in(place))
    try:
        found: list[str] = (
            catalog.load_table(f"default.{place.name}").inspect.all_files()["file_path"].to_pylist()
        )
    except NoSuchTableError:
        return []
    finally:
        catalog.engine.dispose()  # type: ignore[attr-defined]
    return found


def _of_files(folder: Path) -> list[Row]:
    found = [
        pq.read_table(path, partitioning=None, columns=["k", "v"])
        for path in sorted(folder.glob("*.parquet"))
    ]
    if not found:
        return []
    all_rows = pa.concat_tables(found)
    return sorted(zip(all_rows["k"].to_pylist(), all_rows["v"].to_pylist(), strict=True))


def aside_rows(root: Path, uid: str) -> list[Row]:
    """Return the rows of a sink that were set aside."""
    found = [pq.read_table(path, partitioning=None) for path in root.rglob(f".set_aside/*/{uid}/*.parquet")]
    return [row for one in found for row in zip(one["k"].to_pylist(), one["v"].to_pylist(), strict=True)]


# --- staged -----------------------------------------------------------------------------------------------------------


def staging_of(sink: Sink, epoch: int) -> Staging:
    """Return where the sink's own ``prepare`` stages."""
    match sink:
        case DeltaSink() | IcebergSink():
            return Staging(sink.staged.root, sink.staged.folder(CoordinatorEpoch(epoch)))
        case StagedSink():
            return Staging(sink.context.work_dir, sink.context.work_dir / "staged" / str(epoch))
        case _:
            raise AssertionError(sink)


def waiting(root: Path, table: str) -> list[str]:
    """Return the staged files that committables name and that no reader sees, relative to the deployment.

    Of a Delta table a published file lies where it was staged; of the others it is moved, or read once and let go.
    """
    named: set[str] = set()
    for path in root.glob(f"work/*/attempt-*/{table}/sink/prepared/*.json"):
        try:
            named |= {file["staged"] for file in json.loads(path.read_text())["files"]}
        except (ValueError, KeyError):
            continue
    log = "".join(path.read_text() for path in root.glob(f"tables/{table}/_delta_log/*.json"))
    log += "".join(_files_of_catalog(root / "tables" / table))
    places = (f"tables/{table}", f"tables/{table}/default/{table}", f"work/shop/staged/{table}")
    return sorted(
        f"{place}/{name}"
        for name in named
        for place in places
        if (root / place / name).is_file() and name not in log
    )
