"""A two-phase table: its description, state and publish log, read and written under one lock.

The log is a tree: every publish names its parent, and ``state.json`` names the head. The head's chain of
parents is the table's lineage; what is published outside it was rolled back.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

from dagster_ckpt.authoring.targets import META_FOLDER
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import Corrupt, Fenced, InvalidRequest, NotFound
from dagster_ckpt.spark.files import create_durably, local_path, replace_whole
from dagster_ckpt.spark.sink.committables import encoded, read_record
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.table.records import (
    Append,
    PublishRecord,
    TableDescription,
    TablePaths,
    TableState,
    Upsert,
)

PART = re.compile(r"part-[0-9]{6,}-[0-9]{10,}-[0-9]{5,}-[0-9a-f]{12}\.parquet")
"""Name of a published append file; anything else in the folder is not ours."""


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
        """Return the publish of one checkpoint, or None. Raises Corrupt for a file that is another one's."""
        path = self.paths.record(checkpoint_id)
        found = read_record(PublishRecord, path)
        is_in_order = found is None or found.parent is None or found.parent < checkpoint_id
        if found is not None and (found.checkpoint_id != checkpoint_id or not is_in_order):
            raise Corrupt(
                f"{path} says it is publish {found.checkpoint_id} on top of {found.parent}: it is not the file that "
                "was written there; restore the file, or restore into a new table"
            )
        return found

    def add_record(self, record: PublishRecord) -> PublishRecord:
        """Write a publish record once; return the one that is there when it names the same batches.

        Raises Corrupt when it names other files: somebody has published another history's checkpoint of this number.
        """
        self.paths.log.mkdir(parents=True, exist_ok=True)
        create_durably(self.paths.record(record.checkpoint_id), encoded(record))
        there = self.record(record.checkpoint_id) or record
        names = ({file.name for file in one.files} for one in (there, record))
        if there.lineage not in ("", record.lineage) or len(set(map(frozenset, names))) > 1:
            raise Corrupt(
                f"table {self.uri} has a publish of checkpoint {record.checkpoint_id} with other files (history "
                f"{there.lineage or 'unknown'}, this one {record.lineage or 'unknown'}): nothing was published. "
                "Restore a snapshot with restore_from, which goes on above every number seen"
            )
        return there

    def newest(self) -> int | None:
        """Return the highest checkpoint that was ever published to the table; None: none was."""
        numbers = [int(path.stem) for path in self.paths.log.glob("*.json") if path.stem.isdecimal()]
        return max(numbers, default=None)

    def visible(self) -> set[str]:
        """Return the names of the append files that readers see, by whomever they were published."""
        return {path.name for path in self.paths.root.glob("part-*.parquet") if PART.fullmatch(path.name)}

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


def open_own_table(uri: str, pipeline: PipelineId) -> Table:
    """Return the table in a folder. Raises NotFound when there is none, InvalidRequest for another pipeline's."""
    table = open_table(uri)
    if table.pipeline != pipeline:
        raise InvalidRequest(
            f"table {uri} belongs to pipeline {table.pipeline!r}: give {pipeline!r} a table of its own"
        )
    return table


def create_table(uri: str, *, pipeline: PipelineId, mode: Append | Upsert) -> Table:
    """Return the table in a folder, made when it is not there yet.

    Raises InvalidRequest when the folder belongs to another pipeline, is a table of another mode, or holds
    Parquet files that nobody here published: rolling back could not tell them from its own.
    """
    root = local_path(uri)
    paths = TablePaths(root)
    if not paths.description.exists():
        _refuse_foreign_files(root)
        _refuse_nested(root)
        paths.meta.mkdir(parents=True, exist_ok=True)
        create_durably(paths.description, encoded(TableDescription(pipeline=pipeline, mode=mode)))
    table = open_own_table(uri, pipeline)
    if table.mode != mode:
        raise InvalidRequest(
            f"table {uri} was made as {_told(table.mode)}, not as {_told(mode)}: give it a new folder, or move "
            "this one away and begin from nothing (restore_from: none)"
        )
    return table


def _told(mode: Append | Upsert) -> str:
    match mode:
        case Append():
            return "a table of all rows"
        case Upsert():
            return f"one row per key ({', '.join(mode.keys)}) in {mode.buckets} files"
        case _:
            assert_never(mode)


def refuse_fenced(table: Table, state: TableState, attempt: AttemptId) -> None:
    """Raise Fenced when a newer attempt than ``attempt``, or one of another history, works on the table."""
    is_other = state.lineage not in ("", attempt.lineage) and attempt.epoch == state.epoch
    if attempt.epoch < state.epoch or is_other:
        raise Fenced(
            f"attempt {attempt.epoch} may not change table {table.uri}: attempt {state.epoch}"
            f"{f' of history {state.lineage}' if is_other else ''} has taken it over. "
            "Stop this run; the newer one publishes what is committed"
        )


def refuse_written_through(table: Table, state: TableState) -> None:
    """Raise InvalidRequest for a table whose rows no checkpoint tells apart."""
    if state.written_through:
        raise InvalidRequest(
            f"table {table.uri} was written at least once, so no checkpoint can tell which rows are its own: exactly "
            "once needs a new folder (@spark_sink(table=...)), and a restore with restore_from 'none' to fill it"
        )


def refuse_half_rolled_back(table: Table, state: TableState) -> None:
    """Raise InvalidRequest when a roll-back of the table began and did not end."""
    if state.rolling_back_to is not None:
        raise InvalidRequest(
            f"table {table.uri} is in the middle of a roll-back to checkpoint {state.rolling_back_to}: "
            "restore that checkpoint, or another one, to finish it"
        )


def _refuse_foreign_files(root: Path) -> None:
    if TablePaths(root).state.exists() or TablePaths(root).log.exists():
        raise Corrupt(
            f"table {root} has lost {TablePaths(root).description}, which says whose it is: bring it back from a "
            "backup, or empty the folder and read all data again (restore_from = 'none')"
        )
    foreign = next(iter(root.glob("*.parquet")), None)
    if foreign is not None:
        raise InvalidRequest(
            f"{root} already holds Parquet files that are not this table's ({foreign.name}): choose an "
            "empty folder"
        )


def _refuse_nested(root: Path) -> None:
    """Raise InvalidRequest for a folder inside another table: that one's roll-backs would move files of this one."""
    outer = next(
        (up for up in root.parents if up.name == META_FOLDER or TablePaths(up).description.exists()), None
    )
    if outer is not None:
        raise InvalidRequest(f"table {root} would lie inside table {outer}: give it a folder beside that one")
