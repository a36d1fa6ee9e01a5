"""Staged files that become part of a table where they lie: below its folder, or uploaded before they are acknowledged.

Of tables with a log of their own (Delta, Iceberg): a commit names the files.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_ckpt.core.ids import CoordinatorEpoch
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.digests import digest_of
from dagster_ckpt.errors import Corrupt, OutcomeUnknown, Unavailable
from dagster_ckpt.ext.tables.rewrite import latest_rows
from dagster_ckpt.spark.channel.schema import arrow_schema, parsed_schema
from dagster_ckpt.spark.files import batch_of, map_in_parallel, run_in_parallel
from dagster_ckpt.spark.sink.accepts import NO_VALUE
from dagster_ckpt.spark.sink.committables import PreparedBatch, TableFile
from dagster_ckpt.spark.sink.staged_rows import flush_staged, refuse_other_content

STAGED = "_dagster_ckpt/staged"
"""Below the table's folder: clean-ups (VACUUM, remove_orphan_files) and readers of plain Parquet pass over names that
begin with an underscore."""
_PIECE = 8 * 1024 * 1024
_TRANSFERS = 8
"""Files on their way to or from an object store at a time: each waits for answers most of its time."""
READ_WHOLE = 32 * 1024 * 1024
"""Bytes of a file whose rows are fetched from an object store with one request."""
_UPLOADED = "uploaded"
"""Below the sink's own folder: what it has uploaded, so that its publish need not fetch it again."""
_AT_ONCE = 64 * 1024 * 1024
"""Bytes of staged files whose rows are in memory together."""


@dataclass(frozen=True)
class StagedFolder:
    """One micro-batch's staged files, of one try."""

    path: str
    """Relative to the table."""
    epoch: int
    batch_id: int


@dataclass(frozen=True)
class StagedFiles:
    """Where a table's rows are staged. Names are relative to the table, wherever the files are by now."""

    place: str
    """The table, for people."""
    table_dir: Path | None
    """The table's folder; None: it lies in an object store."""
    work_dir: Path
    open_store: Callable[[], tuple[Any, str]]
    """Returns the object store as a file system of pyarrow, and the table's folder in it."""
    area: str = STAGED
    """Folder of all staged files, relative to the table."""
    former_areas: tuple[str, ...] = ()
    """Those of the sink's earlier names, which are as deep: nothing is staged there any more."""

    @property
    def root(self) -> Path:
        """Folder that Spark writes below: the table's, or where it lies in an object store the sink's own."""
        return self.table_dir if self.table_dir is not None else self.work_dir

    def folder(self, epoch: CoordinatorEpoch) -> Path:
        """Return where an attempt stages."""
        return self.root / self.area / str(int(epoch))

    def flush(self, files: Sequence[TableFile]) -> None:
        """Make these files survive this machine: to disk, or into the table's object store. Raises Corrupt."""
        if self.table_dir is None:
            self.upload(files)
            return
        try:
            flush_staged([self.root / file.staged for file in files])
        except FileNotFoundError as error:
            raise Corrupt(
                f"{error.filename} is gone: it cannot be published; restore another checkpoint"
            ) from error

    def upload(self, files: Iterable[TableFile]) -> None:
        """Upload what is not in the table's object store yet; nothing for a table on a disk."""
        here = (
            [file for file in files if (self.root / file.staged).exists()] if self.table_dir is None else []
        )

        def one(file: TableFile) -> None:
            local, copy = self.root / file.staged, self._copy(file)
            upload(self, local, file.staged)
            copy.parent.mkdir(parents=True, exist_ok=True)
            local.replace(copy)

        run_in_parallel(one, here, parallelism=_TRANSFERS)
        for folder in {folder_of(file.staged, self.area) for file in here}:
            if not any((self.root / folder).rglob("*.parquet")):
                shutil.rmtree(self.root / folder, ignore_errors=True)

    def _copy(self, file: TableFile) -> Path:
        return self.work_dir / _UPLOADED / file.staged

    def forget_copies(self, files: Iterable[TableFile] | None = None) -> None:
        """Remove the copies of uploaded files from this disk; None: all, also those of another process."""
        if self.table_dir is not None:
            return
        if files is None:
            shutil.rmtree(self.work_dir / _UPLOADED, ignore_errors=True)
            return
        for folder in {
            folder_of(file.staged, self.area) for file in files
        }:  # a batch's: with those of partitions
            shutil.rmtree(self.work_dir / _UPLOADED / folder, ignore_errors=True)

    def copy_from(self, origin: StagedFiles, file: TableFile) -> None:
        """Stage what another table has staged, under the same name."""
        target = self.root / file.staged
        target.parent.mkdir(parents=True, exist_ok=True)
        with origin.open(file) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, _PIECE)

    @cached_property
    def store(self) -> tuple[Any, str]:
        """The table's object store, and the table's folder in it."""
        return self.open_store()

    def remote(self, name: str) -> tuple[Any, str]:
        """Return the store, and a name's place in it."""
        store, folder = self.store
        return store, f"{folder}/{name}"

    def _open(self, file: TableFile) -> Any:
        local = self.root / file.staged
        # By pyarrow itself: its threads may still hold a Python file when the process ends, which aborts it.
        if self.table_dir is not None:
            return pa.OSFile(str(local))
        for here in (local, self._copy(file)):
            with contextlib.suppress(FileNotFoundError):
                return pa.OSFile(str(here))
        store, path = self.remote(file.staged)
        return store.open_input_file(path)

    @contextlib.contextmanager
    def open(self, file: TableFile) -> Iterator[Any]:
        """Open a staged file, wherever it is. Raises Corrupt when it is gone."""
        try:
            with self._open(file) as handle:
                yield handle
        except FileNotFoundError as error:
            raise Corrupt(_gone(self.place, file)) from error
        except pa.ArrowInvalid as error:
            raise Corrupt(
                f"{self.place}/{file.staged} is damaged: {error}; restore an earlier one"
            ) from error
        except OSError as error:
            raise Unavailable(f"{self.place}/{file.staged} could not be read: {error}") from error

    def footer(self, file: TableFile) -> pq.FileMetaData:
        """Return a file's footer."""
        with self.open(file) as handle:
            return pq.read_metadata(handle)

    def footers(self, files: Sequence[TableFile]) -> list[pq.FileMetaData]:
        """Return the footers of these files, which a table is to name. Raises Corrupt as ``refuse_changed`` does."""
        self.refuse_changed(files)
        return map_in_parallel(self.footer, files, parallelism=_TRANSFERS)

    def refuse_changed(self, files: Sequence[TableFile], *, are_named: bool = True) -> None:
        """Raise Corrupt, naming it, where a file is gone or not what was staged.

        Reads all of them; in an object store those that this machine has no copy of. Of the others the size is asked,
        unless their rows alone are taken: ``are_named`` in the table.
        """
        if are_named:
            self._refuse_gone(files)

        def one(file: TableFile) -> None:
            with self.open(file) as handle:
                refuse_other_content(file, digest_of(handle), f"{self.place}/{file.staged}")

        run_in_parallel(one, files, parallelism=_TRANSFERS)

    def _refuse_gone(self, files: Sequence[TableFile]) -> None:
        """A table is told of files where they are stored: the copy that is read here says nothing about that."""
        uploaded = [] if self.table_dir is not None else [f for f in files if self._copy(f).exists()]
        if not uploaded:
            return
        store, _ = self.store
        try:
            infos = store.get_file_info([self.remote(file.staged)[1] for file in uploaded])
        except OSError as error:
            raise Unavailable(f"{self.place} could not be asked for staged files: {error}") from error
        for file, info in zip(uploaded, infos, strict=True):
            if not info.is_file:
                raise Corrupt(_gone(self.place, file))
            if info.size != file.bytes:
                raise Corrupt(
                    f"{self.place}/{file.staged} has {info.size} bytes and had {file.bytes}; restore an earlier one"
                )

    def rows(self, file: TableFile) -> pa.Table:
        """Return a file's rows."""
        with self.open(file) as handle:
            whole = file.bytes <= READ_WHOLE and not isinstance(handle, pa.OSFile)
            source = pa.BufferReader(handle.read_buffer()) if whole else handle
            return pq.read_table(source, partitioning=None, coerce_int96_timestamp_unit="us")

    def rows_of(self, files: Sequence[TableFile]) -> list[pa.Table]:
        """Return the rows of each file, without Spark's note on their schema. Raises Corrupt when one is gone."""
        return map_in_parallel(
            lambda file: self.rows(file).replace_schema_metadata(), files, parallelism=_TRANSFERS
        )

    def rows_of_batches(self, batches: Sequence[PreparedBatch]) -> list[pa.Table]:
        """Return the rows of each file of these batches, as ``rows_of_batch`` has them."""
        files = [(batch, file) for batch in batches for file in batch.files]
        return map_in_parallel(lambda one: self.rows_of_batch(*one), files, parallelism=_TRANSFERS)

    def rows_of_batch(self, batch: PreparedBatch, file: TableFile) -> pa.Table:
        """Return the rows of one of a batch's files, with the columns that its folders alone say."""
        rows, values = self.rows(file).replace_schema_metadata(), partition_values(file.staged)
        for column in arrow_schema(parsed_schema(batch.row_schema)) if values else ():
            if column.name in values and column.name not in rows.column_names:
                said = pa.array([values[column.name]] * rows.num_rows, pa.string())
                rows = rows.append_column(column, said.cast(column.type))
        return rows

    def latest_rows(self, files: Sequence[TableFile], key: Sequence[str]) -> pa.Table:
        """Return the last row of each key, of files in the order of their batches.

        Not all of them are in memory at once: a stream that catches up leaves many between two checkpoints.
        """
        latest: list[pa.Table] = []
        for group in _groups(files):
            parts = [*latest, *self.rows_of(group)]
            latest = [latest_rows(pa.concat_tables(parts, promote_options="default"), key)]
        return latest[0]

    def folders(self) -> list[StagedFolder]:
        """Return the folders staged in the table, published or not."""
        return [folder for area in (self.area, *self.former_areas) for folder in self._folders(area)]

    def folder_of(self, name: str) -> str:
        """Return the staged folder that a file, by its name, lies in; a path that is none for all other files."""
        return folder_of(name, self.area)

    def not_waiting(
        self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]
    ) -> list[StagedFolder]:
        """Return the staged folders of which no cut, and no batch that is still to be published, needs a file."""
        prepared = {batch for snapshot in needed for batch in snapshot.prepared}
        kept = {self.folder_of(file.staged) for batch in waiting for file in batch.files}
        return [f for f in self.folders() if f.batch_id not in prepared and f.path not in kept]

    def _folders(self, area: str) -> list[StagedFolder]:
        found = [path.as_posix() for path in (self.root / area).glob("*/batch-*")]
        if self.table_dir is None:
            import pyarrow.fs as pafs

            store, path = self.remote(area)
            infos = store.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
            names = (info.path[len(path) - len(area) :] for info in infos if info.is_file)
            found += [folder_of(name, area) for name in names]
        named = sorted({path[path.rindex(area) :] for path in found})
        return [folder for path in named if (folder := _folder(path, area)) is not None]

    def written_at(self, folder: StagedFolder) -> float:
        """Return when a folder's files were staged, as seconds since 1970."""
        if self.table_dir is not None:
            return (self.table_dir / folder.path).stat().st_mtime
        import pyarrow.fs as pafs

        store, path = self.remote(folder.path)
        infos = store.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
        return max((info.mtime_ns / 1e9 for info in infos if info.is_file), default=0.0)

    def remove(self, folder: StagedFolder) -> None:
        """Remove a folder with all that is in it."""
        shutil.rmtree(self.root / folder.path, ignore_errors=True)
        if self.table_dir is None:
            shutil.rmtree(self.work_dir / _UPLOADED / folder.path, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                store, path = self.remote(folder.path)
                store.delete_dir(path)


def partition_values(path: str) -> dict[str, str | None]:
    """Return the partition's values in the folders of a path, as Spark writes them (``country=DE/``)."""
    pairs = (part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return {unquote(name): None if value == NO_VALUE else unquote(value) for name, value in pairs}


def areas_of(pipeline: str, uids: Iterable[str]) -> tuple[str, ...]:
    """Return the folder of a sink's staged files under each of its names, relative to the table."""
    return tuple(f"{STAGED}/{pipeline}/{uid}" for uid in uids)


def _gone(place: str, file: TableFile) -> str:
    return f"{place}/{file.staged} is gone: its rows cannot be published; restore another checkpoint"


def _groups(files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Yield the files in their order, in groups of some bytes."""
    group: list[TableFile] = []
    for file in files:
        if group and sum(one.bytes for one in group) + file.bytes > _AT_ONCE:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def upload(staged: StagedFiles, local: Path, name: str) -> None:
    """Copy a local file into the table's object store; a file that is there already is written again."""
    try:
        store, path = staged.remote(name)
        with local.open("rb") as source, store.open_output_stream(path) as target:
            shutil.copyfileobj(source, target, _PIECE)
    except OSError as error:
        raise OutcomeUnknown(f"staging {name} in {staged.place} failed: {error}. It is repeated") from error


def folder_of(file: str, area: str = STAGED) -> str:
    """Return the staged folder that a file lies in."""
    return "/".join(file.split("/")[: area.count("/") + 3])


def _folder(path: str, area: str) -> StagedFolder | None:
    epoch, _, name = path.removeprefix(area + "/").partition("/")
    batch = batch_of(name)
    if batch is None or not epoch.isdecimal():
        return None
    return StagedFolder(path, int(epoch), batch)
