"""Bringing a table to the rows of a cut: its branch moved to an older snapshot, what the cut had prepared on top.

All of it is one commit. Later rows are kept by a branch of their own until somebody removes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.snapshots import Snapshot

from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.iceberg.lake import Change, folder_at, reading
from dagster_ckpt.ext.iceberg.marks import Mark, mark_of, operation_of
from dagster_ckpt.ext.iceberg.publish import Writer
from dagster_ckpt.ext.iceberg.version import Version
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows
from dagster_ckpt.spark.sink.log_table import refuse_other_key
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, RolledBack, SinkCut
from dagster_ckpt.spark.sink.positions import why_another_history


@dataclass(frozen=True)
class Way:
    """What has to be done to show a cut."""

    mark: Mark | None
    """What is shown before the batches are added; None: nothing of ours."""
    back_to: int | None = None
    """Snapshot to move the branch to; None: it stays."""
    is_emptied: bool = False
    """All rows leave."""
    batches: tuple[PreparedBatch, ...] = ()

    @property
    def changes(self) -> dict[str, object]:
        """The position that is shown, as parts of a mark."""
        if self.mark is None:
            return {"head": None, "through_batch": None, "theirs": None, "key": ""}
        kept = {name: getattr(self.mark, name) for name in ("head", "through_batch", "theirs", "key")}
        return {name: value for name, value in kept.items() if name != "theirs" or self.back_to is not None}


def roll_back(writer: Writer, attempt: AttemptId, cut: SinkCut | None, later: LaterRows) -> RolledBack:
    """Show exactly the rows of a cut, or keep what is there, and fence older attempts."""

    def step() -> str:
        version = writer.own(attempt)
        if later is LaterRows.KEEP:
            if version is not None:
                writer.fence(version, attempt, through_batch=_through(writer, version, cut))
            return ""
        way = way_to(writer, version, cut)
        if version is None:
            if way.batches:
                writer.created(way.batches)
            return ""
        return _go(writer, version, attempt, way, cut)

    return RolledBack(text=writer.lake.repeat(step))


def _go(writer: Writer, version: Version, attempt: AttemptId, way: Way, cut: SinkCut | None) -> str:
    done = []
    aside = ""
    if way.back_to is not None or way.is_emptied:
        aside = _free_branch(version, attempt)
        went = (
            "all rows left the table" if way.is_emptied else f"the table went back to snapshot {way.back_to}"
        )
        done.append(f"{went}; later rows can be read at branch {aside}")
    if way.batches and cut is not None:
        added = writer.add(
            version,
            attempt,
            way.batches,
            cut.checkpoint_id,
            back_to=way.back_to,
            set_aside=aside,
            is_emptied=way.is_emptied,
            **{name: value for name, value in way.changes.items() if name == "theirs"},
        )
        done.append(f"{added.rows:,} rows that the restore point had prepared were added")
    elif aside:
        mark = version.next_mark(attempt, **way.changes)
        change = Change(mark=mark, back_to=way.back_to, replaces=way.is_emptied, set_aside=aside)
        writer.lake.commit(version, change)
    else:
        writer.fence(version, attempt, **way.changes)
    return "; ".join(done)


def _free_branch(version: Version, attempt: AttemptId) -> str:
    """Return the name of a branch for the rows that are shown now."""
    head = version.mark.head if version.mark is not None else None
    name = version.refs.set_aside(head, int(attempt.epoch))
    number, free = 1, name
    while version.ref(free) is not None:
        number, free = number + 1, f"{name}_{number + 1}"
    return free


def way_to(writer: Writer, version: Version | None, cut: SinkCut | None) -> Way:
    """Return how to show a cut. Raises Corrupt where its rows are gone, InvalidRequest where others' would leave."""
    head = None if cut is None else cut.snapshot.head
    batches = () if cut is None else batches_with_rows(cut.batches)
    if version is None:
        if head is not None:
            raise Corrupt(
                f"table {writer.lake.place} has lost its rows: it was removed. Bring it back from a backup, or read "
                "all data again (restore_from = 'none')"
            )
        writer.staged.footers([file for batch in batches for file in batch.files])
        return Way(None, batches=batches)
    whole = version.showing(cut.checkpoint_id) if cut is not None and batches else None
    if whole is not None:
        _refuse_another_history(version, whole, cut)
        return _way_to_snapshot(writer, version, whole, ())
    writer.staged.footers([file for batch in batches for file in batch.files])
    if head is None:
        return _way_to_nothing(version, batches)
    found = version.showing(head)
    if found is None:
        raise Corrupt(
            f"table {version.place} has no snapshot that shows checkpoint {head}: it was expired, or the table is "
            "another one. Choose a later checkpoint"
        )
    _refuse_another_history(version, found, cut)
    return _way_to_snapshot(writer, version, found, batches)


def _way_to_nothing(version: Version, batches: tuple[PreparedBatch, ...]) -> Way:
    mark = version.mark
    if mark is None or mark.head is None:
        return Way(mark, batches=batches)
    if mark.base is None:
        _refuse_others(version, None)
        return Way(None, is_emptied=True, batches=batches)
    base = version.snapshots.get(mark.base)
    if base is None:
        raise Corrupt(
            f"table {version.place} no longer has snapshot {mark.base}, which held the rows that were there before "
            "this pipeline's: choose a later checkpoint, or keep the rows (roll_back_tables: false)"
        )
    _refuse_others(version, base)
    _refuse_lost(version, base)
    return Way(None, back_to=mark.base, batches=batches)


def _way_to_snapshot(
    writer: Writer, version: Version, found: Snapshot, batches: tuple[PreparedBatch, ...]
) -> Way:
    mark = mark_of(found, version.owner)
    assert mark is not None
    refuse_other_key(mark, writer.key, version.place)
    if version.mark is not None and version.mark.head == mark.head:
        return Way(mark, batches=batches)
    _refuse_others(version, found)
    _refuse_lost(version, found)
    return Way(mark, back_to=found.snapshot_id, batches=batches)


def _refuse_another_history(version: Version, found: Snapshot, cut: SinkCut | None) -> None:
    """Raise Corrupt where the snapshot of the cut's number is another deployment's."""
    marks = [mark_of(snapshot, version.owner) for snapshot in (found, *version.snapshots.values())]
    head = marks[0].head if marks[0] is not None else None
    shown_by = [mark.lineage for mark in marks if mark is not None and mark.head == head]
    if why := why_another_history(f"table {version.place}", shown_by, cut):
        raise Corrupt(why)


def _refuse_others(version: Version, found: Snapshot | None) -> None:
    """Raise InvalidRequest where rows of somebody else would leave."""
    theirs = version.theirs
    mark = mark_of(found, version.owner) if found is not None else None
    below = {snapshot.snapshot_id for snapshot in version.ancestors(found.snapshot_id)} if found else set()
    if theirs is None or theirs in below or (mark is not None and mark.theirs == theirs):
        return
    snapshot = version.snapshots.get(theirs)
    did = operation_of(snapshot) if snapshot is not None else "expired"
    to = f"snapshot {found.snapshot_id}" if found is not None else "no rows"
    raise InvalidRequest(
        f"table {version.place} cannot go back to {to}: snapshot {theirs} ({did}) is not of this pipeline and would be "
        "undone with it; undo it yourself first"
    )


def _refuse_lost(version: Version, found: Snapshot) -> None:
    """Raise Corrupt where files of a snapshot are gone; in an object store readers find that out."""
    with reading(version.place):
        wanted = files_of(version, found)
        now = version.snapshots.get(version.current or 0)
        missing = wanted - (files_of(version, now) if now is not None else set())
    for name in sorted(missing):
        path = folder_at(name)
        if path is not None and not path.exists():
            raise Corrupt(
                f"{name} is gone: table {version.place} cannot show snapshot {found.snapshot_id} any more; choose a "
                "later checkpoint"
            )


def files_of(version: Version, snapshot: Snapshot) -> set[str]:
    """Return the files that hold a snapshot's rows."""
    io = version.table.io
    return {
        entry.data_file.file_path
        for manifest in snapshot.manifests(io)
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
    }


def _through(writer: Writer, version: Version, cut: SinkCut | None) -> int | None:
    """Return the last batch that the cut had published."""
    head = None if cut is None else cut.snapshot.head
    if head is None:
        return None
    found = version.showing(head)
    mark = mark_of(found, version.owner) if found is not None else None
    if mark is None:
        raise Corrupt(
            f"no snapshot of table {writer.lake.place} tells which batches checkpoint {head} had published; choose a "
            "later checkpoint, or fork into a table of its own"
        )
    return mark.through_batch
