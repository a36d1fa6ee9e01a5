"""One judge of rows: a batch is compared with what its sink accepts while it is prepared, in the plan that stages it.

What is refused here belongs to no checkpoint yet, so nothing has to be taken back. Rows that pass are read once: they
are counted, and an example is looked for, only after one was refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, TypeVar

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.java.plans import asked_of_bytes
from dagster_ckpt.spark.sink.accepts import RowRule
from dagster_ckpt.spark.sink.port import Sink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MARK = "dagster_ckpt refuses a row"
"""Error that Spark raises for a row that breaks a rule; the judge says which one."""
_SHOWN = 60
"""Bytes that are shown of an example."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Judge:
    """The rules of one sink's rows."""

    place: str
    rules: tuple[RowRule, ...]

    @classmethod
    def of(cls, sink: Sink, frame: DataFrame) -> Judge:
        """Return the judge of a stage's rows. Raises InvalidRequest for columns that the sink cannot hold at all."""
        accepts, schema = sink.accepts, frame.schema.json()
        accepts.refuse_columns(sink.place, schema)
        return cls(sink.place, accepts.rules(schema))

    def carry_out(self, write: Callable[[DataFrame, BatchId], T], frame: DataFrame, batch_id: BatchId) -> T:
        """Return the result of ``write`` on a batch, in whose plan every row is judged.

        Raises InvalidRequest, saying column, values and the way out, where a row breaks a rule: then ``write`` failed.
        """
        try:
            return write(self.judged(frame), batch_id)
        except Exception as error:
            if not self.rules or MARK not in str(error):
                raise
            said = _sentence(self.place, self.rules, frame, batch_id)
            if not said:
                raise
        raise InvalidRequest(said)

    def judged(self, frame: DataFrame) -> DataFrame:
        """Return the rows, the reading of which fails at one that breaks a rule."""
        if not self.rules:
            return frame
        from pyspark.sql import functions

        refused_by = reduce(or_, (broken(frame, rule) for rule in self.rules))
        refused = functions.raise_error(functions.lit(MARK)).cast("boolean")
        return frame.where(functions.when(refused_by, refused).otherwise(True))


def broken(frame: DataFrame, rule: RowRule) -> Column:
    """Return the rule as a column."""
    from pyspark.sql import functions

    if rule.quick is None:
        return functions.expr(rule.broken)
    question, wrong = rule.quick
    answer = asked_of_bytes(frame.sparkSession, question, functions.expr(rule.example))
    return answer if wrong else ~answer


def _sentence(place: str, rules: Sequence[RowRule], frame: DataFrame, batch_id: BatchId) -> str:
    """Return which rule a batch breaks, in how many rows, and with which value; empty: it breaks none."""
    counted = frame.selectExpr("count(*)", *(f"count_if({rule.broken})" for rule in rules)).first()
    total, *found = counted or (0,)
    rule, rows = next(((rule, rows) for rule, rows in zip(rules, found, strict=False) if rows), (None, 0))
    if rule is None:
        return ""
    example = _example(frame, rule)
    such = f", such as {example}" if example else ""
    return (
        f"column {rule.column!r} has {rule.what} in {rows:,} of the {total:,} rows of batch {batch_id}{such}, and "
        f"{place} cannot hold it. In the sink's function, {rule.way_out}: nothing of the batch is kept, and the next "
        "run begins with it again"
    )


def _example(frame: DataFrame, rule: RowRule) -> str:
    """Return a wrong value as people can read it, whatever is in it, cut short; empty: it is no value."""
    found = frame.where(rule.broken).selectExpr(f"{rule.example} AS value")
    is_text = found.schema["value"].dataType.typeName() in ("string", "varchar", "char", "binary")
    shown = "value" if is_text else "CAST(value AS STRING)"
    row = found.selectExpr(f"substr(CAST({shown} AS BINARY), 1, {_SHOWN + 1}) AS value").first()
    if row is None or row["value"] is None:
        return ""
    value = bytes(row["value"])
    text = "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode()
        for one in value[:_SHOWN].decode("utf-8", "backslashreplace")
    )
    return (f"'{text}'" if is_text else text) + (" …" if len(value) > _SHOWN else "")
