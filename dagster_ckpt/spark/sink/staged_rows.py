"""Staged rows: a micro-batch's, written as Parquet files that nobody sees yet; compared at the last moment, and read.

Staged files may wait for long: beside runs, a restore and people who put folders back.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.paths import Digest
from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import Corrupt, InvalidRequest, Unavailable
from dagster_ckpt.spark.channel.schema import arrow_schema, conformed, parsed_schema
from dagster_ckpt.spark.channel.sink import write_staged
from dagster_ckpt.spark.exchange.mounts import bring_here, forget_remote
from dagster_ckpt.spark.files import batch_folder_name, flush_to_disk, run_in_parallel
from dagster_ckpt.spark.sink.committables import PreparedBatch, TableFile, from_last_replacing
from dagster_ckpt.spark.sink.port import AttemptId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def stage_rows(
    frame: DataFrame,
    batch_id: BatchId,
    attempt: AttemptId,
    *,
    root: Path,
    staged: Path,
    replaces: bool = False,
    row_schema: str = "",
    partition_by: Sequence[str] = (),
) -> PreparedBatch:
    """Write the rows of a micro-batch below ``staged``, a folder in ``root``, and name them.

    ``row_schema`` where the frame has columns that are not the author's. Columns of ``partition_by`` become folders
    (``country=DE/``) and are not in the files.
    """
    folder = staged / batch_folder_name(batch_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    written = write_staged(frame, folder, root, partition_by)
    bring_here(root, written)  # the driver publishes them, from its own disk
    forget_remote(root, [file.name for file in written])
    suffix = folder.name.rsplit("-", 1)[1]
    files = (
        TableFile(
            name=f"part-{attempt.epoch:06d}-{batch_id:010d}-{number:05d}-{suffix}.parquet",
            staged=file.name,
            rows=file.rows,
            bytes=file.bytes,
            checksum=digest_file(root / file.name).checksum,
        )
        for number, file in enumerate(written)
    )
    return PreparedBatch(
        batch_id=batch_id,
        epoch=attempt.epoch,
        lineage=attempt.lineage,
        files=tuple(files),
        row_schema=row_schema or frame.schema.json(),
        replaces=replaces,
    )


def refuse_unwritable(place: str, folder: Path) -> None:
    """Make the folder that rows of ``place`` are staged below. Raises InvalidRequest where nobody could write there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise InvalidRequest(
            f"the rows of {place} are staged below {folder}, which cannot be made or written "
            f"({error.strerror or error}): give the sink, or the resource's table_dir, a folder that can"
        ) from error


def flush_staged(paths: list[Path]) -> None:
    """Wait until these files, and their folders' lists of names, survive a power failure."""
    for path in paths:
        flush_to_disk(path)
    for folder in {path.parent for path in paths}:
        flush_to_disk(folder)


_AT_ONCE = 4


def refuse_changed(places: Iterable[tuple[TableFile, Path]]) -> None:
    """Raise Corrupt, naming it, where one of these files is gone or is not what was staged. Reads all of them."""
    run_in_parallel(_compare, tuple(places), parallelism=_AT_ONCE)


def refuse_other_content(file: TableFile, found: Digest, named: str) -> None:
    """Raise Corrupt where this is not the content that was staged; no checksum: it was staged before one was kept."""
    if found.size != file.bytes:
        why = f"it has {found.size} bytes and had {file.bytes}"
    elif file.checksum not in ("", found.checksum):
        why = "its checksum differs"
    else:
        return
    raise Corrupt(
        f"{named} is not as it was staged ({why}), so its rows are not published: bring it back, or restore another "
        "checkpoint"
    )


def _compare(place: tuple[TableFile, Path]) -> None:
    file, path = place
    try:
        found = digest_file(path)
    except FileNotFoundError as error:
        raise Corrupt(
            f"staged rows {file.name} are gone ({path} does not exist): restore another checkpoint"
        ) from error
    except OSError as error:
        raise Unavailable(f"staged rows {path} could not be read: {error}") from error
    refuse_other_content(file, found, str(path))


BATCH_ROWS = 65_536
"""Rows in one Arrow batch: some megabytes, however many a checkpoint has."""


class StagedRows:
    """Rows that a checkpoint brings to a sink. Raises Corrupt at once when a staged file is gone or another.

    In output mode *complete* only the newest micro-batch counts, and ``replaces`` says so.
    """

    def __init__(self, folder: Path, batches: Sequence[PreparedBatch]) -> None:
        shown, self.replaces = from_last_replacing(batches)
        self.batches = tuple(shown)
        self._files = tuple((file, folder / file.staged) for batch in self.batches for file in batch.files)
        refuse_changed(self._files)

    def __len__(self) -> int:
        return sum(file.rows for file, _ in self._files)

    @property
    def files(self) -> tuple[TableFile, ...]:
        """The staged files."""
        return tuple(file for file, _ in self._files)

    @property
    def bytes(self) -> int:
        """Size of the staged files."""
        return sum(file.bytes for file, _ in self._files)

    @property
    def spark_schema(self) -> StructType | None:
        """Columns of all batches, those of the newest first; None: there is no batch.

        One whose name has changed its case since is the same one, as in Spark.
        """
        from pyspark.sql.types import StructType

        fields: dict[str, Any] = {}
        for batch in reversed(self.batches):
            found = parsed_schema(batch.row_schema).fields
            names = {field.name for field in found}
            called = {name.lower() for name in fields if name not in names}
            fields |= {f.name: f for f in found if f.name not in fields and f.name.lower() not in called}
        return StructType(list(fields.values())) if self.batches else None

    @property
    def schema(self) -> pa.Schema:
        """The same as Arrow has it."""
        import pyarrow as pa

        spark_schema = self.spark_schema
        return pa.schema([]) if spark_schema is None else arrow_schema(spark_schema)

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows batch by batch; a column that an older micro-batch does not have is null in it."""
        import pyarrow as pa

        schema = self.schema
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def table(self) -> pa.Table:
        """Return all rows at once."""
        return self.reader().read_all()

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        for _, path in self._files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    yield conformed(batch, schema)
