"""Bringing a table to the rows of a cut: an older version restored, what the cut had prepared added on top.

Later rows leave the newest version only: they can be read at the version they were last in, for as long as the
table's log and files are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.delta.lake import Outside, Raced, Version
from dagster_ckpt.ext.delta.marks import Commit, others_since, version_of
from dagster_ckpt.ext.delta.publish import Writer
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows
from dagster_ckpt.spark.sink.log_table import refuse_other_key
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, RolledBack, SinkCut
from dagster_ckpt.spark.sink.positions import why_another_history


@dataclass(frozen=True)
class Way:
    """What has to be done to show a cut."""

    head: int | None
    """Checkpoint that is shown before the batches are added."""
    through_batch: int | None
    restore: int | None = None
    """Version to restore; None: the table shows it."""
    key: str = ""
    """Key that what is shown was written by, as marks have it."""
    is_emptied: bool = False
    """All rows leave."""
    batches: tuple[PreparedBatch, ...] = ()

    @property
    def is_there(self) -> bool:
        """True where the table shows the cut."""
        return self.restore is None and not self.is_emptied and not self.batches


def roll_back(writer: Writer, attempt: AttemptId, cut: SinkCut | None, later: LaterRows) -> RolledBack:
    """Show exactly the rows of a cut, or keep what is there, and fence older attempts."""
    done: list[str] = []

    def step() -> None:
        version = writer.own(attempt)
        if later is LaterRows.KEEP:
            if version is not None:
                version.fence(attempt, through_batch=_through(writer, version, cut))
            return
        way = way_to(writer, version, cut)
        if version is None:
            if way.batches:
                writer.created(attempt, way.batches)
        elif way.restore is not None or way.is_emptied:
            done.append(_go_back(version, attempt, way))
            raise Raced
        elif way.batches and cut is not None:
            added = writer.add(version, attempt, way.batches, cut.checkpoint_id)
            done.append(f"{added.rows:,} rows that the restore point had prepared were added")
        else:
            version.fence(attempt, through_batch=way.through_batch)

    writer.lake.repeat(step)
    return RolledBack(text="; ".join(done))


def way_to(writer: Writer, version: Version | None, cut: SinkCut | None) -> Way:
    """Return how to show a cut. Raises Corrupt where its rows are gone, InvalidRequest where others' would leave."""
    head = None if cut is None else cut.snapshot.head
    batches = () if cut is None else batches_with_rows(cut.batches)
    if version is None:
        if head is not None:
            raise Corrupt(
                f"table {writer.lake.uri} has lost its rows: it was removed. Bring it back from a backup, or read all "
                "data again (restore_from = 'none')"
            )
        writer.staged.footers([file for batch in batches for file in batch.files])
        return Way(head=None, through_batch=None, batches=batches)
    whole = version_of(version.history, cut.checkpoint_id) if cut is not None and batches else None
    if whole is not None:
        _refuse_another_history(writer, version, whole, cut)
        return _way_to_version(writer, version, whole)
    writer.staged.footers([file for batch in batches for file in batch.files])
    return _way_to_head(writer, version, cut, batches)


def _way_to_head(
    writer: Writer, version: Version, cut: SinkCut | None, batches: tuple[PreparedBatch, ...]
) -> Way:
    mark, head = version.mark, None if cut is None else cut.snapshot.head
    if head is not None:
        found = version_of(version.history, head)
        if found is None:
            raise Corrupt(
                f"the log of table {writer.lake.uri} has no version that shows checkpoint {head}: it is older than "
                "delta.logRetentionDuration, or the table is another one. Choose a later checkpoint"
            )
        _refuse_another_history(writer, version, found, cut)
        return _way_to_version(writer, version, found, batches)
    if mark is None or mark.head is None:
        return Way(head=None, through_batch=None, batches=batches)
    if mark.base is not None:
        _refuse_others(writer, version, mark.base)
        _refuse_lost(writer, version, mark.base)
        return Way(head=None, through_batch=None, restore=mark.base, batches=batches)
    _refuse_others(writer, version, -1)
    return Way(head=None, through_batch=None, is_emptied=True, batches=batches)


def _way_to_version(
    writer: Writer, version: Version, found: Commit, batches: tuple[PreparedBatch, ...] = ()
) -> Way:
    assert found.mark is not None
    refuse_other_key(found.mark, writer.key, writer.lake.uri)
    shown = version.mark.head if version.mark is not None else None
    restore = None
    if shown != found.mark.head:
        _refuse_others(writer, version, found.version)
        _refuse_lost(writer, version, found.version)
        restore = found.version
    mark = found.mark
    return Way(
        head=mark.head, through_batch=mark.through_batch, key=mark.key, restore=restore, batches=batches
    )


def _refuse_another_history(writer: Writer, version: Version, found: Commit, cut: SinkCut | None) -> None:
    """Raise Corrupt where the version of the cut's number is another deployment's."""
    head = found.mark.head if found.mark is not None else None
    shown_by = [c.mark.lineage for c in version.history if c.mark is not None and c.mark.head == head]
    if why := why_another_history(f"table {writer.lake.uri}", shown_by, cut):
        raise Corrupt(why)


def _refuse_others(writer: Writer, version: Version, back_to: int) -> None:
    """Raise InvalidRequest where rows of somebody else would leave."""
    theirs = others_since(version.history, back_to)
    if theirs is not None:
        raise InvalidRequest(
            f"table {writer.lake.uri} cannot go back to version {max(back_to, 0)}: version {theirs.version} "
            f"({theirs.operation}) is not of this pipeline and would be undone with it; undo it yourself first"
        )
    if version.table.metadata().configuration.get("delta.appendOnly") == "true":
        raise InvalidRequest(
            f"table {writer.lake.uri} cannot go back: it only takes appends (delta.appendOnly)"
        )


def _refuse_lost(writer: Writer, version: Version, number: int) -> None:
    """Raise Corrupt where the files of a version are gone; in an object store the restore itself finds that out."""
    old = writer.lake.at(number)
    root = writer.lake.root
    if root is None:
        return
    now = set(version.table.file_uris())
    lost = next((uri for uri in old.file_uris() if uri not in now and not (root / uri).exists()), None)
    if lost is not None:
        raise Corrupt(
            f"{lost} is gone: table {writer.lake.uri} cannot show version {number} any more; choose a later checkpoint"
        )


def _go_back(version: Version, attempt: AttemptId, way: Way) -> str:
    mark = version.next_mark(attempt, head=way.head, through_batch=way.through_batch, key=way.key)
    if way.restore is None:
        version.commit(mark, lambda table, p: Outside.write(table, [], p, mode="overwrite"))
        return f"all rows left the table; they can be read at version {version.number}"
    to = way.restore
    # Delta restores the properties with the rows; those that are newer are kept by a commit on top (``Writer.own``).
    then = version.lake.at(to).metadata().configuration
    now = version.table.metadata().configuration
    newer = {name: value for name, value in now.items() if then.get(name) != value}
    mark = mark.model_copy(update={"reapply": mark.reapply | newer})
    version.commit(mark, lambda table, p: Outside.restore(table, to, p))
    return f"version {to} was restored; later rows can be read at version {version.number}"


def _through(writer: Writer, version: Version, cut: SinkCut | None) -> int | None:
    """Return the last batch that the cut had published."""
    head = None if cut is None else cut.snapshot.head
    if head is None:
        return None
    found = version_of(version.history, head)
    if found is None or found.mark is None:
        raise Corrupt(
            f"the log of table {writer.lake.uri} does not tell which batches checkpoint {head} had published; choose a "
            "later checkpoint, or fork into a table of its own"
        )
    return found.mark.through_batch
