"""Where rows end: what is refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_ckpt import CheckpointedPipeline, InvalidRequest, checkpointed_pipeline, spark_sink, spark_source
from dagster_ckpt.sinks import DeltaTable


def pipeline_with(more: DeltaTable | None = None, **first: Any) -> CheckpointedPipeline:
    @spark_source
    def numbers(spark: Any) -> Any:
        return spark

    @spark_sink(**first)
    def one(numbers: Any) -> Any:
        return numbers

    @spark_sink(table="t", to=more)
    def other(numbers: Any) -> Any:
        return numbers

    @checkpointed_pipeline
    def shop() -> None:
        found = numbers()
        one(found)
        other(found)

    return shop  # type: ignore[return-value]


@pytest.mark.parametrize(
    "table", ["t", "./t", "t/", "x/../t", "t/inside", "t/_dagster_ckpt/staged", ".", "a/_dagster_ckpt"]
)
def test_two_sinks_with_one_folder_however_spelt_are_refused(table: str) -> None:
    with pytest.raises(InvalidRequest, match="Give each a folder of its own"):
        pipeline_with(table=table)
    with pytest.raises(InvalidRequest, match="Give each a folder of its own"):
        pipeline_with(to=DeltaTable(table))


def test_a_folder_is_the_same_one_as_a_uri_and_none_of_an_object_store() -> None:
    """Each was a folder ``file:`` or ``s3:`` below the table_dir."""
    for place in ("file:///data/t", "file:/data/t", "/data/t"):
        with pytest.raises(InvalidRequest, match="Give each a folder of its own"):
            pipeline_with(to=DeltaTable(place), more=DeltaTable("/data/t/"))
    pipeline_with(to=DeltaTable("s3://lake/t"), more=DeltaTable("/lake/t"))
    with pytest.raises(InvalidRequest, match="table 's3://lake/t' of sink 'one' is a URI"):
        pipeline_with(table="s3://lake/t")


def test_a_target_is_one_of_ours_or_of_its_kind() -> None:
    pipeline_with(to=DeltaTable("one"))
    with pytest.raises(InvalidRequest, match=r"has to='delta'.*DeltaTable"):
        pipeline_with(to="delta")


def test_a_fork_says_where_rows_with_a_place_of_their_own_end() -> None:
    shop = pipeline_with(to=DeltaTable("s3://lake/orders"))
    with pytest.raises(InvalidRequest, match=r"sinks=\{'one': ...\}"):
        shop.fork("trial", table_dir="/t")
    with pytest.raises(InvalidRequest, match="'two' is no sink of 'shop'"):
        shop.fork("trial", table_dir="/t", sinks={"one": DeltaTable("x"), "two": DeltaTable("y")})
    for more in ({"to": DeltaTable("/data/orders")}, {"table": "/data/orders"}):
        with pytest.raises(
            InvalidRequest, match=r"'one' writes .*/data/orders'.*, whatever the table_dir: give the"
        ):
            pipeline_with(**more).fork("trial", table_dir="/t")
    fork = shop.fork("trial", table_dir="/t", sinks={"one": DeltaTable("s3://lake/trial")})
    assert {uid: stage.to for uid, stage in fork.stages.items() if stage.to} == {
        "one": DeltaTable("s3://lake/trial")
    }
