"""Upsert tables: staged rows merged into the buckets they belong to, the latest row of each key wins.

A bucket is one file. Publishing writes a new version of every bucket it touches beside the table, then lets
the bucket's published name show it in one step; so a reader finds every key exactly once at any moment.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.channel.schema import arrow_schema, parsed_schema
from dagster_ckpt.spark.files import (
    TEMPORARY_PREFIX,
    flush_to_disk,
    remove_files,
    replace_by_link,
)
from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.sink.latest import latest_rows, replaced
from dagster_ckpt.spark.table.records import (
    BUCKET_COLUMN,
    BucketVersion,
    TablePaths,
    Upsert,
)
from dagster_ckpt.spark.table.schema import columns
from dagster_ckpt.spark.table.version_digests import keep_digests, refuse_other_content

SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SEAL = b"dagster_ckpt.lineage"
"""Note in a version's footer: the history of the publish that wrote it, so that another's file of its name is told."""
_LARGE = 4 * 1024 * 1024
"""Bytes of a file whose columns are decoded side by side."""


def touched_buckets(root: Path, files: Iterable[TableFile]) -> list[int]:
    """Return the buckets that staged files hold rows of. Raises Corrupt when a staged file is gone."""
    found: set[int] = set()
    for file in files:
        values = pc.unique(read_file(root / file.staged, [BUCKET_COLUMN])[BUCKET_COLUMN]).to_pylist()
        found.update(value for value in values if value is not None)
    return sorted(found)


def write_versions(
    root: Path,
    mode: Upsert,
    *,
    files: Sequence[TableFile],
    bases: Mapping[int, Path],
    targets: Mapping[int, Path],
    lineage: str = "",
    row_schema: str = "",
) -> None:
    """Write each target bucket that is not there yet: its base with the staged rows merged in, whole and
    durably. ``lineage``: the history of the publish. A bucket without a base gets the columns of ``row_schema`` that
    these rows no longer have.
    """
    missing = {bucket: path for bucket, path in targets.items() if not path.exists()}
    if not missing:
        return
    staged = concatenated([read_file(root / file.staged) for file in files])
    notes = _notes(staged, lineage, row_schema)
    latest = latest_rows(staged, mode.keys)  # of all buckets at once: a key is in one of them

    # Scalars of the column, not of ``pa.scalar``, which imports pandas.
    marks = {mark.as_py(): mark for mark in latest[BUCKET_COLUMN].unique()}

    def version(bucket: int) -> pa.Table:
        has_rows = bucket in marks
        mine = (
            latest.filter(pc.equal(latest[BUCKET_COLUMN], marks[bucket])) if has_rows else latest.slice(0, 0)
        )
        new = mine.drop_columns([BUCKET_COLUMN])
        base = bases.get(bucket)
        before = _without_rows(row_schema, new) if base is None else read_file(base)
        together = concatenated([before, new])
        rows = replaced(together.slice(0, before.num_rows), together.slice(before.num_rows), mode.keys)
        return rows.replace_schema_metadata(notes)

    content = {target: partial(version, bucket) for bucket, target in missing.items()}
    _write_all(content, mode.keys, are_versions=bool(lineage))


def merge_into_published(
    paths: TablePaths, mode: Upsert, files: Sequence[TableFile], *, replaces: bool = False
) -> None:
    """Merge staged rows straight into the published buckets (at-least-once: no version is kept)."""
    touched = touched_buckets(paths.root, files)
    scratch = paths.meta / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    targets = {bucket: scratch / f"{bucket}.parquet" for bucket in touched}
    there = () if replaces else touched
    bases = {bucket: paths.bucket(bucket) for bucket in there if paths.bucket(bucket).exists()}
    write_versions(paths.root, mode, files=files, bases=bases, targets=targets)
    for bucket, path in targets.items():
        path.replace(paths.bucket(bucket))
    if replaces:
        kept = {paths.bucket(bucket) for bucket in touched}
        remove_files(path for path in paths.root.glob("part-bucket-*.parquet") if path not in kept)
    if scratch.exists():
        scratch.rmdir()


def located_versions(paths: TablePaths, versions: Mapping[int, BucketVersion]) -> dict[int, Path]:
    """Return the file of each version. Raises Corrupt, naming it, when one is gone or another history's."""
    places = {bucket: paths.version(version.checkpoint_id, bucket) for bucket, version in versions.items()}
    for bucket, path in places.items():
        if not path.exists():
            raise Corrupt(f"{path} is gone: the table cannot show this version; choose a later checkpoint")
        if not _is_shown(paths, bucket, path):  # what readers see was looked at when it was shown
            _refuse_foreign(path, versions[bucket])
    return places


def refuse_changed_versions(paths: TablePaths, places: Mapping[int, Path]) -> None:
    """Raise Corrupt where a version that readers do not see yet is not what was written. Reads all of these."""
    for bucket, path in places.items():
        if not _is_shown(paths, bucket, path):
            refuse_other_content(path)


def _is_shown(paths: TablePaths, bucket: int, version: Path) -> bool:
    published = paths.bucket(bucket)
    return published.exists() and published.samefile(version)


def _refuse_foreign(path: Path, version: BucketVersion) -> None:
    try:
        written_by = (pq.read_metadata(path).metadata or {}).get(_SEAL, b"").decode()
    except (pa.ArrowInvalid, OSError) as error:
        raise Corrupt(f"{path} is damaged: {error}; bring it back, or choose another checkpoint") from error
    if written_by and version.lineage and written_by != version.lineage:
        raise Corrupt(
            f"{path} is of another history ({written_by}, its publish is of {version.lineage}): it was swapped. Bring "
            "it back, or choose another checkpoint with restore_from"
        )


def show_versions(paths: TablePaths, versions: Mapping[int, Path]) -> None:
    """Let the published table show exactly these versions, bucket by bucket."""
    for bucket, path in versions.items():
        if not _is_shown(paths, bucket, path):
            replace_by_link(path, paths.bucket(bucket))
    wanted = {paths.bucket(bucket) for bucket in versions}
    for published in paths.root.glob("part-bucket-*.parquet"):
        if published not in wanted:
            published.unlink()
    flush_to_disk(paths.root)


def _without_rows(row_schema: str, rows: pa.Table) -> pa.Table:
    """Return no rows, with the columns that other files of the table have and these rows do not."""
    known = columns(row_schema)
    missing = [column for name, column in known.items() if name not in rows.column_names]
    if not missing:
        return rows.slice(0, 0)
    return arrow_schema(
        parsed_schema(json.dumps({"type": "struct", "fields": list(known.values())}))
    ).empty_table()


def _notes(staged: pa.Table, lineage: str, row_schema: str) -> dict[bytes, bytes]:
    """Return a version's notes: the seal, and Spark's own of the rows' types, from which Spark reads a file back.

    Spark reads the columns that its note names, and no others: also those that these rows no longer have.
    """
    notes = {_SEAL: lineage.encode()} if lineage else {}
    spark = (staged.schema.metadata or {}).get(SPARK_SCHEMA)
    if spark is not None:
        fields = list((columns(row_schema) or columns(spark.decode())).values())
        notes[SPARK_SCHEMA] = json.dumps({"type": "struct", "fields": fields}).encode()
    return notes


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables, with every column that one of them has. Raises InvalidRequest."""
    try:
        together = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidRequest(
            f"the new rows do not fit the table's columns: {error}. Keep column types, or write to a new "
            "table"
        ) from error
    # A column that a stage gained and lost again has no value in some rows, whatever Spark knew of its nulls.
    return together.cast(
        pa.schema([f.with_nullable(True) for f in together.schema], together.schema.metadata)
    )


def read_file(path: Path, names: list[str] | None = None) -> pa.Table:
    """Return a file's rows. Raises Corrupt where it is gone or damaged."""
    try:
        # Not `read_table`: for small files its data set costs several times what reading does.
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            found = file.read(names, use_threads=path.stat().st_size > _LARGE)
    except FileNotFoundError as error:
        raise Corrupt(f"{path} is gone: its rows cannot be read; restore another checkpoint") from error
    except pa.ArrowInvalid as error:
        raise Corrupt(f"{path} is damaged: {error}; restore another checkpoint") from error
    if missing := set(names or ()) - set(found.column_names):
        raise Corrupt(f"{path} is damaged: it has no column {min(missing)!r}; restore another checkpoint")
    return found


def _write_all(
    content: Mapping[Path, Callable[[], pa.Table]], keys: Sequence[str], *, are_versions: bool
) -> None:
    """Write files of one folder, each whole and durably; digests are on disk, with their names, before versions are."""
    folders = {target.parent for target in content}
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    written: dict[Path, Path] = {}
    try:
        for target, rows in content.items():
            written[target] = temporary = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
            found = rows()
            pq.write_table(found, temporary, use_dictionary=_repeating(found.schema, keys))
            flush_to_disk(temporary)
        if are_versions:
            keep_digests(written)
        for target, temporary in written.items():
            temporary.replace(target)
    except BaseException:
        remove_files(written.values())
        raise
    for folder in folders:
        flush_to_disk(folder)


def _repeating(schema: pa.Schema, keys: Sequence[str]) -> list[str] | bool:
    """Return the columns that a dictionary may make smaller: one of values that are all different does the opposite."""
    if len(keys) > 1 or any(pa.types.is_nested(field.type) for field in schema):
        return True
    return [name for name in schema.names if name not in keys]
