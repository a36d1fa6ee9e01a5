"""Verdicts on rows: a number with a bit for each condition that the row breaks, 0 for a good one.

Each condition is evaluated once a row. What it says of a row that makes it NULL is no: nobody has said that it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.quarantine.expectations import Action, Condition
from dagster_ckpt.spark.files import DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VERDICT = "_dagster_ckpt_verdict"
"""Column of verdicts while a batch is written: the folders that its rows lie in are called by it."""

AS_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "ignoreNullFields": "false"}
"""Form of rows that are kept as text: times to the microsecond, and every column."""


def verdict_sql(conditions: Sequence[Condition]) -> str:
    """Return the verdict on a row as an SQL expression of type BIGINT."""
    parts = [f"IF(({one.sql}\n) IS TRUE, 0L, {1 << bit}L)" for bit, one in enumerate(conditions)]
    return " | ".join(parts) or "0L"


def broken_by(verdict: int, conditions: Sequence[Condition]) -> list[Condition]:
    """Return the conditions that rows of a verdict break, in the order they were given."""
    return [one for bit, one in enumerate(conditions) if verdict >> bit & 1]


def by_verdict(files: Iterable[DataFile]) -> dict[int, list[DataFile]]:
    """Return files of rows that were written apart by verdict, by that."""
    found: dict[int, list[DataFile]] = {}
    for file in files:
        verdict = int(Path(file.name).parent.name.rpartition("=")[2])
        found.setdefault(verdict, []).append(file)
    return found


def action_on(broken: Sequence[Condition]) -> Action | None:
    """Return the action on a row that breaks these conditions, the hardest of all; None: it breaks none."""
    hardest = [*Action]
    return max((one.action for one in broken), key=hardest.index, default=None)


def refuse_impossible(whose: str, conditions: Sequence[Condition], frame: DataFrame) -> None:
    """Raise InvalidRequest for a condition that Spark cannot ask of these rows, before there are any."""
    from pyspark.errors import PySparkException

    for one in conditions:
        try:
            frame.where(f"({one.sql}\n)")
        except PySparkException as error:
            condition, message = error.getCondition(), str(error).partition("\n")[0]
            said = message.removeprefix(f"[{condition}] ").partition(" SQLSTATE")[0].rstrip(". ;")
            raise InvalidRequest(
                f"{whose} expects {one.sql!r}, which Spark cannot ask of its rows: {said}"
            ) from None
