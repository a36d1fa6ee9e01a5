"""Contract of values: each is shown as it is once it is published, or refused by its column while it is prepared."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.sink.committables import read_committables
from dagster_ckpt.spark.sink.phases import Judge, preparing
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing.sinks.base import ContractBase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_UTF8 = "CAST(X'6DE9' AS STRING)"
_LAST = "9999-12-31 23:59:59.999999"
_TIMES = {
    "first": "0001-01-01 00:00:00",
    "before_first": "0000-12-31 23:59:59.999999",
    "old": "1582-10-10 12:00:00.000001",
    "early": "1969-12-31 23:59:59.999999",
    "late": "9999-12-31 23:59:59.998999",
    "last": _LAST,
    "after_last": "+10000-01-01 00:00:00",
}

VALUES: dict[str, str] = {
    "text_empty": "''",
    "text": r"'é€😀 \' \" \\ ` \t\n , %s {0} :a $1'",
    "text_blanks": "'  a  '",
    "text_null_word": r"'\\N'",
    "text_hive": "'__HIVE_DEFAULT_PARTITION__'",
    "text_greatest": "'\uffff\U0010ffff'",
    "text_long": "repeat('é', 50000)",
    "text_cut": "concat(repeat('a', 64), 'b')",
    "text_nul": "concat('a', chr(0), 'b')",
    "collated_nul": "concat('a', chr(0), 'b') COLLATE UNICODE",
    "text_no_utf8": _NO_UTF8,
    "text_surrogate": "CAST(X'EDA080' AS STRING)",
    "byte": "-128Y",
    "short": "32767S",
    "int": "-2147483648",
    "long": "9223372036854775807L",
    "long_least": "-9223372036854775807L - 1L",
    "boolean": "false",
    "binary": "X'00FF27'",
    "binary_empty": "X''",
    "decimal": "CAST('-99999999999999999999999999999999999999' AS DECIMAL(38, 0))",
    "decimal_small": "CAST('0.00000000000000000000000000000000000001' AS DECIMAL(38, 38))",
    "decimal_scale": "CAST('-1.10' AS DECIMAL(10, 2))",
    **{
        f"{of}_{name}": f"CAST('{value}' AS {of})"
        for of in ("float", "double")
        for name, value in (("nan", "NaN"), ("infinite", "-Infinity"), ("zero", "-0.0"), ("tenth", "0.1"))
    },
    "float_greatest": "CAST('3.4028235e38' AS FLOAT)",
    "double_least": "CAST('4.9e-324' AS DOUBLE)",
    **{f"date_{name}": f"DATE '{at.partition(' ')[0]}'" for name, at in _TIMES.items()},
    **{f"time_{name}": f"TIMESTAMP '{at}Z'" for name, at in _TIMES.items()},
    **{f"time_ntz_{name}": f"TIMESTAMP_NTZ '{at}'" for name, at in _TIMES.items()},
    "time_elsewhere": f"TIMESTAMP '{_LAST} America/Los_Angeles'",
    "none": "CAST(NULL AS STRING)",
    "none_of_dates": "CAST(NULL AS DATE)",
    "struct": "named_struct('a', 1, 'b', CAST(NULL AS STRING))",
    "struct_case": "named_struct('a', 1, 'A', 2)",
    "struct_no_utf8": f"named_struct('a', 1, 'b', {_NO_UTF8})",
    "struct_name": "named_struct('a b', 1)",
    "array": "array('a', NULL, '')",
    "array_empty": "CAST(array() AS ARRAY<INT>)",
    "array_none": "CAST(NULL AS ARRAY<STRUCT<a: INT>>)",
    "array_no_utf8": f"array('a', {_NO_UTF8})",
    "array_late": "array(named_struct('d', DATE '+10000-01-01'))",
    "map": "map('a', 1, 'b', NULL)",
    "map_empty": "CAST(map() AS MAP<STRING, INT>)",
    "map_none": "CAST(NULL AS MAP<STRING, STRUCT<a: INT>>)",
    "map_no_utf8": f"map({_NO_UTF8}, 1)",
    "variant": "parse_json('1')",
    "interval": "INTERVAL '1' DAY",
    "void": "NULL",
}
"""SQL of values that targets stumble over, by the name of their column."""

NO_UTF8 = frozenset({*(name for name in VALUES if name.endswith("no_utf8")), "text_surrogate"})
BEYOND_YEARS = frozenset(
    {
        *(name for name in VALUES if name.endswith(("_before_first", "_after_last"))),
        "time_elsewhere",
        "array_late",
    }
)
OF_PARTITIONS = tuple(
    name
    for name in VALUES
    if name.startswith(("text", "date", "none")) or name in ("byte", "short", "int", "long_least", "boolean")
)
"""Values that a column of partitions may have, by their types."""
NO_FOLDERS = frozenset({"text_long", "text_nul"})
RARE_TYPES = frozenset({"variant", "interval", "void"})

NAMES = (
    "Ä", "select", "a b", "a.b", "a`b", 'a"b', "a'b", "a%b", "a%%b", "a:b", "a/b", "a\\b", "a,b", "a;b", "a{0}b",
    "a(b)", "a=b", "a\tb", "a\nb", "$1", "1", "newest", "t", "rowid", "ctid", "xmin", "_change_type", "x" * 63,
    "é" * 60,
)  # fmt: skip
"""Names of columns that targets stumble over."""


class ValueContract(ContractBase):
    """Values in rows never fail a publish. Needs a fixture ``spark``, a session; beside it ``open`` is enough
    for sinks that can be loaded.
    """

    refuses: ClassVar[frozenset[str]] = frozenset()
    """Names in ``VALUES``, and names of columns, that are refused while the rows are prepared."""
    refuses_in_partitions: ClassVar[frozenset[str]] = frozenset()
    """Names in ``OF_PARTITIONS``, likewise."""
    refuses_in_partitions_by_key: ClassVar[frozenset[str] | None] = None
    """Those of rows by key; None: the same."""

    def open_partitioned(self, context: SinkContext, partition_by: Sequence[str]) -> Sink | None:
        """Open a sink whose table is partitioned by these columns. Default: it has no partitions."""
        return None

    def shown_values(self, sink: Sink) -> dict[str, Any]:
        """Return the only row that readers find. Default: as the sink loads it."""
        row: dict[str, Any] = sink.rows().to_arrow().to_pylist()[0]
        return row

    def spelled(self, value: Any) -> Any:
        """Return a value as this sink's readers find it. Default: as it is."""
        return value

    @pytest.mark.parametrize("key", [(), ("k",)])
    def test_a_value_is_shown_as_it_is_or_refused_by_its_column(
        self, tmp_path: Path, spark: SparkSession, key: tuple[str, ...]
    ) -> None:
        self.skip_unless(self.can_upsert or not key, "has no keys")
        self._shown_or_refused(tmp_path, spark, VALUES, key, refuses=self.refuses)

    @pytest.mark.parametrize("key", [(), ("k",)])
    def test_a_value_of_a_partition_is_shown_as_it_is_or_refused_by_its_column(
        self, tmp_path: Path, spark: SparkSession, key: tuple[str, ...]
    ) -> None:
        context = self.begun(tmp_path, key=key).context

        def opened(columns: Sequence[str]) -> Sink:
            sink = self.open_partitioned(context, [name for name in columns if name != "k"])
            self.skip_unless(sink is not None, "has no partitions")
            assert sink is not None
            return sink

        values = {name: VALUES[name] for name in OF_PARTITIONS}
        by_key = self.refuses_in_partitions_by_key
        refuses = by_key if key and by_key is not None else self.refuses_in_partitions
        self._shown_or_refused(tmp_path, spark, values, key, refuses=refuses, opened=opened)

    @pytest.mark.parametrize("key", [(), ("k",)])
    def test_a_column_of_any_name_is_shown_or_refused_by_it(
        self, tmp_path: Path, spark: SparkSession, key: tuple[str, ...]
    ) -> None:
        self.skip_unless(self.can_upsert or not key, "has no keys")
        self._shown_or_refused(
            tmp_path, spark, {name: str(n) for n, name in enumerate(NAMES)}, key, refuses=self.refuses
        )

    def test_a_key_of_any_name_is_shown_or_refused_by_it(self, tmp_path: Path, spark: SparkSession) -> None:
        self.skip_unless(self.can_upsert, "has no keys")
        names = {name: str(n) for n, name in enumerate(NAMES) if name not in self.refuses}
        self._shown_or_refused(tmp_path, spark, names, tuple(names)[:16], refuses=self.refuses)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _shown_or_refused(
        self,
        folder: Path,
        spark: SparkSession,
        values: Mapping[str, str],
        key: tuple[str, ...],
        *,
        refuses: frozenset[str],
        opened: Callable[[Sequence[str]], Sink] | None = None,
    ) -> None:
        run = self.begun(folder, key=key)
        columns, refused = {"k": "1L", **values}, set()
        while why := self._why_not(opened(list(columns)) if opened else run.sink, folder, spark, columns):
            named = [name for name in columns if re.search(f"'{re.escape(repr(name)[1:-1])}['.]", why)]
            assert named, f"no column is named: {why}"
            refused.add(max(named, key=len))
            del columns[max(named, key=len)]
        sink = opened(list(columns)) if opened else run.sink
        sink.publish(read_committables(folder / "stage", [BatchId(0)]), run.permit(1))
        found, wanted = self.shown_values(sink), _row(spark, columns)
        wrong = {n: (v, found.get(n)) for n, v in wanted.items() if not _same(self.spelled(v), found.get(n))}
        assert not wrong, f"column: (what was written, what readers find): {wrong}"
        assert refused == {name for name in values if name in refuses}

    def _why_not(self, sink: Sink, folder: Path, spark: SparkSession, columns: Mapping[str, str]) -> str:
        """Prepare a row with these columns; return why it is refused, or an empty text."""
        frame = spark.sql(_select(columns))
        try:
            judge = Judge.of(sink, frame)
            sink.check(frame)
            preparing(sink, folder / "stage", judge)(frame, 0)
        except InvalidRequest as error:
            return str(error)
        return ""


def _select(columns: Mapping[str, str]) -> str:
    return "SELECT " + ", ".join(f"{value} AS {quoted(name)}" for name, value in columns.items())


def _row(spark: SparkSession, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the row in Python's values, times of day zero included: in UTC."""
    import pyarrow as pa

    rows = spark.sql(_select(columns)).toArrow()
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            rows = rows.set_column(index, field.name, rows.column(index).cast(pa.timestamp("us", "UTC")))
    row: dict[str, Any] = rows.to_pylist()[0]
    return row


def _same(one: Any, other: Any) -> bool:
    """Tell whether two values are one: NaN is, zeros of two signs are not."""
    return repr(_plain(one)) == repr(_plain(other))


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(part) for name, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case dt.datetime() if value.tzinfo is not None:
            return value.astimezone(dt.UTC).isoformat()
        case _:
            return value
