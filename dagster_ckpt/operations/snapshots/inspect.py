"""A stage's state at a snapshot, as DataFrames: read by Spark's ``statestore`` source from the saved copy.

The pipeline may run on meanwhile: nothing of its working directory is touched. The copy is built (hard links
where that is possible) into a folder that lives as long as the ``StageState``; DataFrames are lazy, so use them within.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.snapshots.contents import StatefulOperator, operators_of, require_stage
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import spark_uri
from dagster_ckpt.spark.session import HDFS_PROVIDER, ROCKSDB_PROVIDER, refuse_connect
from dagster_ckpt.spark.snapshot.rescale import as_json
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_PROVIDERS = {"rocksdb": ROCKSDB_PROVIDER, "hdfsbacked": HDFS_PROVIDER}
_STATE_STORE = "spark.sql.streaming.stateStore"
_JOIN_SIDES = ("left", "right")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTable:
    """One table of a stage's state: an operator's store, one side of a join, or a state variable."""

    name: str
    """What to ask for: ``0``, ``0/left``, ``1/total``."""
    operator: str
    operator_name: str
    options: Mapping[str, str]
    """Options of Spark's ``statestore`` source that select it."""


def state_tables(source: StoredSnapshot, uid: str) -> tuple[StateTable, ...]:
    """Return the tables of a stage's state, from the snapshot's own files; no Spark is needed. Raises NotFound."""
    snapshot = require_stage(source, uid)
    return tuple(
        StateTable(
            name=f"{operator.operator}/{part}" if part else operator.operator,
            operator=operator.operator,
            operator_name=operator.name,
            options={"operatorId": operator.operator, **options},
        )
        for operator in operators_of(source, snapshot)
        for part, options in _parts(operator)
    )


def _parts(operator: StatefulOperator) -> Iterator[tuple[str, dict[str, str]]]:
    variables = _variables(operator)
    if operator.name == "symmetricHashJoin":
        yield from ((side, {"joinSide": side}) for side in _JOIN_SIDES)
    elif variables:
        yield from ((name, {"stateVarName": name}) for name in variables)
    else:
        yield "", {}


def _variables(operator: StatefulOperator) -> list[str]:
    """Return the names of the state variables of ``transformWithState``; timers are no variables of the user."""
    try:
        document: Any = parse_json(operator.properties or "{}")
        variables = document.get("stateVariables") or []
        names = [str(variable["stateName"]) for variable in variables]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return sorted(name for name in names if not name.startswith("$"))


@dataclass(frozen=True, kw_only=True)
class StageState:
    """The state of one stage, open for reading. Made by ``open_state``."""

    snapshot: StageSnapshot
    tables: tuple[StateTable, ...]
    directory: Path
    """The built copy."""
    session: SparkSession
    """A session whose settings fit the copy."""

    def frame(self, table: str = "") -> DataFrame:
        """Return one table; empty: the only one. Columns are Spark's: ``key``, ``value``, ``partition_id``.

        Raises NotFound for another name, InvalidRequest where there are several and none is named; both name them.
        """
        chosen = self.table(table)
        return (
            self.session.read.format("statestore")
            .options(**chosen.options)
            .load(spark_uri(StageDirectory(self.directory).query))
        )

    def table(self, name: str = "") -> StateTable:
        """Return the table ``name`` names; raises as ``frame`` does."""
        names = ", ".join(t.name for t in self.tables)
        if not self.tables:
            raise NotFound(f"stage {self.snapshot.uid!r} keeps no state: there is nothing to look at")
        if not name:
            if len(self.tables) > 1:
                raise InvalidRequest(
                    f"stage {self.snapshot.uid!r} has several tables of state, name one: {names}"
                )
            return self.tables[0]
        found = next((t for t in self.tables if t.name == name), None)
        if found is None:
            raise NotFound(f"stage {self.snapshot.uid!r} has no table of state {name!r}. There are: {names}")
        return found


@contextmanager
def open_state(
    spark: SparkSession, source: StoredSnapshot, uid: str, *, scratch: Path | None = None
) -> Iterator[StageState]:
    """Restore a stage's saved state and yield it for reading; the copy is removed afterwards.

    ``scratch`` is a local folder to work in (default: the system's temporary one); on the file system of the
    checkpoints nothing is copied. Raises NotFound for an unknown stage, Corrupt naming a damaged file, Unavailable.
    """
    refuse_connect(spark)
    snapshot = require_stage(source, uid)
    tables = state_tables(source, uid)
    folder = Path(tempfile.mkdtemp(prefix="dagster-ckpt-state-", dir=scratch))
    try:
        directory = folder / uid
        build_stage_directory(source, snapshot, target_dir=directory)
        yield StageState(
            snapshot=snapshot, tables=tables, directory=directory, session=_fitting(spark, snapshot)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fitting(spark: SparkSession, snapshot: StageSnapshot) -> SparkSession:
    """Return a session of its own settings: state of one provider or format cannot be read with those of another."""
    session = spark.newSession()
    formats = snapshot.state_formats
    provider = _PROVIDERS.get(formats.get("provider", ""))
    if provider is not None:
        session.conf.set(f"{_STATE_STORE}.providerClass", provider)
    if "state_checkpoint_format" in formats:
        session.conf.set(f"{_STATE_STORE}.checkpointFormatVersion", formats["state_checkpoint_format"])
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


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
