"""Sources that cannot be reached where a plan is made, stood in for by streams without rows of the same columns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest, first_line
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.wrapped import FILES, options_asked, readers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_TOPICS = ("subscribe", "subscribePattern", "assign")


class NotAtHand(InvalidRequest):
    """Something that a stage's function needs is not there where a plan is made."""


@dataclass(kw_only=True)
class StandIns:
    """Stand-ins of one pipeline's sources; in ``active`` Spark's readers of streams fall back on them."""

    scratch: Path
    known: dict[str, str] = field(default_factory=dict)
    """Schemas (JSON) of sources by their names in plans, as the snapshot holds them."""
    names: dict[str, str] = field(default_factory=dict)
    """Names that plans have of stand-ins, and those of what they stand in for."""

    def active(self) -> AbstractContextManager[None]:
        """Have every reader of streams in this process fall back on stand-ins."""
        return readers(self._falling_back)

    def _falling_back(self, name: str, load: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
        def loaded(reader: Any, path: Any = None, *rest: Any, **options: Any) -> DataFrame:
            asked = options_asked(reader)
            if name != "load":
                asked["format"] = name
            asked |= {key: value for key, value in options.items() if value is not None}
            if path is not None:
                asked["path"] = path
            try:
                return load(reader, *(() if path is None else (path,)), *rest, **options)
            except Exception as error:  # a folder, a broker or a connector that is not here
                return self._stand_in(reader, asked, error)

        return loaded

    def _stand_in(self, reader: Any, asked: Mapping[str, Any], error: Exception) -> DataFrame:
        name = _name_of(asked)
        given = asked.get("schema")
        schema = given if given is not None else self.known.get(name)
        if schema is None:
            said = first_line(error)
            raise NotAtHand(
                f"source {name} cannot be reached here ({said}), and the snapshot holds no schema of it: give its "
                "reader a schema, or plan where it can be reached"
            ) from error
        empty = tempfile.mkdtemp(prefix="source-", dir=self.scratch)
        self.names[f"FileSource[{empty}]"] = name
        columns = schema if given is not None else parsed_schema(schema)
        made: DataFrame = reader._spark.readStream.schema(columns).parquet(empty)
        return made


def _name_of(asked: Mapping[str, Any]) -> str:
    """Return the name that plans have of a source."""
    kind = str(asked.get("format", ""))
    if kind in FILES or (not kind and "path" in asked):
        return f"FileSource[{asked.get('path', '')}]"
    topics = next((asked[option] for option in _TOPICS if option in asked), "")
    return f"{kind}[{topics}]" if kind == "kafka" else kind
