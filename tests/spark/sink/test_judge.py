"""Rows are compared with what their sink accepts where they are prepared: others belong to no checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.sink.accepts import (
    NO_NAN,
    NO_NUL,
    PLAIN,
    UTF8,
    YEARS,
    Accepts,
    ColumnRule,
    most_bytes,
    names_of_folders,
    no_characters,
    no_empty_text,
    no_longer_names,
    no_names,
    no_null,
)
from dagster_ckpt.spark.sink.phases import MARK, Judge

BAD = "CAST(X'6DE9' AS STRING)"
"""A Latin-1 text as Spark reads it: no UTF-8."""
STRICT = (UTF8, NO_NUL, NO_NAN, *YEARS)
LAST = "9999-12-31 23:59:59.999999"


def judge(frame: DataFrame, *columns: ColumnRule) -> Judge:
    return Judge("the table", Accepts(values=STRICT, columns=columns).rules(frame.schema.json()))


def written(frame: DataFrame, batch_id: BatchId) -> int:
    return frame.count()


@pytest.mark.parametrize(
    ("values", "columns", "said"),
    [
        (
            ["'a'", BAD, "'c'", BAD],
            (),
            r"text that is no UTF-8 in 2 of the 4 rows of batch 7, such as 'm\xe9', and",
        ),
        (["'\ufffd'", "'日本語'", BAD, "null"], (), "text that is no UTF-8 in 1 of the 4 rows"),
        (
            ["'a'", "concat('b', chr(0), '\n', repeat('x', 80))"],
            (),
            r"NUL in 1 of the 2 rows of batch 7, such as 'b\x00\nx",
        ),
        (
            [f"named_struct('a.b', named_struct('`', {BAD}))"],
            (),
            r"'v.a.b.`' has text that is no UTF-8 in 1 of the 1",
        ),
        ([f"array('a', {BAD})", "array()", "null"], (), r"'v' has text that is no UTF-8 in 1 of the 3 rows"),
        (
            [f"array(null, array(named_struct('e', {BAD})))"],
            (),
            r"'v.e' has text that is no UTF-8 in 1 of the 1 rows",
        ),
        ([f"map({BAD}, 1)", "map()", "null"], (), r"such as 'm\xe9'"),
        ([f"map(1, {BAD})"], (), r"such as 'm\xe9'"),
        (["double('nan')", "null", "double('inf')"], (), "'v' has NaN in 1 of the 3 rows"),
        (
            ["DATE '9999-12-31'", "DATE '+10000-01-01'"],
            (),
            "a date outside of the years 1 to 9999 in 1 of the 2",
        ),
        (
            ["DATE '0001-01-01'", "DATE '0000-12-31'", "null"],
            (),
            "such as 0000-12-31, and the table cannot hold it",
        ),
        (
            [f"TIMESTAMP '{LAST}Z'", f"TIMESTAMP '{LAST}-00:01'"],
            (),
            "outside of the years 1 to 9999, in UTC in 1 of",
        ),
        (["TIMESTAMP '0001-01-01 00:00:00Z'", "TIMESTAMP '0001-01-01 00:00:00+00:01'"], (), "in 1 of the 2"),
        ([f"TIMESTAMP_NTZ '{LAST}'", "TIMESTAMP_NTZ '+10000-01-01 00:00:00'"], (), "in 1 of the 2"),
        (["1", "null"], no_null(["v"]), "'v' has no value in 1 of the 2 rows of batch 7, and the table"),
        (["'a'", "''", "null"], no_empty_text(["v"]), "'v' has empty text, or '__HIVE_DEFAULT"),
        (
            ["'a'", "repeat('ü', 43)", "null"],
            names_of_folders(["v"]),
            "longer than the 253 bytes that name a",
        ),
        (
            ["repeat('é', 5)", "repeat('é', 6)", "null"],
            (most_bytes(["v"], 10, "a key"),),
            "more than the 10 bytes of a",
        ),
    ],
)
def test_rows_that_break_a_rule_fail_their_batch_in_one_sentence_and_others_pass(
    spark: SparkSession, values: list[str], columns: tuple[ColumnRule, ...], said: str
) -> None:
    frame = spark.sql(" UNION ALL ".join(f"SELECT {value} AS v" for value in values))
    with pytest.raises(InvalidRequest) as refused:
        judge(frame, *columns).carry_out(written, frame, BatchId(7))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert MARK not in str(refused.value)
    good = frame.where(
        f"NOT coalesce({' OR '.join(rule.broken for rule in judge(frame, *columns).rules)}, false)"
    )
    assert judge(frame, *columns).carry_out(written, good, BatchId(8)) == good.count()


def test_columns_that_cannot_be_wrong_cost_nothing(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS a, true AS b, X'00' AS c, CAST(1 AS DECIMAL(38, 2)) AS d, array(1) AS e")
    assert judge(frame, most_bytes(["a"], 10, "a key"), *no_empty_text(["a"])).judged(frame) is frame


def test_another_error_of_a_batch_stays_what_it_was(spark: SparkSession) -> None:
    def fails(frame: DataFrame, batch_id: BatchId) -> None:
        raise OSError("the disk is full")

    frame = spark.sql("SELECT 'a' AS v")
    with pytest.raises(OSError, match="the disk is full"):
        judge(frame).carry_out(fails, frame, BatchId(0))


STRUCT = {"type": "struct", "fields": [{"name": "a", "type": "long"}, {"name": "A", "type": "long"}]}
ACCEPTS = Accepts(
    types=PLAIN | {"struct", "array"},
    names=(no_characters(" ;", "it"), no_names(["ctid"], "it"), no_longer_names(5, "it")),
    folds_case=True,
)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("v", "variant", "'v' is variant"),
        ("v", "interval day to second", "'v' is interval day to second"),
        ("v", {"type": "map", "keyType": "long", "valueType": "long"}, "'v' is map"),
        ("v", {"type": "array", "elementType": "void"}, "'v' is void"),
        ("v", STRUCT, r"'v\.a' is there twice, as 'a' and 'A'"),
        ("v", {"type": "struct", "fields": []}, "'v' has a struct without fields"),
        ("v", {"type": "array", "elementType": {"type": "struct", "fields": []}}, "'v' has a struct without"),
        ("v;", "long", "'v;' has a character that it refuses"),
        ("CTID", "long", "'CTID' is one of the columns that it has itself"),
        ("vvvvvé", "long", "has more than the 5 bytes"),
        ("v", {"type": "struct", "fields": [{"name": "ctid", "type": "decimal(5,2)"}]}, ""),
    ],
)
def test_columns_that_no_value_could_be_held_in_are_named_when_the_stage_starts(
    name: str, kind: Any, said: str
) -> None:
    schema = json.dumps({"type": "struct", "fields": [{"name": name, "type": kind}]})
    if not said:
        ACCEPTS.refuse_columns("the table", schema)
        return
    with pytest.raises(InvalidRequest, match=said):
        ACCEPTS.refuse_columns("the table", schema)
    with pytest.raises(InvalidRequest, match="have no column"):
        ACCEPTS.refuse_columns("the table", '{"type":"struct","fields":[]}')
