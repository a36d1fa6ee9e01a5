"""Columns of the quarantine: of rows that come into it, and of those that were judged again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.ext.quarantine.expectations import Action, Condition
from dagster_ckpt.ext.quarantine.requeued_rows import KEPT_BEFORE, RequeuedRows, outcome_of
from dagster_ckpt.ext.quarantine.verdicts import VERDICT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AS_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "ignoreNullFields": "false"}
"""Times to the microsecond, and every column."""
NEW_ID = "concat(lpad(hex(unix_micros(current_timestamp())), 16, '0'), '-', uuid())"
"""Ids of a batch lie side by side: a publish that replaces rows looks into few files."""


def kept_rows(
    rows: DataFrame, names: Sequence[str], conditions: Sequence[Condition], uid: StageUid, batch: BatchId
) -> DataFrame:
    """Return the quarantine's rows of a stage's, which have their verdicts; ``names``: the stage's columns."""
    from pyspark.sql import functions as f

    _, led_here, broken = _broken(conditions)
    return rows.select(
        f.expr(NEW_ID).alias("id"),
        f.lit("quarantined").alias("state"),
        led_here.alias("condition"),
        broken.alias("conditions"),
        *_row(names, uid, batch),
        f.lit(1).cast("bigint").alias("tries"),
    )


def kept_again(
    taken: RequeuedRows, names: Sequence[str], conditions: Sequence[Condition], uid: StageUid, batch: BatchId
) -> DataFrame:
    """Return the quarantine's rows of those that were judged again: each takes the place of what it was."""
    from pyspark.sql import functions as f

    assert taken.judged is not None
    before, stays = f.col(KEPT_BEFORE), f.lit(False)
    state = f.lit("requeued")
    for verdict in taken.verdicts:
        outcome, is_it = outcome_of(verdict, conditions), f.col(VERDICT) == verdict
        state = f.when(is_it, f.lit(outcome)).otherwise(state)
        stays = (stays | is_it) if outcome == "quarantined" else stays
    must_not_be, led_here, broken = _broken(conditions)
    return taken.judged.select(
        before["id"].alias("id"),
        state.alias("state"),
        f.when(stays, f.coalesce(led_here, must_not_be)).otherwise(before["condition"]).alias("condition"),
        f.when(stays, broken).otherwise(before["conditions"]).alias("conditions"),
        *_row(names, uid, batch),
        (before["tries"] + 1).alias("tries"),
    )


def _broken(conditions: Sequence[Condition]) -> tuple[Column, Column, Column]:
    """Return the first broken condition that must hold, the first that quarantines, and all broken ones."""
    from pyspark.sql import functions as f

    broken = [
        f.when(f.col(VERDICT).bitwiseAND(1 << bit) != 0, f.lit(one.sql)) for bit, one in enumerate(conditions)
    ]

    def first(action: Action) -> Column:
        of_action = [one for one, c in zip(broken, conditions, strict=True) if c.action is action]
        return f.coalesce(*of_action, f.lit(None).cast("string"))

    return (
        first(Action.FAIL),
        first(Action.QUARANTINE),
        f.array_compact(f.array(*broken)).cast("array<string>"),
    )


def _row(names: Sequence[str], uid: StageUid, batch: BatchId) -> list[Column]:
    from pyspark.sql import functions as f

    whole = f.struct(*[f.col(f"`{name.replace('`', '``')}`") for name in names])
    return [
        f.to_json(whole, AS_JSON).alias("row"),
        whole.alias("columns"),
        f.lit(str(uid)).alias("stage"),
        f.lit(int(batch)).cast("bigint").alias("batch"),
        f.current_timestamp().alias("at"),
    ]
