"""A stage's state at a snapshot, as DataFrames: read by Spark's ``statestore`` source from the saved copy.

The pipeline may run on meanwhile: nothing of its working directory is touched. The copy is built (hard links
where that is possible) into a folder that lives as long as the ``StageState``; DataFrames are lazy, so use them within.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.snapshots.contents import StatefulOperator, operators_of, require_stage
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import spark_uri
from dagster_ckpt.spark.session import HDFS_PROVIDER, ROCKSDB_PROVIDER, refuse_connect
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
