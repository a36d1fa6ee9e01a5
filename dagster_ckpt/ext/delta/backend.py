"""A Delta table behind the engine: a change is one commit, or some of which each says how far it came."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from dagster_ckpt.core.checkpoint.tables import id_since
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.delta.columns import (
    COLUMNS,
    delta_columns,
    refuse_table,
    schema_of,
    table_columns,
    wanted_bounds,
)
from dagster_ckpt.ext.delta.lake import Lake, Outside, committing, properties_of, reading
from dagster_ckpt.ext.delta.remote import staged_files
from dagster_ckpt.ext.delta.upsert import add_actions, store_of, upsert
from dagster_ckpt.ext.delta.version import DeltaVersion, Known
from dagster_ckpt.ext.tables.columns import Column
from dagster_ckpt.ext.tables.engine import Change, Halfway, OriginState
from dagster_ckpt.ext.tables.marks import Mark, SinkNames
from dagster_ckpt.ext.tables.staged_files import StagedFiles
from dagster_ckpt.ext.tables.version import State, refuse_gone
from dagster_ckpt.spark.sink.committables import from_last_replacing, shown_files

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction, RemoveAction


@dataclass(frozen=True)
class DeltaBackend:
    """One table as one sink works on it."""

    lake: Lake
    names: SinkNames
    work_dir: Path
    staged: StagedFiles
    key: tuple[str, ...] = ()
    keep_days: int = 0
    is_complete: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    """Of a table that is made here."""
    _known: Known = field(default_factory=Known, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        lake: Lake,
        names: SinkNames,
        work_dir: Path,
        *,
        key: tuple[str, ...] = (),
        keep_days: int = 0,
        is_complete: bool = False,
        properties: dict[str, str] | None = None,
    ) -> DeltaBackend:
        """Return the backend, with the files that are staged for the table."""
        staged = staged_files(lake, names, work_dir)
        return cls(lake, names, work_dir, staged, key, keep_days, is_complete, properties or {})

    @property
    def place(self) -> str:
        """The table's path or URI."""
        return self.lake.uri

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Columns whose values are folders of staged files."""
        return () if self.key else self.lake.partition_by

    @property
    def only_appends(self) -> bool:
        """True where no file ever leaves the table, but by a roll-back."""
        return not (self.key or self.is_complete)

    def load(self, *, reads_on: bool = False) -> DeltaVersion | None:
        """Return the newest version, or None where there is no table."""
        found = self.lake.newest(reads_on=reads_on)
        if found is None:
            return None
        table, entry = found
        self._known.follow(entry, self.names)
        return DeltaVersion(self.place, self.names, self.lake, table, entry, self._known)

    def elsewhere(self, place: str) -> DeltaBackend:
        """Return another table, reached in the same way."""
        return self.of(self.lake.elsewhere(place), self.names, self.work_dir, key=self.key)

    # --- columns ----------------------------------------------------------------------------------------------

    def columns(self, what: Sequence[str] | OriginState) -> list[Column]:
        """Return the columns of batches with these schemas together, or those of a version."""
        if isinstance(what, OriginState):
            return table_columns(what.source.lake.at(what.number))
        return delta_columns(what, self.key, self.lake.partition_by)

    def refuse_unfit(self, version: DeltaVersion, columns: Sequence[Column]) -> None:
        """Raise InvalidRequest for rows that this table cannot take."""
        partition_by = None if self.key else self.lake.partition_by
        refuse_table(version.table, self.place, only_appends=self.only_appends, partition_by=partition_by)
        if not self.is_complete:  # else all rows go with each batch, and the columns with them
            added = [column["name"] for column in self._new_columns(version.table, columns)]
            refuse_gone(self.place, added, self._shown_columns(version) if added else ())

    def _new_columns(self, table: DeltaTable, columns: Sequence[Column]) -> list[Column]:
        return COLUMNS.added(columns, table_columns(table), self.place)

    def _shown_columns(self, version: DeltaVersion) -> set[str]:
        """Return the columns of the newest version of ours; none where the log cannot show it any more."""
        if version.shown is None:
            return set()
        try:
            return {column["name"] for column in table_columns(self.lake.at(version.shown.number))}
        except Corrupt:
            return set()

    # --- commits ----------------------------------------------------------------------------------------------

    def create(self, columns: Sequence[Column], mark: Mark) -> None:
        """Make the table, without rows, unless somebody did."""
        self.lake.create(schema_of(columns), self.properties | wanted_bounds(columns, self.key), mark)

    def commit(self, version: DeltaVersion, change: Change) -> str:
        """Commit on top of exactly this version; going back, and new columns, are commits of their own."""
        number = version.number
        actions: Sequence[AddAction | RemoveAction] = ()
        if change.goes_back:
            newer = self._go_back(version, change)
            if newer or change.between is not None:
                raise Halfway
        elif change.batches:
            actions = self._add(version, change)
        elif change.copied is not None:
            rows = change.copied.source.lake.at(change.copied.number).scan()
            _commit(version, change.mark, lambda table, p: Outside.replace_rows(table, rows, p))
        elif change.properties:
            _commit(version, change.mark, lambda t, p: Outside.set_properties(t, change.properties, p))
        else:
            _commit(version, change.mark, lambda table, p: Outside.write(table, [], p))
        if version.entry:
            self.lake.leave_committed(version.table, number + 1, change.mark, actions)
        return str(number + 1)

    def _go_back(self, version: DeltaVersion, change: Change) -> dict[str, str]:
        """Return the properties that have to be set again after it."""
        mark, to = change.between or change.mark, change.back_to
        if to is None:
            _commit(version, mark, lambda table, p: Outside.write(table, [], p, mode="overwrite"))
            return mark.reapply
        # Delta restores the properties with the rows; those that are newer are set again by a commit on top.
        then = self.lake.at(to).metadata().configuration
        now = version.table.metadata().configuration
        newer = {name: value for name, value in now.items() if then.get(name) != value}
        mark = mark.model_copy(update={"reapply": mark.reapply | newer})
        _commit(version, mark, lambda table, p: Outside.restore(table, to, p))
        return mark.reapply

    def _add(self, version: DeltaVersion, change: Change) -> Sequence[AddAction | RemoveAction]:
        table = version.table
        files, replaces = shown_files(change.batches)
        columns = self.columns([batch.row_schema for batch in from_last_replacing(change.batches)[0]])
        extra = [] if replaces else self._new_columns(table, columns)
        if extra:
            mark = version.next_mark(change.mark.position().attempt)
            _commit(version, mark, lambda t, p: Outside.add_columns(t, schema_of(extra), p))
            raise Halfway
        # Rows by key have no folders of partitions, also those that replace all.
        rewrites = bool(self.key) and (not replaces or bool(table.metadata().partition_columns))
        actions: Sequence[AddAction | RemoveAction]
        if rewrites:
            self.staged.refuse_changed(files, are_named=False)
            least = id_since(time.time() - self.keep_days * 86_400) if self.keep_days else ""
            actions = upsert(table, self.staged, files, key=self.key, is_alone=replaces, least=least)
        else:
            actions = add_actions(table, self.staged, files)
        mode = "overwrite" if replaces else "append"
        schema = schema_of(columns if replaces else table_columns(table))
        mark = change.mark.model_copy(update={"rewrites": rewrites})
        _commit(version, mark, lambda t, p: Outside.write(t, actions, p, mode=mode, schema=schema))
        return actions

    # --- older versions ---------------------------------------------------------------------------------------

    def read(self, version: DeltaVersion, number: int | None) -> pa.Table | None:
        """Return the rows of a version; None: of before there was one."""
        if number is None:
            return None
        table = version.table if number == version.number else self.lake.at(number)
        store, folder = store_of(self.staged)
        # delta-rs's own file system is one of Python, which aborts a process that ends while pyarrow's threads hold it.
        files = pafs.SubTreeFileSystem(folder, store)
        with reading(self.place):
            try:
                return table.to_pyarrow_table(filesystem=files).replace_schema_metadata()
            except FileNotFoundError as error:
                raise Corrupt(
                    f"table {self.place} can no longer show version {number}: {error}. Choose a later checkpoint, or "
                    "load the newest rows"
                ) from error

    def refuse_lost(self, version: DeltaVersion, state: State | None) -> None:
        """Raise Corrupt where the files of a version are gone; in an object store the restore itself finds that out."""
        now = version.table.metadata().configuration
        if now.get("delta.appendOnly") == "true":
            raise InvalidRequest(
                f"table {self.place} cannot go back: it only takes appends (delta.appendOnly)"
            )
        if now.get("delta.columnMapping.mode", "none") != "none":
            raise InvalidRequest(
                f"table {self.place} cannot go back: its columns are mapped to other names by now, which delta-rs "
                "cannot write. RESTORE it with Spark to a version from before, or keep its rows (roll_back_tables: "
                "false)"
            )
        if state is None:
            return
        old, root = names_of(self.lake.at(state.number)), self.lake.root
        if root is None:
            return
        there = set(names_of(version.table))
        lost = next((name for name in old if name not in there and not (root / name).exists()), None)
        if lost is not None:
            raise Corrupt(
                f"{root / lost} is gone: table {self.place} cannot show version {state.number} any more; choose a "
                "later checkpoint"
            )


def names_of(table: DeltaTable) -> list[str]:
    """Return the names of a version's files, relative to the table: the log has them as parts of a URI."""
    return [unquote(str(name)) for name in table.get_add_actions(flatten=True).column("path").to_pylist()]


def _commit(version: DeltaVersion, mark: Mark, act: Callable[[DeltaTable, CommitProperties], None]) -> None:
    """Commit on top of exactly this version. Raises Raced when that is no longer the newest."""
    number = version.number
    with committing(version.place):
        act(version.table, properties_of(mark))
    version.lake.has_committed(number + 1)
