"""The schema of a channel's rows, and Parquet batches brought into exactly the Arrow form Spark expects of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest, printable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_NULLABILITY = ("nullable", "containsNull", "valueContainsNull")
FORMAT = "dagster_ckpt_channel"
"""Spark's name of a source that reads a channel."""
WATERMARK = "spark.watermarkDelayMs"
"""Column metadata that means something within one query only: a consumer states its own watermark."""
MEANT_FOR_READERS = "dagster_ckpt.watermark"
"""What stays of it where the stage that declared it has no use for it."""
_OF_ITS_WRITER = "_dagster_ckpt_"
"""Beginning of columns that are none of a channel's readers: its writer may have used some."""

_SPARKS_OWN = ("pyspark.ml.linalg.VectorUDT", "pyspark.ml.linalg.MatrixUDT")
"""User-defined types whose module is Spark's."""


def channel_schema_json(schema: StructType, *, marked: bool = False) -> str:
    """Return the schema of a stage's output as its consumers see it: every column nullable, no watermark.

    ``marked``: a watermark that was declared before is meant for who reads the channel.
    """
    try:
        document = _opened(_plain(schema.jsonValue()))
    except ValueError as error:
        raise InvalidRequest(
            f"its rows cannot go through a channel: {error}. Cast it to Spark's own types"
        ) from error
    for column in document["fields"]:
        given = column.get("metadata", {})
        kept = {key: value for key, value in given.items() if key not in (WATERMARK, MEANT_FOR_READERS)}
        is_declared = marked and not given.keys().isdisjoint((WATERMARK, MEANT_FOR_READERS))
        column["metadata"] = {**kept, MEANT_FOR_READERS: True} if is_declared else kept
    return json.dumps(document, separators=(",", ":"))


def parsed_schema(schema_json: str) -> StructType:
    """Return the Spark type of a ``schema.json``."""
    from pyspark.sql.types import StructType

    try:
        return StructType.fromJson(_plain(parse_json(schema_json)))
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        said = printable(" ".join(str(error).split()))[:200]
        raise Corrupt(
            f"the schema of a channel log cannot be understood ({said}): restart its stage, which writes it again"
        ) from error


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema of Spark's Arrow exchange; raises InvalidRequest for a type it cannot carry."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    carried: pa.Schema
    try:
        carried = to_arrow_schema(schema, timezone="UTC")
    except (PySparkException, ValueError) as error:  # of a map of nulls Arrow says ValueError
        column = next((one for one in schema.fields if not _is_carried(one.dataType)), None)
        what = (
            "these columns" if column is None else f"column {column.name!r}, {column.dataType.simpleString()}"
        )
        raise InvalidRequest(f"Arrow has no form for {what}: cast it, to a number or a text") from error
    return carried


def _is_carried(kind: DataType) -> bool:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    try:
        to_arrow_type(kind, timezone="UTC")
    except (PySparkException, ValueError):
        return False
    return True


def conformed(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Return ``batch`` with exactly the columns and types of ``target``, matched by name.

    A column that an older entry does not have is null in it. Raises Corrupt when values do not fit the type,
    InvalidRequest where a column may have another name in it, whose values would be lost.
    """
    import pyarrow as pa

    if batch.schema.equals(target):
        return batch
    _refuse_renamed(batch.schema, target)
    try:
        columns = [_column(batch, field, target.names) for field in target]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Corrupt(
            f"rows of a channel do not fit its schema: {error}. The stage that writes it changed a column's "
            "type: restore from a checkpoint instead of continuing in its working directory"
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _refuse_renamed(
    there: Iterable[pa.Field[Any]], wanted: Iterable[pa.Field[Any]], within: str = ""
) -> None:
    """Raise InvalidRequest where rows lack a column and have one that nobody asks for: it may be the same one.

    ``within``: the struct they are fields of. A column's name may change its case, as in Spark; of fields of structs
    Arrow takes another case for another field.
    """
    found, asked = (
        {field.name if within else field.name.lower(): field for field in fields}
        for fields in (there, wanted)
    )
    new = [f"{within}{field.name}" for name, field in asked.items() if name not in found]
    left = [name for name in found if name not in asked and not name.startswith(_OF_ITS_WRITER)]
    gone = [f"{within}{found[name].name}" for name in left]
    if new and gone:
        raise InvalidRequest(
            f"the columns of its input have changed: rows that wait in a channel have {', '.join(gone)} and no "
            f"{', '.join(new)}, and as nobody knows whether these are the same, their values would be lost. Change the "
            "names back, let one epoch read these rows, and change them then"
        )
    for name, field in asked.items():
        if name in found:
            _refuse_type(found[name].type, field.type, f"{within}{field.name}")


def _refuse_type(there: pa.DataType, wanted: pa.DataType, place: str) -> None:
    """Raise InvalidRequest where Arrow would make other values of a changed column than Spark's cast does."""
    import pyarrow as pa

    if isinstance(there, pa.StructType) and isinstance(wanted, pa.StructType):
        _refuse_renamed(there, wanted, f"{place}.")
    elif isinstance(there, pa.ListType) and isinstance(wanted, pa.ListType):
        _refuse_type(there.value_type, wanted.value_type, place)
    elif isinstance(there, pa.MapType) and isinstance(wanted, pa.MapType):
        _refuse_type(there.key_type, wanted.key_type, place)
        _refuse_type(there.item_type, wanted.item_type, place)
    elif there != wanted and _means_another_value(there, wanted):
        raise InvalidRequest(
            f"the columns of its input have changed: rows that wait in a channel have {place} as {there}, which is "
            f"{wanted} now, and their values would be read in another way than Spark casts them. Change the type "
            "back, let one epoch read these rows, and change it then"
        )


def _means_another_value(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Tell moments that become numbers or days, or were some (Spark counts seconds, Arrow what is stored), and texts of
    these and of fractions, which both write in their own way. Of other casts a value that does not fit is an error.

    A moment without a zone may be one with UTC: Spark's older form in Parquet has none.
    """
    import pyarrow as pa

    is_text = pa.types.is_string(there) or pa.types.is_string(wanted)
    if is_text and (pa.types.is_floating(there) or pa.types.is_decimal(there)):
        return True
    of_time = [(pa.types.is_timestamp(kind), pa.types.is_date(kind)) for kind in (there, wanted)]
    is_day = any(day for _, day in of_time)
    return of_time[0] != of_time[1] and not (is_text and is_day)


def _column(batch: pa.RecordBatch, field: pa.Field[Any], wanted: Collection[str]) -> Any:
    import pyarrow as pa

    index = batch.schema.get_field_index(field.name)
    if index < 0:  # Spark takes a name in any case for the same one
        others = (name for name in batch.schema.names if name not in wanted)
        called = next((name for name in others if name.lower() == field.name.lower()), None)
        if called is None:
            return pa.nulls(batch.num_rows, field.type)
        index = batch.schema.get_field_index(called)
    return batch.column(index).cast(field.type)


def _plain(type_json: Any) -> Any:
    """Return the JSON of a Spark type that is made of Spark's own ones. Raises ValueError.

    A user-defined one names a module, which reading the type would import: that of whoever wrote the file.
    """
    if isinstance(type_json, list):
        for part in type_json:
            _plain(part)
    elif isinstance(type_json, dict):
        if type_json.get("type") == "udt" and type_json.get("pyClass") not in _SPARKS_OWN:
            raise ValueError("it has a user-defined type, which names a module to import")
        for key, value in type_json.items():
            if key != "metadata":
                _plain(value)
    return type_json


def _opened(type_json: Any) -> Any:
    """Return the JSON of a Spark type with everything in it nullable, as Spark's own file sources see it."""
    if isinstance(type_json, list):
        return [_opened(part) for part in type_json]
    if not isinstance(type_json, dict):
        return type_json
    opened = {key: value if key == "metadata" else _opened(value) for key, value in type_json.items()}
    return {key: True if key in _NULLABILITY else value for key, value in opened.items()}
