"""Drawn pipelines as their author would write them: the same operators as ``model.py``, in Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt import CheckpointedPipeline, checkpointed_pipeline, spark_sink, spark_source, spark_stage
from dagster_ckpt.sinks import ForEachCheckpoint, SinkTarget
from tests.attack.outsides import Kind, WritesFiles, target_of
from tests.fuzz.drawn import FAILS_AT, Drawn, Judges, Op, Output, Stage
from tests.fuzz.model import MODULUS, SIDES, columns_of
from tests.fuzz.values import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NO_X = "CAST(NULL AS {x}) AS x"


def built(drawn: Drawn, folder: Path) -> CheckpointedPipeline:
    """Return the pipeline, whose sources watch ``feed/`` and whose sinks write below ``tables/``."""

    @checkpointed_pipeline(name=drawn.names[0], previous_names=drawn.names[1:])
    def pipeline() -> None:
        made: dict[str, Any] = {}
        for stage in drawn.stages:
            made[stage.uid] = _stage(drawn, stage, folder)(*(made[uid] for uid in stage.inputs))
        for _, output in drawn.sinks:
            _sink(drawn, output, folder)(made[output.input])

    return pipeline  # type: ignore[no-any-return]


def target(output: Output, folder: Path) -> SinkTarget:
    """Return where the rows of a sink go, in the deployment of a folder."""
    if output.kind is Kind.FUNCTION:
        return ForEachCheckpoint(WritesFiles(folder / "tables" / output.place))
    return target_of(output.kind, output.place, folder, output.partition_by)


def _judging(judges: Judges) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if judges.expect:
        found["expect"] = dict(judges.expect)
    if judges.on_error:
        found["on_error"] = "quarantine"
    if judges.keeps and judges.name:
        found["quarantine"] = judges.name
    return found


def _stage(drawn: Drawn, stage: Stage, folder: Path) -> Any:
    common: dict[str, Any] = {"uid": stage.uid, "chain": stage.chain, "previous_uids": stage.previous}
    common |= _judging(stage.judges)
    if stage.op is Op.SOURCE:
        feed = str(folder / "feed" / stage.uid.split("_")[1])

        def read(spark):  # type: ignore[no-untyped-def]
            reader = spark.readStream.schema(ddl(drawn.key_type, drawn.value_type))
            if stage.at_once:
                reader = reader.option("maxFilesPerTrigger", stage.at_once)
            return reader.parquet(feed)

        return spark_source(read, **common)
    common["max_entries_per_trigger"] = stage.at_once
    if stage.partitions is not None:
        common["partitions"] = stage.partitions
    behind = _operator(drawn, stage)
    mode = "update" if stage.op in (Op.SUM, Op.WINDOW) else "append"
    if len(stage.inputs) == 2:

        def two(first, second):  # type: ignore[no-untyped-def]
            return behind(first, second)

        return spark_stage(two, output_mode=mode, **common)

    def one(rows):  # type: ignore[no-untyped-def]
        return behind(rows)

    return spark_stage(one, output_mode=mode, **common)


def _operator(drawn: Drawn, stage: Stage) -> Callable[..., DataFrame]:
    no_x = _NO_X.format(x=_type(drawn.value_type))
    sums = _sums(drawn, stage.inputs[0])

    def operate(rows: DataFrame, other: DataFrame | None = None) -> DataFrame:  # noqa: PLR0911 - a flat table
        from pyspark.sql import functions as f

        match stage.op:
            case Op.MAP:
                v = f"v * 2 + {stage.number}"
                if stage.judges.on_error:
                    v = f"if(pmod(n, {FAILS_AT}) = 1, raise_error('no {FAILS_AT}'), {v})"
                return rows.selectExpr("n", "k", f"{v} AS v", "at", "x")
            case Op.FILTER:
                return rows.where(f"n % {stage.number} != 0")
            case Op.UNION:
                assert other is not None
                return rows.unionByName(other)
            case Op.DEDUP:
                return rows.dropDuplicates(["n"])
            case Op.DISTINCT:
                few = f"pmod(v, {MODULUS})"
                columns = (f"{few} AS n", "k", f"{few} AS v", "timestamp_seconds(0) AS at", no_x)
                return rows.selectExpr(*columns).dropDuplicates(["n", "k"])
            case Op.JOIN:
                assert other is not None
                right = other.selectExpr("n AS n2", "k AS k2", "v AS v2", "at AS at2")
                both = rows.join(right, f.expr(f"k = k2 AND n % {SIDES} = n2 % {SIDES}"))
                return both.selectExpr(
                    "n * 10007 + n2 AS n", "k", "v + v2 AS v", "greatest(at, at2) AS at", "x"
                )
            case Op.SUM:
                return sums(rows)
            case _:
                return _windows(rows, no_x)

    return operate


def _windows(rows: DataFrame, no_x: str) -> DataFrame:
    from pyspark.sql import functions as f

    grouped = rows.withWatermark("at", "10 minutes").groupBy(f.window("at", "15 minutes").alias("w"), "k")
    return grouped.agg(f.sum("v").alias("v")).selectExpr(
        "unix_seconds(w.start) AS n", "k", "v", "w.start AS at", no_x
    )


def _sums(drawn: Drawn, read: str) -> Callable[[DataFrame], DataFrame]:
    """Return the sum by ``k``; ``x`` is that of the highest ``n`` where no two rows have that."""
    x = "max_by(x, n)" if drawn.shapes[read].unique else f"CAST(NULL AS {_type(drawn.value_type)})"

    def sums(rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        totals = {"n": "max(n)", "v": "sum(v)", "at": "max(at)", "x": x}
        grouped = rows.groupBy("k").agg(*(f.expr(sql).alias(name) for name, sql in totals.items()))
        return grouped.select("n", "k", "v", "at", "x")

    return sums


def _type(name: str) -> str:
    return "TIMESTAMP_LTZ" if name == "timestamp" else name


def _sink(drawn: Drawn, output: Output, folder: Path) -> Any:
    sums = _sums(drawn, output.input)

    def write(rows):  # type: ignore[no-untyped-def]
        found = sums(rows) if output.sums else rows
        if output.kind is Kind.SQL and "k" in output.key:
            found = found.where("k IS NOT NULL")
        return found.select(*columns_of(drawn, output))

    more: dict[str, Any] = {"output_mode": output.sums} if output.sums else {}
    more |= _judging(output.judges)
    return spark_sink(
        write,
        uid=output.uid,
        table=output.place,
        key=output.key,
        to=target(output, folder),
        previous_uids=output.previous,
        **more,
    )
