"""What goes to Java past PySpark's converters arrives as it would through them."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections import OrderedDict
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from py4j import protocol
from pyspark.sql import SparkSession, types

from dagster_ckpt.spark.session import PlainArguments, convert_plain_arguments_first

VALUES: list[Any] = [
    True,
    7,
    1.5,
    "text",
    None,
    b"bytes",
    bytearray(b"more"),
    [1, "two", [3.5, None]],
    (1, 2),
    {"a": 1, "b": {"c": [True]}},
    {1},
    frozenset({"x"}),
    OrderedDict(a=1),
    Decimal("1.50"),
    dt.date(2026, 1, 2),
    dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
    dt.timedelta(seconds=5),
    np.float64(1.5),
    np.int32(3),
    np.array([1, 2]),
    [dt.date(2026, 1, 2), np.int64(4)],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_the_same_in_java(
    spark: SparkSession, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark._jvm is not None

    def in_java() -> str:
        held = spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]
        held.add(value)
        return str(spark._jvm.java.util.Arrays.deepToString(held.toArray()))  # type: ignore[union-attr]

    theirs = [one for one in protocol.INPUT_CONVERTER if not isinstance(one, PlainArguments)]
    monkeypatch.setattr(spark.sparkContext._gateway._gateway_client, "converters", theirs)
    expected = in_java()
    monkeypatch.setattr(
        spark.sparkContext._gateway._gateway_client, "converters", [PlainArguments(), *theirs]
    )
    assert in_java() == expected


def test_only_values_that_are_exactly_plain_are_taken() -> None:
    class Text(str):
        pass

    class Rows(list[int]):
        pass

    taken = PlainArguments()
    assert not [
        value
        for value in (Text("a"), Rows(), np.float64(1), dt.date(2026, 1, 2), object())
        if taken.can_convert(value)
    ]


def test_it_is_the_first_once_and_never_before_a_converter_of_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = [types.NumpyArrayConverter(), types.DateConverter()]
    monkeypatch.setattr(protocol, "INPUT_CONVERTER", theirs)
    convert_plain_arguments_first()
    convert_plain_arguments_first()
    assert [type(one) for one in theirs] == [PlainArguments, types.NumpyArrayConverter, types.DateConverter]

    of_the_user = object()
    others = [of_the_user, types.NumpyArrayConverter()]
    monkeypatch.setattr(protocol, "INPUT_CONVERTER", others)
    convert_plain_arguments_first()
    assert others[0] is of_the_user


@pytest.mark.nightly
@pytest.mark.spark
def test_epochs_with_a_keyed_table_import_no_test_tools_of_pyspark(tmp_path: Any) -> None:
    program = f"""
import sys
from pyspark.sql import functions as f
from dagster_ckpt import CheckpointCoordinatorResource, checkpointed_pipeline, run_epoch, spark_sink, spark_source
from dagster_ckpt.spark.session import build_session

@spark_source
def rows(spark):
    return spark.readStream.schema("k long").json({str(tmp_path / "in")!r})

@spark_sink(key=["k"])
def totals(rows):
    return rows.groupBy("k").agg(f.count("*").alias("n"))

@checkpointed_pipeline(name="light")
def light():
    totals(rows())

conf = {{"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}}
spark = build_session("light", master="local[1]", conf=conf)
for number in (1, 2):
    with open({str(tmp_path / "in")!r} + f"/{{number}}.json", "w") as file:
        file.write('{{"k": 1}}\\n{{"k": %d}}\\n' % number)
    run_epoch(light, coordinator=CheckpointCoordinatorResource(base_dir={str(tmp_path / "state")!r}), spark=spark)
print(sorted({{"pyspark.testing", "grpc"}} & set(sys.modules)))
"""
    (tmp_path / "in").mkdir()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr[-2000:]
