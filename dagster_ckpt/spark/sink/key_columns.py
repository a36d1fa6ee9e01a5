"""Columns that can be a key: their values are compared when the last row of each key is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def refuse_nested_key(where: str, schema: str, key: Sequence[str]) -> None:
    """Raise InvalidRequest for a key whose values nothing can compare: its rows could not be published any more.

    ``schema``: Spark's, as JSON.
    """
    for field in parse_json(schema)["fields"]:
        kind = field["type"]
        if field["name"] in key and (isinstance(kind, dict) or kind == "variant"):
            text = kind["type"] if isinstance(kind, dict) else kind
            raise InvalidRequest(
                f"{where}: the key column {field['name']!r} is of type {text}, whose values cannot be compared: use "
                "plain columns (numbers, text, dates), such as its parts or to_json of it. Rows staged with it are "
                "left behind by restore_from an earlier snapshot, or 'none'"
            )


def refuse_collated_key(place: str, key: Sequence[str], frame: DataFrame) -> None:
    """Raise InvalidRequest for a key that Spark compares otherwise than by its bytes, as every table does."""
    from pyspark.sql.types import StringType

    for column in frame.schema.fields:
        kind = column.dataType
        if column.name in key and isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise InvalidRequest(
                f"the key column {column.name!r} of {place} has the collation {kind.collation}, and a table tells keys "
                "apart by their bytes: rows that are one to Spark would be several. Use lower(...) or the like as key, "
                "and collate(..., 'UTF8_BINARY')"
            )
