"""A Delta table: loaded, made, committed to; the calls of delta-rs, and what its errors mean."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import (
    CheckpointError,
    Corrupt,
    InvalidRequest,
    OutcomeUnknown,
    Unavailable,
    install_extra,
    with_room,
)
from dagster_ckpt.ext.tables.engine import Raced
from dagster_ckpt.ext.tables.marks import Mark

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
    from deltalake.transaction import AddAction, RemoveAction

_CHECKPOINT_INTERVAL = 100
"""The default of delta-rs."""

_FRESH = 1.0
"""Seconds for which what an object store said is not asked again: a commit is refused where it is no longer so."""
_UNREACHABLE = re.compile(r"[\x00-\x1f\[\]\\^|]|%[0-9A-Fa-f]{2}")
"""What delta-rs reads otherwise than the file system does: it makes a URI of a path, and a path of that."""


def client() -> Any:
    """Return the module ``deltalake``. Raises InvalidRequest where it is not installed."""
    try:
        import deltalake
    except ImportError as error:
        raise InvalidRequest(
            f"tables need the package deltalake, which the extra 'spark' brings: {install_extra('spark')}"
        ) from error
    return deltalake


class Outside:
    """The calls of delta-rs that commit; nothing else of this package changes a table."""

    @staticmethod
    def create(
        lake: Lake, schema: Schema, configuration: dict[str, str], properties: CommitProperties
    ) -> None:
        """Make the table: version 0, without rows."""
        client().DeltaTable.create(
            lake.uri,
            schema=schema,
            partition_by=list(lake.partition_by),
            configuration=configuration,
            storage_options=lake.storage_options,
            commit_properties=properties,
        )

    @staticmethod
    def write(
        table: DeltaTable,
        actions: Sequence[AddAction | RemoveAction],
        properties: CommitProperties,
        *,
        mode: str = "append",
        schema: Schema | None = None,
    ) -> None:
        """Add and remove files; with the mode ``overwrite`` all others go, and the columns may be others."""
        table.create_write_transaction(
            list(actions),
            mode,
            schema if schema is not None else table.schema(),
            table.metadata().partition_columns,
            commit_properties=properties,
            post_commithook_properties=Outside._hooks(table),
        )

    @staticmethod
    def _hooks(table: DeltaTable) -> PostCommitHookProperties | None:
        """Return the hooks after a commit: all that delta-rs does, but only when a checkpoint of the log is due.

        Finding out takes it as long as the commit.
        """
        said = table.metadata().configuration.get("delta.checkpointInterval", "")
        interval = int(said) if said.isdecimal() and int(said) else _CHECKPOINT_INTERVAL
        is_due = (table.version() + 2) % interval == 0
        none: PostCommitHookProperties = client().PostCommitHookProperties(
            create_checkpoint=False, cleanup_expired_logs=False
        )
        return None if is_due else none

    @staticmethod
    def add_columns(table: DeltaTable, columns: Schema, properties: CommitProperties) -> None:
        """Add columns."""
        table.alter.add_columns(columns.fields, commit_properties=properties)

    @staticmethod
    def restore(table: DeltaTable, version: int, properties: CommitProperties) -> None:
        """Show an older version."""
        table.restore(version, commit_properties=properties)

    @staticmethod
    def set_properties(table: DeltaTable, said: dict[str, str], properties: CommitProperties) -> None:
        """Set properties of the table, also those that delta-rs does not know."""
        table.alter.set_table_properties(said, raise_if_not_exists=False, commit_properties=properties)

    @staticmethod
    def compact(table: DeltaTable) -> dict[str, Any]:
        """Merge small files; a commit that leaves the rows as they are."""
        done: dict[str, Any] = table.optimize.compact()
        return done

    @staticmethod
    def vacuum(table: DeltaTable, keep_versions: Sequence[int], *, is_full: bool = False) -> list[str]:
        """Remove files that left the table, when its own retention is over; never those of these versions.

        ``is_full``: also those that the log no longer tells of, which takes a list of the folder.
        """
        return table.vacuum(dry_run=False, keep_versions=list(keep_versions), full=is_full)

    @staticmethod
    def replace_rows(table: DeltaTable, rows: Any, properties: CommitProperties) -> None:
        """Write these rows instead of all there are."""
        client().write_deltalake(
            table, rows, mode="overwrite", schema_mode="overwrite", commit_properties=properties
        )


@dataclass(frozen=True)
class LeftOpen:
    """A table whose log was read, for the next who needs it."""

    table: DeltaTable
    version: int
    """The newest one that is known, which the table may not have been read as yet."""
    said: dict[str, Any]
    """What its entry in the log says, or a part of it: a table that was put back, or made again, has another."""
    since: float
    """Moment of that, in the time of the process."""
    entry: dict[str, Any]
    """The whole of it, where the table was read as this version."""
    added: str = ""
    """A file that this version was committed with, where the table was not read as it; empty: there is none."""

    def is_read_on(self) -> bool:
        """Tell whether the table was read as this version since, and as the one that was committed."""
        is_there = bool(self.added) and self.table.version() == self.version
        return is_there and any(uri.endswith(f"/{self.added}") for uri in self.table.file_uris())


@dataclass(frozen=True)
class Lake:
    """A table, by its address."""

    uri: str
    partition_by: tuple[str, ...] = ()
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    left: list[LeftOpen] = field(default_factory=list, repr=False, compare=False)
    """What the last caller read the table with."""
    committed: list[int] = field(default_factory=list, repr=False, compare=False)
    """The newest version that was committed by this object; empty: none was."""

    def __post_init__(self) -> None:
        """Raise InvalidRequest for a folder that delta-rs takes for another one."""
        if self.root is not None and (found := _UNREACHABLE.search(self.uri)):
            raise InvalidRequest(
                f"delta-rs cannot write to a folder with {found[0]!r} in its name: give table {self.uri!r} another one"
            )

    @property
    def root(self) -> Path | None:
        """The table's folder, where it is one."""
        return None if "://" in self.uri else Path(self.uri)

    def newest(self, *, reads_on: bool = False) -> tuple[DeltaTable, dict[str, Any]] | None:
        """Return the table as of its newest version, with what the log says of that one; None: there is no table.

        ``reads_on``: from where the last caller let it go, if the log is still the same; without it nothing is said.
        """
        errors = client().exceptions
        if self.root is not None and not (self.root / "_delta_log").is_dir():
            return None
        with reading(self.uri):
            try:
                found = self._read_on() if reads_on else None
                if found is not None:
                    return found
                table = client().DeltaTable(self.uri, storage_options=self.storage_options)
            except errors.TableNotFoundError:
                return None
            return table, self.history(table, 1)[0] if reads_on else {}

    def _read_on(self) -> tuple[DeltaTable, dict[str, Any]] | None:
        """Return the table that was let go, read on; None: there is none, or its log was put back."""
        try:
            left = self.left.pop()  # nobody else has it then
        except IndexError:
            return None
        is_remote = self.root is None
        if is_remote and left.entry and time.monotonic() - left.since < _FRESH:
            return left.table, left.entry
        try:
            if is_remote and left.table.version() == left.version:
                found = left.table.history(1)  # with all that are newer
                if len(found) == 1 and _says(found[0], left.said):
                    return left.table, {**found[0], "version": left.version}
            left.table.update_incremental()
            if is_remote and left.is_read_on():
                return left.table, {**left.said, "version": left.version}
            back = left.table.version() - left.version
            found = self.history(left.table, back + 1) if back >= 0 else []
        except (client().exceptions.DeltaError, CheckpointError):
            return None  # read from its start, it says why
        is_same = len(found) > back >= 0 and _says(found[back], left.said)
        return (left.table, found[0]) if is_same else None

    def leave(self, table: DeltaTable, number: int, entry: dict[str, Any]) -> None:
        """Let the next caller read on from a table whose use is over, and whose newest version says this.

        Nobody reads on from a version that was read before a commit of ours.
        """
        if not self.committed or number >= self.committed[0]:
            self.left[:] = [LeftOpen(table, number, entry, time.monotonic(), entry)]

    def leave_committed(self, table: DeltaTable, number: int, mark: Mark, actions: Sequence[Any]) -> None:
        """Likewise from a version that was committed with this mark, and which the table was not read as."""
        added = next((one.path for one in actions if isinstance(one, client().transaction.AddAction)), "")
        self.left[:] = [LeftOpen(table, number, mark.fields(), time.monotonic(), {}, added)]

    def has_committed(self, number: int) -> None:
        """Have the next caller ask the store: version ``number`` was committed."""
        self.committed[:] = [number]
        self.left.clear()

    def _entry(self, number: int) -> bytes:
        """Return the log's entry of a version; empty: it is gone, or the table lies in an object store."""
        if self.root is None:
            return b""
        try:
            return (self.root / "_delta_log" / f"{number:020d}.json").read_bytes()
        except FileNotFoundError:
            return b""

    def history(self, table: DeltaTable, limit: int | None) -> list[dict[str, Any]]:
        """Return the log's entries about their commits, newest first, as far as it reaches back.

        Of a table in a folder they are read here: delta-rs finds none where its name has ``#`` or ``?``.
        """
        with reading(self.uri):
            return (
                entries_of(table, limit) if self.root is None else list(self._infos(table.version(), limit))
            )

    def _infos(self, newest: int, limit: int | None) -> Iterator[dict[str, Any]]:
        oldest = 0 if limit is None else max(0, newest + 1 - limit)
        for number in range(newest, oldest - 1, -1):
            entry = self._entry(number)
            if not entry:
                return
            yield {**_info(entry, f"version {number} of table {self.uri}"), "version": number}

    def at(self, version: int) -> DeltaTable:
        """Return the table as of an older version. Raises Corrupt where the log has lost it."""
        try:
            table: DeltaTable = client().DeltaTable(
                self.uri, version=version, storage_options=self.storage_options
            )
        except client().exceptions.DeltaError as error:
            raise Corrupt(
                f"table {self.uri} can no longer show version {version}: {error}. Choose a later checkpoint"
            ) from error
        return table

    def create(self, schema: Schema, configuration: dict[str, str], mark: Mark) -> None:
        """Make the table, with these properties and without rows, unless somebody did.

        Raises InvalidRequest inside another one.
        """
        above = [] if self.root is None else self.root.parents
        outer = next((folder for folder in above if (folder / "_delta_log").is_dir()), None)
        if outer is not None:
            raise InvalidRequest(
                f"table {self.uri} would lie inside table {outer}, whose VACUUM would remove its files: give it a "
                "folder beside that one"
            )
        with contextlib.suppress(Raced), committing(self.uri):
            Outside.create(self, schema, configuration, properties_of(mark))

    def elsewhere(self, uri: str) -> Lake:
        """Return another table, reached in the same way."""
        return replace(self, uri=uri, left=[], committed=[])


def _says(entry: dict[str, Any], said: dict[str, Any]) -> bool:
    return all(entry.get(name) == value for name, value in said.items() if name != "version")


def _info(entry: bytes, what: str) -> dict[str, Any]:
    """Return a log entry's facts about its commit. Raises Corrupt for one that is no JSON."""
    for line in entry.splitlines():
        if line.lstrip().startswith(b'{"commitInfo"'):
            try:
                said: dict[str, Any] = parse_json(line)["commitInfo"]
            except (ValueError, TypeError) as error:
                raise Corrupt(
                    f"{what} has a damaged entry in its log: {error}. Bring the log back"
                ) from error
            return said
    return {}


def properties_of(mark: Mark) -> CommitProperties:
    """Return the properties of a commit; without retries, so that it never lands on what was not read."""
    transactions = []
    if mark.checkpoint is not None:
        transactions = [client().Transaction(app_id(mark.owned_by, mark.lineage), mark.checkpoint)]
    properties: CommitProperties = client().CommitProperties(
        custom_metadata=mark.fields(), max_commit_retries=0, app_transactions=transactions
    )
    return properties


def app_id(owner: str, lineage: str) -> str:
    """Return the application id of a history's publishes in Delta's own transaction list."""
    return f"dagster_ckpt/{owner}/{lineage}"


def entries_of(table: DeltaTable, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the log's entries of the version that was read and those before it, newest first, by their own numbers.

    delta-rs lists the log again, finds what others have committed since too, and counts from the version that was read
    all the same: a commit that came in between would be taken for that version.
    """
    own: dict[str, Any] = table.history(1)[-1]
    number = table.version()
    found = [own] if limit == 1 else table.history(limit)
    later = next(
        (n for n, entry in enumerate(found) if {**entry, "version": 0} == {**own, "version": 0}), None
    )
    if later is None:
        raise Unavailable(f"the log of table {table.table_uri} became another one while it was read: retry")
    return [{**entry, "version": number - back} for back, entry in enumerate(found[later:][:limit])]


@contextlib.contextmanager
def reading(uri: str) -> Iterator[None]:
    """Turn the client's failures while reading into the library's."""
    errors = client().exceptions
    try:
        yield
    except CheckpointError:
        raise
    except errors.DeltaProtocolError as error:
        raise InvalidRequest(f"table {uri} uses what delta-rs cannot read: {error}") from error
    except (errors.DeltaError, OSError) as error:
        raise Unavailable(f"table {uri} could not be read: {_said(error)}. It is tried again") from error


@contextlib.contextmanager
def committing(uri: str) -> Iterator[None]:
    """Turn the client's failures while committing into the library's; Raced where another commit was first."""
    errors = client().exceptions
    try:
        yield
    except CheckpointError:
        raise
    except errors.CommitFailedError as error:
        raise Raced from error
    except errors.SchemaMismatchError as error:
        raise InvalidRequest(f"the rows do not fit table {uri}: {error}") from error
    except (errors.DeltaError, OSError) as error:
        said = "" if isinstance(error, OSError) else str(error)
        if isinstance(error, errors.DeltaProtocolError) or "not supported" in said:
            raise InvalidRequest(
                f"table {uri} uses what delta-rs cannot write: {error}. Write to a table without it"
            ) from error
        if "already exists" in said:
            raise Raced from error
        if "missing file" in said:
            raise Corrupt(
                f"table {uri} has lost rows of this version: {error}. Choose a later checkpoint"
            ) from error
        raise OutcomeUnknown(
            f"a commit to table {uri} failed and may have happened: {_said(error)}. It is repeated: it is idempotent"
        ) from error


def _said(error: Exception) -> str:
    """Return the sentence of the client on one line, without arrows and colors; with the way out of a full disk."""
    return with_room(re.sub(r"\s*(?:\x1b\[[\d;]*m)*↳(?:\x1b\[[\d;]*m)*\s*", ": ", str(error)).strip())
