"""Differences in a stage's state: keys added, changed and removed between two snapshots. Needs Spark."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.operations.snapshots.inspect import StageState, open_state
from dagster_ckpt.spark.snapshot.state_fingerprint import as_json
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_KEY_COLUMNS = ("key", "user_map_key", "grouping_key", "index")
_IGNORED = ("partition_id",)


class KeyChangeKind(StrEnum):
    """Change of a key."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """One key, as JSON text; a key of a multimap has a JSON list of values."""

    kind: KeyChangeKind
    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDiff:
    """One table of state in two snapshots."""

    stage: str
    table: str
    before: int
    """Keys in the older snapshot."""
    after: int
    added: int
    changed: int
    removed: int
    examples: tuple[KeyChange, ...]
    """A few of each kind, in the order of their keys."""

    @property
    def is_same(self) -> bool:
        """True where every key has the same value in both."""
        return not (self.added or self.changed or self.removed)


def diff_state(
    spark: SparkSession,
    before: StoredSnapshot,
    after: StoredSnapshot,
    uid: str,
    *,
    examples: int = 5,
    scratch: Path | None = None,
) -> tuple[TableDiff, ...]:
    """Compare every table of state that the stage has in either snapshot. Raises NotFound, Corrupt, Unavailable."""
    with ExitStack() as stack:
        old = stack.enter_context(open_state(spark, before, uid, scratch=scratch))
        new = stack.enter_context(open_state(spark, after, uid, scratch=scratch))
        names = dict.fromkeys([*(t.name for t in old.tables), *(t.name for t in new.tables)])
        return tuple(_diff_table(spark, name, (old, new), examples) for name in names)


def _diff_table(
    spark: SparkSession, name: str, states: tuple[StageState, StageState], examples: int
) -> TableDiff:
    old, new = states
    changes = diff_keys(_values(spark, old, name), _values(spark, new, name)).cache()
    try:
        counts = {str(row["kind"]): int(row["count"]) for row in changes.groupBy("kind").count().collect()}
        shown = [
            change
            for kind in KeyChangeKind
            for change in _examples(changes.where(changes["kind"] == kind.value), examples)
        ]
    finally:
        changes.unpersist()
    added, removed = counts.get("added", 0), counts.get("removed", 0)
    both = counts.get("same", 0) + counts.get("changed", 0)
    return TableDiff(
        stage=new.snapshot.uid,
        table=name,
        before=both + removed,
        after=both + added,
        added=added,
        changed=counts.get("changed", 0),
        removed=removed,
        examples=tuple(shown),
    )


def _values(spark: SparkSession, state: StageState, name: str) -> DataFrame:
    """Return keys and values of one table, written down first: the two sides may need different settings to be read.

    A table that the snapshot does not have is empty.
    """
    if all(table.name != name for table in state.tables):
        return spark.createDataFrame([], "k string, v string")
    copy = str(state.directory.parent / f"keys-{name.replace('/', '-')}")
    keyed(state.frame(name)).write.mode("overwrite").parquet(copy)
    return spark.read.parquet(copy)


def keyed(frame: DataFrame) -> DataFrame:
    """Return (key, values) of a table of state as JSON text: one row per key, its values sorted."""
    import pyspark.sql.functions as sf

    keys = [c for c in frame.columns if c in _KEY_COLUMNS] or [frame.columns[0]]
    values = [c for c in frame.columns if c not in (*keys, *_IGNORED)]
    if not values:
        raise InvalidRequest(f"state with columns {frame.columns} has no value to compare")
    rows = frame.select(as_json(frame, keys).alias("k"), as_json(frame, values).alias("v"))
    grouped = rows.groupBy("k").agg(sf.sort_array(sf.collect_list("v")).alias("vs"))
    # to_json leaves out what is null, and so would a list: a value of nulls is '{}', never a missing key
    return grouped.select("k", sf.array_join("vs", ", ").alias("v"))


def diff_keys(before: DataFrame, after: DataFrame) -> DataFrame:
    """Return (kind, k, before, after) for two DataFrames made by ``keyed``; kind ``same`` where nothing changed."""
    import pyspark.sql.functions as sf

    old = before.withColumnRenamed("v", "before")
    new = after.withColumnRenamed("v", "after")
    kind = (
        sf.when(sf.col("before").isNull(), sf.lit(KeyChangeKind.ADDED.value))
        .when(sf.col("after").isNull(), sf.lit(KeyChangeKind.REMOVED.value))
        .when(sf.col("before") != sf.col("after"), sf.lit(KeyChangeKind.CHANGED.value))
        .otherwise(sf.lit("same"))
    )
    return old.join(new, "k", "full_outer").select(kind.alias("kind"), "k", "before", "after")


def _examples(changes: DataFrame, limit: int) -> list[KeyChange]:
    return [
        KeyChange(kind=KeyChangeKind(row["kind"]), key=row["k"], before=row["before"], after=row["after"])
        for row in changes.orderBy("k").limit(limit).collect()
    ]
