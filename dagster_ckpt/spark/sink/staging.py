"""Staging: a micro-batch's rows written as plain Parquet files that nobody sees yet."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.sink import write_staged
from dagster_ckpt.spark.exchange.mounts import bring_here, forget_remote
from dagster_ckpt.spark.files import batch_folder_name, flush_to_disk
from dagster_ckpt.spark.sink.committables import PreparedBatch, TableFile
from dagster_ckpt.spark.sink.port import AttemptId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
