"""A two-phase table: its description, state and publish log, read and written under one lock.

The log is a tree: every publish names its parent, and ``state.json`` names the head. The head's chain of
parents is the table's lineage; what is published outside it was rolled back.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from dagster_ckpt.core.ids import CoordinatorEpoch, PipelineId
from dagster_ckpt.errors import Corrupt, Fenced, InvalidRequest, NotFound
from dagster_ckpt.spark.files import create_durably, local_path, replace_whole
from dagster_ckpt.spark.sink.committables import encoded, read_record
from dagster_ckpt.spark.table.records import (
    Append,
    PublishRecord,
    TableDescription,
    TablePaths,
    TableState,
    Upsert,
)


class Table:
    """One two-phase table. Make it with ``open_table`` or ``create_table``; methods that write need
    ``locked``.
    """

    def __init__(self, root: Path, description: TableDescription) -> None:
        self.paths = TablePaths(root)
        self.pipeline = PipelineId(description.pipeline)
        self.mode: Append | Upsert = description.mode

    @property
    def uri(self) -> str:
        """The table's folder, as checkpoints name it."""
        return str(self.paths.root)

    @contextlib.contextmanager
    def locked(self) -> Iterator[TableState]:
        """Keep other publishers out, in all processes that share the file system; yields the state."""
        with self.paths.lock.open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield self.state()

    def state(self) -> TableState:
        """Return head and owner as they are now. Needs no lock: the file is replaced whole."""
        return read_record(TableState, self.paths.state) or TableState()

    def write_state(self, state: TableState) -> None:
        """Make ``state`` the current one, durably."""
        replace_whole(self.paths.state, encoded(state))

    def record(self, checkpoint_id: int) -> PublishRecord | None:
        """Return the publish of one checkpoint, or None."""
        return read_record(PublishRecord, self.paths.record(checkpoint_id))

    def add_record(self, record: PublishRecord) -> PublishRecord:
        """Write a publish record once; return the one that is there, which wins over ``record``."""
        self.paths.log.mkdir(parents=True, exist_ok=True)
        create_durably(self.paths.record(record.checkpoint_id), encoded(record))
        return self.record(record.checkpoint_id) or record

    def records(self) -> list[PublishRecord]:
        """Return all publishes, of every lineage, oldest id first."""
        found = (read_record(PublishRecord, path) for path in sorted(self.paths.log.glob("*.json")))
        return [record for record in found if record is not None]

    def lineage(self, head: int | None) -> list[PublishRecord]:
        """Return the publishes that ``head`` contains, newest first. Raises Corrupt when one is gone."""
        chain: list[PublishRecord] = []
        following = head
        while following is not None:
            record = self.record(following)
            if record is None:
                or_keep = ", or keep the rows (roll_back_tables: false)" if chain else ""
                raise Corrupt(
                    f"table {self.uri}: publish {following} is no longer in its log, so the rows of that time "
                    f"cannot be told apart; choose a later checkpoint{or_keep}"
                )
            chain.append(record)
            following = record.parent
        return chain


def open_table(uri: str) -> Table:
    """Return the table in a folder. Raises NotFound when none was created there."""
    root = local_path(uri)
    description = read_record(TableDescription, TablePaths(root).description)
    if description is None:
        raise NotFound(f"{uri} holds no two-phase table: start the pipeline that writes it first")
    return Table(root, description)


def create_table(uri: str, *, pipeline: PipelineId, mode: Append | Upsert) -> Table:
    """Return the table in a folder, made when it is not there yet.

    Raises InvalidRequest when the folder belongs to another pipeline, is a table of another mode, or holds
    Parquet files that nobody here published: rolling back could not tell them from its own.
    """
    root = local_path(uri)
    paths = TablePaths(root)
    if not paths.description.exists():
        _refuse_foreign_files(root)
        paths.meta.mkdir(parents=True, exist_ok=True)
        create_durably(paths.description, encoded(TableDescription(pipeline=pipeline, mode=mode)))
    table = open_table(uri)
    if table.pipeline != pipeline:
        raise InvalidRequest(
            f"table {uri} belongs to pipeline {table.pipeline!r}: give {pipeline!r} a table of its own"
        )
    if table.mode != mode:
        raise InvalidRequest(
            f"table {uri} was made as {table.mode!r}, not as {mode!r}: use a new folder for another mode"
        )
    return table


def refuse_fenced(table: Table, state: TableState, epoch: CoordinatorEpoch) -> None:
    """Raise Fenced when a newer attempt than ``epoch`` works on the table."""
    if epoch < state.epoch:
        raise Fenced(
            f"attempt {epoch} may not change table {table.uri}: attempt {state.epoch} has taken it over. "
            "Stop this run; the newer one publishes what is committed"
        )


def refuse_half_rolled_back(table: Table, state: TableState) -> None:
    """Raise InvalidRequest when a roll-back of the table began and did not end."""
    if state.rolling_back_to is not None:
        raise InvalidRequest(
            f"table {table.uri} is in the middle of a roll-back to checkpoint {state.rolling_back_to}: "
            "restore that checkpoint, or another one, to finish it"
        )


def _refuse_foreign_files(root: Path) -> None:
    foreign = next(iter(root.glob("*.parquet")), None)
    if foreign is not None:
        raise InvalidRequest(
            f"{root} already holds Parquet files that are not this table's ({foreign.name}): choose an "
            "empty folder"
        )
