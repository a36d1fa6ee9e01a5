"""A table that begins with exactly the rows of a cut of another one, which is only read."""

from __future__ import annotations

from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.delta.bounds import wanted_bounds
from dagster_ckpt.ext.delta.columns import delta_columns, schema_of, table_columns
from dagster_ckpt.ext.delta.lake import Lake, Outside, Raced, Version
from dagster_ckpt.ext.delta.marks import Commit, commits
from dagster_ckpt.ext.delta.publish import Writer
from dagster_ckpt.ext.delta.remote import staged_files
from dagster_ckpt.spark.sink.log_table import refuse_other_key
from dagster_ckpt.spark.sink.port import AttemptId, SinkCut
from dagster_ckpt.spark.sink.positions import SEED


def fork(writer: Writer, attempt: AttemptId, cut: SinkCut) -> str:
    """Give the table the rows of a cut; repeating it finishes it, or changes nothing."""
    lake, source = writer.lake, writer.lake.elsewhere(cut.snapshot.uri)
    if source.uri == lake.uri:
        raise InvalidRequest(f"the fork would write to {lake.uri} as its origin does: give it another table")
    origin = f"{source.uri} at checkpoint {cut.checkpoint_id}"
    seed = _seed_version(source, cut)

    if seed is not None:
        refuse_other_key(seed.mark, writer.key, source.uri)

    def step() -> None:
        version = writer.own(attempt)
        if version is None:
            columns = table_columns(source.at(seed.version)) if seed else _first_columns(cut)
            if columns:
                lake.create(schema_of(columns), wanted_bounds(columns, writer.key), attempt)
                raise Raced
            return
        mark = version.mark
        if mark is not None and mark.origin == origin and mark.head == SEED:
            version.fence(attempt)
            return
        has_rows = bool(version.table.file_uris())
        if (has_rows or (mark is not None and mark.head is not None)) and (mark and mark.origin) != origin:
            raise InvalidRequest(f"table {lake.uri} has rows already: give the fork a table of its own")
        if mark is None or mark.origin != origin:
            _copy_rows(version, attempt, source, seed, origin=origin, is_all=not cut.batches)
            raise Raced
        _add_prepared(writer, version, attempt, cut, source)

    lake.repeat(step)
    return f"table {lake.uri} begins with the rows of {origin}"


def _seed_version(source: Lake, cut: SinkCut) -> Commit | None:
    """Return the version of the origin that shows the cut's head; None: nothing was published at the cut."""
    if cut.snapshot.head is None:
        return None
    version = source.load()
    history = commits(version.table, None) if version is not None else []
    shown = [c for c in history if c.mark is not None and c.mark.head == cut.snapshot.head]
    mine = [c for c in shown if c.mark is not None and c.mark.lineage in cut.lineages]
    found = next(iter(mine or shown), None)
    if found is None:
        raise Corrupt(
            f"the log of table {source.uri} has no version that shows checkpoint {cut.snapshot.head}: choose a later "
            "restore point"
        )
    return found


def _first_columns(cut: SinkCut) -> list[dict[str, object]]:
    return delta_columns(cut.batches[0].row_schema) if cut.batches else []


def _copy_rows(
    version: Version, attempt: AttemptId, source: Lake, seed: Commit | None, *, origin: str, is_all: bool
) -> None:
    """Write the origin's rows; where batches follow, the fork is not begun before they are added."""
    through = seed.mark.through_batch if seed is not None and seed.mark is not None else None
    key = seed.mark.key if seed is not None and seed.mark is not None else ""
    head = SEED if is_all else None
    mark = version.next_mark(attempt, origin=origin, head=head, through_batch=through, key=key)
    if seed is None:
        version.commit(mark, lambda table, p: Outside.write(table, [], p))
        return
    rows = source.at(seed.version).scan()
    version.commit(mark, lambda table, p: Outside.replace_rows(table, rows, p))


def _add_prepared(writer: Writer, version: Version, attempt: AttemptId, cut: SinkCut, source: Lake) -> None:
    theirs = staged_files(source, writer.staged.work_dir)
    files = [file for batch in cut.batches for file in batch.files]
    for file in files:
        writer.staged.copy_from(theirs, file)
    writer.staged.flush(files)
    mark = version.mark
    writer.add(version, attempt, cut.batches, SEED, checkpoint=mark.checkpoint if mark is not None else None)
