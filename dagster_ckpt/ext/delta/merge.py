"""Small files merged beside publishing, a few at a time: with each file in its log a table's next commit costs more.

A step merges files of about one size, so that a row is written again once for each power of the size, and is bounded
in files and bytes. What it writes lies where staged files do: the sink's own clean-up removes it, and knows which
cuts need it. Readers find the same rows; a publish at the same time is decided by the table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.delta.adds import adds
from dagster_ckpt.ext.delta.backend import DeltaBackend
from dagster_ckpt.ext.delta.lake import Outside, committing, properties_of, reading
from dagster_ckpt.ext.delta.upsert import files_of_log, write_files
from dagster_ckpt.ext.delta.version import DeltaVersion
from dagster_ckpt.spark.files import batch_folder_name
from dagster_ckpt.spark.sink.port import AttemptId
from dagster_ckpt.spark.sink.rewrite import gathered, small_alike
from dagster_ckpt.spark.sink.versioned.backend import Raced

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction


def merge_small(backend: DeltaBackend, version: DeltaVersion, attempt: AttemptId) -> int:
    """Merge some files into one, in one commit; return how many, 0 where there are too few or others were faster."""
    mark = version.mark
    if mark is None or mark.head is None or not _may_be_arranged(backend, version):
        return 0
    with reading(backend.place):
        files = small_alike(
            files_of_log(version.table), lambda file: file.bytes, lambda file: sorted(file.partition.items())
        )
    if not files:
        return 0
    staged, schema = backend.staged, pa.schema(version.table.schema().to_arrow())
    name = batch_folder_name(mark.through_batch or 0)
    folder = f"{staged.area}/{int(attempt.epoch)}/{name}"
    parts = (file.read(staged, schema, schema.names) for file in files)
    partition_by = version.table.metadata().partition_columns
    written = [
        file
        for rows in gathered(parts)
        for file in write_files(staged, rows, partition_by, key=backend.key, below=folder)
    ]
    actions: list[AddAction | RemoveAction] = [
        *(replace(action, data_change=False) for action in adds(version.table, written)),
        *(file.removed(changes_rows=False) for file in files),
    ]
    left = {staged.folder_of(file.path) for file in files}
    said = version.next_mark(attempt, staged=(folder,), rearranges=True, left=tuple(sorted(left)))
    try:
        with committing(backend.place):
            Outside.write(version.table, actions, properties_of(said))
        version.lake.leave(version.table, version.number + 1, said.fields())
    except Raced:
        return 0  # what was written is no commit's, and goes with the attempt's garbage
    return len(files)


def _may_be_arranged(backend: DeltaBackend, version: DeltaVersion) -> bool:
    """Tell whether files are all there is of the rows: nothing hides some of them, or forbids that files leave."""
    try:
        backend.refuse_unfit(version, [])
    except InvalidRequest:
        return False
    return version.table.metadata().configuration.get("delta.appendOnly") != "true"
