"""A stage's file list as stored: one Parquet file beside ``_metadata``, small files' content included.

Pages are added up before anything unpacks them: a small file may stand for gigabytes. Its footer is no help, its
author may write anything into it; Arrow believes the header of each page, which is read here
(parquet.thrift: PageHeader, in Thrift's compact form).

The list costs a few microseconds per row, so ten thousand subtasks stay cheap. The schema carries a version; a
manifest of another version, or one that is damaged, is refused with Corrupt.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import file_name, relative_path
from dagster_ckpt.core.model import FileEntry, FileKind
from dagster_ckpt.core.units import size
from dagster_ckpt.errors import Corrupt, InvalidRequest, first_line

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_ENCODINGS = frozenset({0, 2, 8})
"""Values one by one, or repeated by their number in a dictionary."""
_LONGEST = 64
"""So many fields has no header, and so deep is none."""
Fields = dict[int, Any]


def refuse_bombs(
    content: bytes,
    footer: pq.FileMetaData,
    *,
    most_rows: int,
    most_bytes: int,
    by_dictionary: Collection[str],
) -> None:
    """Raise ValueError for a file that unpacks to more rows or bytes, or in another way than these are written.

    ``by_dictionary``: columns whose repeated values stay one in memory; of others each may be as long as all of them.
    """
    if footer.num_rows > most_rows:
        raise ValueError(f"it has {footer.num_rows:,} rows, and {most_rows:,} are the most there are")
    total = values = 0
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            column = footer.row_group(group).column(number)
            start = column.data_page_offset
            if column.dictionary_page_offset is not None:
                start = min(start, column.dictionary_page_offset)
            unpacked, there, distinct = _chunk(content, start, start + column.total_compressed_size)
            total += unpacked + (0 if column.path_in_schema in by_dictionary else distinct * there)
            values = max(values, there)
            if total > most_bytes:
                raise ValueError(f"it unpacks to more than {size(most_bytes)}")
            if values > most_rows:
                raise ValueError(f"it has more than {most_rows:,} values in a column")


def _chunk(content: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return unpacked bytes and values of a column's pages, and the bytes of its dictionary."""
    if not 0 < at < end <= len(content):
        raise ValueError("a column of it lies outside")
    total = values = distinct = 0
    while at < end:
        header, at = _struct(content, at, 0)
        unpacked, packed, kind = header.get(2), header.get(3), header.get(1)
        about = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind or 0, 0))
        if not isinstance(about, dict) or not isinstance(unpacked, int) or not isinstance(packed, int):
            raise ValueError("a page of it has no header that Parquet knows")
        encoding = about.get(4 if kind == _DATA_V2 else 2)
        if encoding not in _ENCODINGS or unpacked < 0 or packed < 0:
            raise ValueError("a page of it is not written as manifests are")
        at += packed
        total += unpacked
        distinct += unpacked if kind == _DICTIONARY else 0
        values += about.get(1, 0) if kind != _DICTIONARY else 0
    return total, values, distinct


def _struct(content: bytes, at: int, depth: int) -> tuple[Fields, int]:
    """Return the fields of a Thrift struct by number, and where it ends. Raises ValueError."""
    fields: Fields = {}
    number = 0
    for _ in range(_LONGEST):
        head, at = _byte(content, at)
        if head == 0:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            number, at = _whole(content, at)
        fields[number], at = _value(content, at, head & 0xF, depth)
    raise ValueError("a header of it does not end")


def _value(content: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2:
            return kind == 1, at
        case 3:
            return _byte(content, at)
        case 4 | 5 | 6:
            return _whole(content, at)
        case 8:  # a text: of statistics, which nobody asks for here
            length, at = _unsigned(content, at)
            return None, at + length
        case 12 if depth < _LONGEST:
            return _struct(content, at, depth + 1)
    raise ValueError("a header of it has a field that no page has")


def _byte(content: bytes, at: int) -> tuple[int, int]:
    if at >= len(content):
        raise ValueError("a header of it is cut off")
    return content[at], at + 1


def _unsigned(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte, at = _byte(content, at)
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
    raise ValueError("a number in a header of it does not end")


def _whole(content: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(content, at)
    return (value >> 1) ^ -(value & 1), at


MANIFEST_VERSION = 1
MOST_FILES = 250_000
"""So many files has a stage at most: their list is read whole."""
_BYTES_OF_ONE = 400
"""Path, key and checksum of a file with the longest names there are."""
_REPEATED = ("kind", "operator", "partition", "first_checkpoint")
"""Columns that are written by a dictionary."""
WORTH_ZSTD = 500
"""Files from which a list is smaller by Zstandard: of fewer, making its contexts takes half of all the time."""
_VERSION_KEY = b"dagster_ckpt.manifest_version"


def _schema() -> pa.Schema:
    import pyarrow as pa

    fields: list[Any] = [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("operator", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("first_checkpoint", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("inline", pa.binary()),
    ]
    return pa.schema(fields, metadata={_VERSION_KEY: str(MANIFEST_VERSION).encode()})


def encode_manifest(entries: Sequence[FileEntry]) -> bytes:
    """Return the Parquet bytes of a manifest with these rows, in this order. Raises InvalidRequest for too many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if len(entries) > MOST_FILES:
        raise InvalidRequest(
            f"a stage has {len(entries):,} files, and {MOST_FILES:,} are the most that a checkpoint lists: lower its "
            "spark.sql.shuffle.partitions"
        )
    columns: dict[str, Any] = {
        "path": [e.path for e in entries],
        "size": [e.size for e in entries],
        "checksum": [e.checksum for e in entries],
        "kind": [str(e.kind) for e in entries],
        "operator": [e.operator for e in entries],
        "partition": [e.partition for e in entries],
        "first_checkpoint": [e.first_checkpoint for e in entries],
        "key": [e.key for e in entries],
        "inline": [e.inline for e in entries],
    }
    codec = "snappy" if len(entries) < WORTH_ZSTD else "zstd"
    options: dict[str, Any] = {
        # Inlined files are compressed already, as Spark writes them.
        "compression": {name: "none" if name == "inline" else codec for name in columns},
        "use_dictionary": list(_REPEATED),
        "write_statistics": False,
    }
    schema = _schema()
    arrays = [_array(columns[field.name], field.type, field.nullable) for field in schema]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink, **options)
    return sink.getvalue()


def _array(values: Sequence[Any], kind: pa.DataType, has_nulls: bool) -> pa.Array:
    """Return the values as Arrow lays them out in memory.

    Not by ``pa.array``, which imports pandas to see whether it is given something of it: a quarter of a second of every
    process that takes a checkpoint, and as much at its end.
    """
    import pyarrow as pa

    buffers: list[Any] = [_present(values) if has_nulls and None in values else None]
    if pa.types.is_integer(kind):
        width = "q" if kind.bit_width == 64 else "i"
        buffers.append(pa.py_buffer(array(width, [value or 0 for value in values])))
    else:
        parts = [value or b"" for value in values]
        if pa.types.is_string(kind):
            parts = [value.encode() if value else b"" for value in values]
        ends = array("i", accumulate(map(len, parts), initial=0))
        buffers += [pa.py_buffer(ends), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _present(values: Sequence[Any]) -> pa.Buffer:
    """Return the bits of the values that are there."""
    import pyarrow as pa

    present = bytearray((len(values) + 7) // 8)
    for at, value in enumerate(values):
        if value is not None:
            present[at >> 3] |= 1 << (at & 7)
    return pa.py_buffer(present)


def decode_manifest(content: bytes, *, name: str) -> list[FileEntry]:
    """Return the rows of a manifest; ``name`` (its key) is for the message of Corrupt."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(content), read_dictionary=["kind", "operator"])
        _refuse_other_versions(file.schema_arrow, name)
        if not file.metadata.num_rows:
            return []
        refuse_bombs(
            content,
            file.metadata,
            most_rows=MOST_FILES,
            most_bytes=_BYTES_OF_ONE * MOST_FILES + 2 * len(content),
            by_dictionary=_REPEATED,
        )
        # On this thread: a manifest is small, and starting Arrow's pool costs more than it saves.
        table = file.read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise Corrupt(
            f"manifest {name} is damaged ({first_line(error)}): restore from another checkpoint"
        ) from error
    return _rows(table, name)


def _refuse_other_versions(schema: pa.Schema, name: str) -> None:
    found = (schema.metadata or {}).get(_VERSION_KEY, b"none").decode("ascii", "replace")
    if found != str(MANIFEST_VERSION):
        raise Corrupt(
            f"manifest {name} has format version {found}; this library reads version {MANIFEST_VERSION}: "
            "use the library version that wrote it, or restore from another checkpoint"
        )
    columns = {field.name: field.type for field in schema}
    if len(columns) != len(schema) or any(
        _plain(columns.get(field.name)) != field.type for field in _schema()
    ):
        raise Corrupt(
            f"manifest {name} is damaged (columns are missing, or of other types): restore from another checkpoint"
        )


def _plain(kind: Any) -> Any:
    import pyarrow as pa

    return kind.value_type if isinstance(kind, pa.DictionaryType) else kind


def _rows(table: pa.Table, name: str) -> list[FileEntry]:
    kinds = {kind.value: kind for kind in FileKind}
    try:
        columns = [table.column(field.name).to_pylist() for field in _schema()]
        return [
            FileEntry(
                path=relative_path(path),
                size=size,
                checksum=checksum,
                kind=kinds[kind],
                operator=operator if operator is None else file_name(operator),
                partition=partition,
                first_checkpoint=first,
                key=key if key is None else relative_path(key),
                inline=inline,
            )
            for path, size, checksum, kind, operator, partition, first, key, inline in zip(
                *columns, strict=True
            )
        ]
    except ValueError as error:
        raise Corrupt(
            f"manifest {name} is damaged, or was not written by this library ({error}): restore from another checkpoint"
        ) from error
    except KeyError as error:
        raise Corrupt(f"manifest {name} has a file of unknown kind {error}: use a newer library") from error
