"""Are the published files there and intact that a snapshot counts on? They are read where they are, and not changed.

A snapshot does not hold a table's rows: it names the publish they were visible with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dagster_ckpt.core.model import StageSnapshot, TableSnapshot
from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.operations.contents import prepared_batches_of
from dagster_ckpt.operations.verify import FileProblem, ProblemKind, Verified
from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot
from dagster_ckpt.spark.table.buckets import located_versions
from dagster_ckpt.spark.table.log import Table, open_table
from dagster_ckpt.spark.table.publish import locate_hidden
from dagster_ckpt.spark.table.records import Append
from dagster_ckpt.spark.table.version_digests import refuse_other_content

__all__ = ["with_tables"]


def with_tables(verified: Verified, source: StoredSnapshot) -> Verified:
    """Add what is wrong with the Parquet tables that the snapshot's sinks write, and which could not be compared."""
    problems: list[FileProblem] = []
    remarks: list[str] = []
    for stage in source.metadata.stages:
        cut = stage.table
        if cut is None or cut.sink or (cut.head is None and not cut.prepared):
            continue
        try:
            table = open_table(cut.uri)
        except NotFound:
            remarks.append(f"the table of stage {stage.uid} ({cut.uri}) is not here: its rows were not read")
            continue
        except Corrupt as error:
            problems.append(_problem(stage, cut.uri, ProblemKind.UNREADABLE, str(error)))
            continue
        if isinstance(table.mode, Append):
            problems += _problems(source, stage, cut, table)
        else:
            problems += _problems_of_versions(source, stage, cut, table)
    return replace(
        verified,
        problems=tuple(sorted((*verified.problems, *problems), key=lambda p: (p.stage, p.path))),
        remarks=(*verified.remarks, *remarks),
    )


def _problems(
    source: StoredSnapshot, stage: StageSnapshot, cut: TableSnapshot, table: Table
) -> Iterator[FileProblem]:
    try:
        prepared = [file for batch in prepared_batches_of(source, stage) for file in batch.files]
        published = [file for record in table.lineage(cut.head) for file in record.files]
    except Corrupt as error:
        yield _problem(stage, cut.uri, ProblemKind.UNREADABLE, str(error))
        return
    for file in {file.name: file for file in (*published, *prepared)}.values():
        found = _checked(stage, file, table)
        if found is not None:
            yield found


def _problems_of_versions(
    source: StoredSnapshot, stage: StageSnapshot, cut: TableSnapshot, table: Table
) -> Iterator[FileProblem]:
    """Yield what is wrong with a keyed table's files as the snapshot shows them, and with what it has prepared."""
    try:
        record = None if cut.head is None else table.record(cut.head)
        if cut.head is not None and record is None:
            raise Corrupt(f"publish {cut.head} is gone from the log of table {table.uri}")
        prepared = [file for batch in prepared_batches_of(source, stage) for file in batch.files]
    except Corrupt as error:
        yield _problem(stage, cut.uri, ProblemKind.UNREADABLE, str(error))
        return
    for bucket, version in ({} if record is None else record.versions).items():
        place = table.paths.version(version.checkpoint_id, bucket)
        kind = ProblemKind.DAMAGED if place.exists() else ProblemKind.MISSING
        try:
            located_versions(table.paths, {bucket: version})
            refuse_other_content(place)
        except (Corrupt, OSError) as error:
            yield _problem(stage, table.paths.bucket(bucket).name, kind, str(error))
    for file in prepared:
        found = _checked(stage, file, table)
        if found is not None:
            yield found


def _checked(stage: StageSnapshot, file: TableFile, table: Table) -> FileProblem | None:
    try:
        place = locate_hidden(table, [file]).get(file.name, table.paths.published(file.name))
        same = _is_as_written(place, file)
    except (Corrupt, FileNotFoundError) as error:
        return _problem(stage, file.name, ProblemKind.MISSING, str(error))
    except OSError as error:
        return _problem(stage, file.name, ProblemKind.UNREADABLE, str(error))
    if same:
        return None
    told = (
        f"{place} is not as it was written (size or checksum differ): bring it back from a backup, or restore a "
        "snapshot of before"
    )
    return _problem(stage, file.name, ProblemKind.DAMAGED, told)


def _is_as_written(place: Path, file: TableFile) -> bool:
    found = digest_file(place)
    return found.size == file.bytes and file.checksum in ("", found.checksum)


def _problem(stage: StageSnapshot, path: str, kind: ProblemKind, message: str) -> FileProblem:
    return FileProblem(stage=stage.uid, path=path, problem=kind, message=message)
