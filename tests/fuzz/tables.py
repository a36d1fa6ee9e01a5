"""Tables of a drawn pipeline from outside: read whole, and written and tidied up by others; files of its sources."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable as Delta
from deltalake import write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from tests.attack.outsides import Kind, catalog_in, records_of
from tests.fuzz.drawn import CONDITIONS, Drawn, Output
from tests.fuzz.model import columns_of
from tests.fuzz.values import Row, from_sqlite, plain_row, schema

FOREIGN = -(10**15)
"""Rows of others have this ``n``: no pipeline's are that low."""


def rows_in(drawn: Drawn, output: Output, folder: Path) -> Counter[Row]:
    """Return every row that readers of a table find, in plain values."""
    columns = columns_of(drawn, output)
    rows = [
        tuple(record[name] for name in columns)
        for record in _records(output, folder / "tables" / output.place)
    ]
    if output.kind is Kind.SQL:
        types = ("bigint", drawn.key_type, "bigint", "timestamp", drawn.value_type)
        rows = [tuple(map(from_sqlite, row, types)) for row in rows]
    return Counter(map(plain_row, rows))


def kept_in(table: Path) -> Counter[tuple[int, str, str]]:
    """Return the rows of a quarantine: ``n``, state and the condition that led there, empty where that is an error."""
    if not (table / "_delta_log").is_dir():
        return Counter()
    files = pafs.SubTreeFileSystem(str(table), pafs.LocalFileSystem())
    rows = (
        Delta(str(table))
        .to_pyarrow_table(columns=["row", "state", "condition"], filesystem=files)
        .to_pylist()
    )
    return Counter(
        (
            json.loads(row["row"])["n"],
            row["state"],
            row["condition"] if row["condition"] in CONDITIONS else "",
        )
        for row in rows
    )


def _records(output: Output, place: Path) -> list[dict[str, Any]]:
    if output.kind is Kind.FUNCTION:
        return [
            row for path in sorted(place.glob("*.parquet")) for row in pq.read_table(str(path)).to_pylist()
        ]
    if not place.is_dir():
        return []
    try:
        return records_of(output.kind, place)
    except (TableNotFoundError, NoSuchTableError):
        return []
    except sqlite3.OperationalError as error:
        if "no such table" in str(error) or "unable to open" in str(error):
            return []
        raise


def put_file(folder: Path, number: int, rows: Sequence[Row], key_type: str, value_type: str) -> None:
    """Put a file into a source's folder, whole, newer than those of lower numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    of = schema(key_type, value_type)
    columns = [
        pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), of.types, strict=True)
    ]
    temporary = folder.parent / f".{number}"
    pq.write_table(pa.Table.from_arrays(columns, schema=of), str(temporary))
    os.utime(temporary, (1_700_000_000 + number,) * 2)
    temporary.rename(folder / f"{number:05d}.parquet")


def compact(output: Output, folder: Path) -> None:
    """Tidy a table up, as its owner may."""
    place = folder / "tables" / output.place
    if output.kind is Kind.OWN and (place / "_delta_log").is_dir():
        Delta(str(place)).optimize.compact()


def add_foreign_row(output: Output, folder: Path) -> None:
    """Add a row of somebody else's to a table that has no key."""
    place = folder / "tables" / output.place
    row = {"n": FOREIGN, "v": 1}
    match output.kind:
        case Kind.OWN if (place / "_delta_log").is_dir():
            of = pa.schema(Delta(str(place)).schema())
            write_deltalake(str(place), _one_row(of, row), mode="append")
        case Kind.ICEBERG if (place / "catalog.db").exists():
            catalog = load_catalog("default", **catalog_in(place))
            try:
                table = catalog.load_table(f"default.{output.place}")
                table.append(_one_row(table.schema().as_arrow(), row))
            except NoSuchTableError:
                return
            finally:
                catalog.engine.dispose()  # type: ignore[attr-defined]
        case Kind.SQL if (place / "rows.db").exists():
            with closing(sqlite3.connect(place / "rows.db")) as connection, connection:
                known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (output.place,))
                if known.fetchone():
                    connection.execute(f'INSERT INTO "{output.place}" (n, v) VALUES (?, ?)', (FOREIGN, 1))
        case _:
            return


def _one_row(of: pa.Schema, row: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{name: row.get(name) for name in of.names}], schema=of)
