"""Pages of a Parquet file, added up before anything unpacks them: a small file may stand for gigabytes.

The footer is no help, its author may write anything into it; Arrow believes the header of each page, which is read here
(parquet.thrift: PageHeader, in Thrift's compact form).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.units import size

if TYPE_CHECKING:
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
