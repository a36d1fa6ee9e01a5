"""Columns of the quarantine: of rows that come into it, and of those that were judged again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain, count
from operator import or_
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.checkpoint.tables import LATE
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.errors import NotFound
from dagster_ckpt.ext.quarantine.expectations import HELD, Action, Condition
from dagster_ckpt.ext.quarantine.poisoned_rows import PoisonedRow
from dagster_ckpt.ext.quarantine.requeued_rows import KEPT_BEFORE, RequeuedRows, outcome_of
from dagster_ckpt.ext.quarantine.verdicts import AS_JSON, UNPARSED, VERDICT
from dagster_ckpt.operations.care.maintain import COLUMNS, is_struct
from dagster_ckpt.spark.attempt.participant import ParticipantContext, RuleAhead
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.sink.phases import broken
from dagster_ckpt.spark.sink.port import Sink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_NEW_ID = "concat(lpad(hex(unix_micros(current_timestamp())), 16, '0'), '-', uuid())"
"""Ids of a batch lie side by side: a publish that replaces rows looks into few files."""
_QUARANTINED = "quarantined"
_NO_NAME = re.compile(r"[ ,;{}()\n\t=\0]")
"""Characters that a table has in no name of a column."""


class KeptRows:
    """Rows of one stage as its quarantine has them."""

    def __init__(
        self,
        context: ParticipantContext,
        schema: StructType,
        conditions: Sequence[Condition],
        ahead: Sequence[RuleAhead],
    ) -> None:
        self._uid, self._schema, self._held = context.stage.uid, schema, _named_plainly(schema)
        self._conditions, self._ahead = conditions, ahead
        table = context.own_table()
        self._own = () if table is None else table.accepts.rules(schema.json())
        self._structs = {} if table is None else _structs_of(table, context.frame.sparkSession)
        self.struct = _struct_for(self._held, self._structs)
        """Name of the struct that has today's columns of the stage."""
        self._structs[self.struct] = self._held

    def none(self, spark: SparkSession) -> DataFrame:
        """Return no rows, of all columns."""
        nothing = spark.createDataFrame([], self._schema).selectExpr("*", f"0L AS {VERDICT}")
        return self.refused(nothing, BatchId(0)).unionByName(self.poisoned(spark, (), BatchId(0)))

    def refused(self, rows: DataFrame, batch: BatchId) -> DataFrame:
        """Return the quarantine's rows of a stage's, which have their verdicts."""

        _, led_here, all_broken = self._broken()
        row, *columns = self._row(rows)
        return rows.select(
            *self._new(
                batch,
                led_here,
                all_broken,
                row=row,
                columns=columns,
                error=self._error(rows),
                text=self._json(),
            )
        )

    def poisoned(self, spark: SparkSession, rows: Sequence[PoisonedRow], batch: BatchId) -> DataFrame:
        """Return the quarantine's rows of a stage's input that cannot be processed."""
        from pyspark.sql import functions as f

        made = [(one.error.name, one.error.said, str(one.channel), one.row) for one in rows]
        found = spark.createDataFrame(made, "condition STRING, error STRING, input STRING, row STRING")
        why = f.col("condition")
        return found.select(
            *self._new(
                batch, why, f.array(why), row=f.col("row"), error=f.col("error"), channel=f.col("input")
            )
        )

    def late(self, rows: DataFrame, batch: BatchId) -> DataFrame:
        """Return the quarantine's rows of late ones, each as JSON in the column ``row``."""
        from pyspark.sql import functions as f

        why = f.lit(LATE)
        return rows.select(*self._new(batch, why, f.array(why), row=f.col("row")))

    def again(self, taken: RequeuedRows, batch: BatchId) -> DataFrame:
        """Return the quarantine's rows of those that were judged again: each takes the place of what it was."""
        from pyspark.sql import functions as f

        assert taken.judged is not None
        before, stays = f.col(KEPT_BEFORE), f.lit(False)
        state = f.lit("requeued")
        for verdict in taken.verdicts:
            outcome, is_it = outcome_of(verdict, self._conditions), f.col(VERDICT) == verdict
            state = f.when(is_it, f.lit(outcome)).otherwise(state)
            stays = (stays | is_it) if outcome == _QUARANTINED else stays
        must_not_be, led_here, all_broken = self._broken()
        return taken.judged.select(
            before["id"].alias("id"),
            state.alias("state"),
            f.when(stays, f.coalesce(led_here, must_not_be))
            .otherwise(before["condition"])
            .alias("condition"),
            f.when(stays, all_broken).otherwise(before["conditions"]).alias("conditions"),
            self._error(taken.judged).alias("error"),
            f.lit(None).cast("string").alias("input"),
            *self._row(taken.judged),
            *self._origin(batch, self._json()),
            (before["tries"] + 1).alias("tries"),
        )

    def tried(self, rows: DataFrame, failed: Mapping[str, PoisonedRow], batch: BatchId) -> DataFrame:
        """Return the quarantine's rows of those that were processed again: each takes the place of what it was."""
        from pyspark.sql import functions as f

        made = [(name, one.error.name, one.error.said) for name, one in failed.items()]
        why = rows.sparkSession.createDataFrame(made, "id STRING, now STRING, said STRING")
        before, stays = f.col(KEPT_BEFORE), f.col("now").isNotNull()
        return rows.join(f.broadcast(why), before["id"] == f.col("id"), "left").select(
            before["id"].alias("id"),
            f.when(stays, f.lit(_QUARANTINED)).otherwise(f.lit("requeued")).alias("state"),
            f.coalesce("now", before["condition"]).alias("condition"),
            f.when(stays, f.array("now")).otherwise(before["conditions"]).alias("conditions"),
            f.coalesce("said", before["error"]).alias("error"),
            before["input"].alias("input"),
            before["row"].alias("row"),
            *self._in_struct(f.lit(None).cast(self._held)),
            *self._origin(batch, before["row"]),
            (before["tries"] + 1).alias("tries"),
        )

    def _new(
        self,
        batch: BatchId,
        condition: Column,
        conditions: Column,
        *,
        row: Column,
        columns: Sequence[Column] = (),
        error: Column | None = None,
        channel: Column | None = None,
        text: Column | None = None,
    ) -> list[Column]:
        """Return the columns of rows that come into the quarantine."""
        from pyspark.sql import functions as f

        nothing = f.lit(None)
        return [
            f.expr(_NEW_ID).alias("id"),
            f.lit(_QUARANTINED).alias("state"),
            condition.alias("condition"),
            conditions.alias("conditions"),
            (nothing if error is None else error).cast("string").alias("error"),
            (nothing if channel is None else channel).cast("string").alias("input"),
            row.alias("row"),
            *(columns or self._in_struct(nothing.cast(self._held))),
            *self._origin(batch, row if text is None else text),
            f.lit(1).cast("bigint").alias("tries"),
        ]

    def _broken(self) -> tuple[Column, Column, Column]:
        """Return the first broken condition that must hold, the first that quarantines, and all broken ones."""
        from pyspark.sql import functions as f

        which = [f.when(self._is_broken(one), f.lit(one.sql)) for one in self._conditions]

        def first(action: Action) -> Column:
            of_action = [one for one, c in zip(which, self._conditions, strict=True) if c.action is action]
            return f.coalesce(*of_action, f.lit(None).cast("string"))

        whole = f.array_compact(f.array(*which)).cast("array<string>")
        return first(Action.FAIL), first(Action.QUARANTINE), whole

    def _is_broken(self, condition: Condition) -> Column:
        from pyspark.sql import functions as f

        return f.col(VERDICT).bitwiseAND(1 << self._conditions.index(condition)) != 0

    def _error(self, rows: DataFrame) -> Column:
        """Return which rule of which table a row breaks, where it breaks one of a table behind the stage."""
        from pyspark.sql import functions as f

        said = [f.when(broken(rows, one.rule), f.lit(one.said)) for one in self._ahead]
        is_meant = [self._is_broken(one) for one in self._conditions if one.sql == HELD]
        return f.when(reduce(or_, is_meant, f.lit(False)), f.coalesce(*said, f.lit(None).cast("string")))

    def _row(self, rows: DataFrame) -> list[Column]:
        from pyspark.sql import functions as f

        whole, text = self._whole().cast(self._held), self._json()
        wrong = [f.coalesce(broken(rows, rule), f.lit(False)) for rule in self._own]
        if UNPARSED in rows.columns:
            wrong.append(f.col(UNPARSED).isNotNull())
            text = f.coalesce(f.col(UNPARSED), text)
        held = f.when(~reduce(or_, wrong), whole) if wrong else whole
        return [text.alias("row"), *self._in_struct(held)]

    def _in_struct(self, held: Column) -> list[Column]:
        """Return all structs that the quarantine has, with ``held`` in the one of today's columns."""
        from pyspark.sql import functions as f

        return [
            (held if name == self.struct else f.lit(None).cast(kind)).alias(name)
            for name, kind in self._structs.items()
        ]

    def _whole(self) -> Column:
        from pyspark.sql import functions as f

        return f.struct(*(f.col(quoted(name)) for name in self._schema.names))

    def _json(self) -> Column:
        from pyspark.sql import functions as f

        return f.to_json(self._whole(), AS_JSON)

    def _origin(self, batch: BatchId, text: Column) -> list[Column]:
        """Return where rows come from: their place in the source, where the rows themselves say it, and the batch."""
        from pyspark.sql import functions as f

        topic, partition, offset, file = (
            f.get_json_object(text, f"$.{name}") for name in ("topic", "partition", "offset", "file_path")
        )
        message = f.concat(topic, f.lit("/"), partition, f.lit("@"), offset)
        return [
            f.coalesce(message, file).alias("position"),
            f.lit(str(self._uid)).alias("stage"),
            f.lit(int(batch)).cast("bigint").alias("batch"),
            f.current_timestamp().alias("at"),
        ]


def _structs_of(table: Sink, spark: SparkSession) -> dict[str, StructType]:
    """Return the structs of a stage's columns that its quarantine has: one for each form they have had."""
    try:
        schema = table.rows().to_spark(spark).schema
    except NotFound:  # nothing was published
        return {}
    return {one.name: one.dataType for one in schema if is_struct(one.name)}


def _struct_for(schema: StructType, structs: Mapping[str, StructType]) -> str:
    """Return the name of the struct that has these columns, or gets them: ``columns``, ``columns_2``, and so on.

    No table changes the type of a column, and a stage with a quarantine may.
    """
    mine = _spelt(schema)
    found = (name for name, there in structs.items() if _spelt(there) == mine)
    names = chain([COLUMNS], (f"{COLUMNS}_{number}" for number in count(2)))
    return next(found, None) or next(name for name in names if name not in structs)


def _named_plainly(kind: DataType) -> Any:
    """Return a type with names of fields that every table takes, which are told apart whatever their case.

    By their places they are the stage's, so that a cast brings them back.
    """
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    match kind:
        case ArrayType():
            return ArrayType(_named_plainly(kind.elementType))
        case MapType():
            return MapType(_named_plainly(kind.keyType), _named_plainly(kind.valueType))
        case StructType():
            fields: dict[str, StructField] = {}
            for one in kind.fields:
                name = _NO_NAME.sub("_", one.name)
                while name.lower() in fields:
                    name += "_"
                fields[name.lower()] = StructField(name, _named_plainly(one.dataType))
            return StructType([*fields.values()])
    return kind


def _spelt(schema: StructType) -> str:
    return re.sub(r" collate \w+", "", schema.simpleString())  # no table keeps the order of texts
