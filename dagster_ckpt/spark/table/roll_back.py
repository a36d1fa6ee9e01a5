"""Bringing a table to the rows of a cut, backwards or forwards.

A file keeps its name for life, so the wanted rows are a set of names: what is visible and not wanted is set
aside, what is wanted and set aside (or still staged) comes back. Everything is located before anything moves.
Repeating a roll-back that stopped half-way finishes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from dagster_ckpt.core.ids import CoordinatorEpoch
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.files import classified, flush_to_disk, move_whole
from dagster_ckpt.spark.sink.committables import TableFile, from_last_replacing
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, SinkCut
from dagster_ckpt.spark.table.buckets import located_versions, refuse_changed_versions, show_versions
from dagster_ckpt.spark.table.log import Table, refuse_fenced, refuse_written_through
from dagster_ckpt.spark.table.publish import (
    check_versions,
    finish_begun,
    locate_hidden,
    locate_intact,
    make_versions,
    new_record,
)
from dagster_ckpt.spark.table.records import (
    SEED,
    Append,
    BucketVersion,
    PublishRecord,
    TableState,
    Upsert,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """Result of a roll-back."""

    head: int | None
    set_aside: int
    """Files that left the table."""
    returned: int
    """Files that came back or became visible for the first time."""


def roll_back(
    table: Table, cut: SinkCut | None, attempt: AttemptId, later_rows: LaterRows = LaterRows.SET_ASIDE
) -> RolledBack:
    """Bring the table to exactly the rows of a cut; None empties it. Older attempts are fenced from here on.

    Raises Corrupt, naming the file, when rows of the cut are gone: nothing was moved then.
    """
    with table.locked() as state, classified(f"rolling back table {table.uri}"):
        refuse_fenced(table, state, attempt)
        match later_rows:
            case LaterRows.KEEP:
                return _keep(table, state, cut, attempt)
            case LaterRows.SET_ASIDE:
                if cut is not None:
                    _refuse_lost(table, state, cut)
                with _histories_told(state, cut):
                    return _converge(table, state, _target(table, cut, attempt), attempt)
            case _:
                assert_never(later_rows)


def check_roll_back(table: Table, cut: SinkCut | None, attempt: AttemptId, *, reads_all: bool) -> None:
    """Raise what ``roll_back`` to this cut would raise; nothing is changed, so other tables can be asked as well.

    ``reads_all``: the content of files that readers do not see yet as well, which takes as long as reading them.
    """
    if cut is None:
        return
    state = table.state()
    _refuse_lost(table, state, cut)
    with _histories_told(state, cut):
        target = _target(table, cut, attempt)
        if isinstance(table.mode, Append):
            (locate_intact if reads_all else locate_hidden)(table, target.files)
        elif target.record is not None:
            check_versions(table, target.record, reads_all=reads_all)


@contextmanager
def _histories_told(state: TableState, cut: SinkCut | None) -> Iterator[None]:
    """Add to what is gone that the snapshot is of another history than the table: that may be why."""
    try:
        yield
    except Corrupt as error:
        if cut is None or not cut.lineages or state.head_lineage in ("", *cut.lineages):
            raise
        raise Corrupt(
            f"{error}. The snapshot is of another history than the table's rows ({state.head_lineage}): do "
            "coordinator store, checkpoint storage and table belong together?"
        ) from error


def _refuse_lost(table: Table, state: TableState, cut: SinkCut) -> None:
    refuse_written_through(table, state)
    if cut.snapshot.head is not None and state.head is None and not table.records():
        raise Corrupt(
            f"table {table.uri} has lost its rows: its folder was removed or emptied. Bring it back from a "
            "backup, or read all data again (restore_from = 'none')"
        )


@dataclass(frozen=True, slots=True)
class _Target:
    """Target of a roll-back: the publish that contains exactly the cut (None: no rows at all)."""

    record: PublishRecord | None
    files: tuple[TableFile, ...]

    @property
    def head(self) -> int | None:
        return self.record.checkpoint_id if self.record is not None else None

    @property
    def versions(self) -> dict[int, BucketVersion]:
        return self.record.versions if self.record is not None else {}

    @property
    def through_batch(self) -> int | None:
        return self.record.through_batch if self.record is not None else None


def _target(table: Table, cut: SinkCut | None, attempt: AttemptId) -> _Target:
    if cut is None:
        return _Target(None, ())
    chain = table.lineage(cut.snapshot.head)
    if chain and chain[0].lineage and cut.lineages and chain[0].lineage not in cut.lineages:
        raise Corrupt(
            f"table {table.uri}: its publish {chain[0].checkpoint_id} is of another history ({chain[0].lineage}) than "
            "the snapshot; fork into a table of its own, or give the table that belongs to the snapshot"
        )
    prepared = [file for batch in cut.batches for file in batch.files]
    if not prepared and not any(batch.replaces for batch in cut.batches):
        return _Target(chain[0] if chain else None, unique_files(file for one in chain for file in one.files))
    record = table.record(cut.checkpoint_id)
    if record is not None:
        refuse_another_publish(table, record, cut)
    else:
        if isinstance(table.mode, Upsert):
            locate_intact(table, prepared)  # which buckets they touch is read from them
        last = cut.batches[-1]
        # The cut's own history: a publish that its attempt began finds the same.
        own = AttemptId(last.lineage, CoordinatorEpoch(last.epoch))
        record = new_record(
            table, cut.snapshot.head, cut.batches, checkpoint_id=cut.checkpoint_id, attempt=own
        )
    published = [file for one in chain for file in one.files]
    return _Target(record, unique_files([*published, *prepared]))


def refuse_another_publish(table: Table, record: PublishRecord, cut: SinkCut) -> None:
    """Raise Corrupt where the table's publish of the cut's number has other batches: numbers are unique in one history.

    A publish before it may have shown some of them.
    """
    shown, _ = from_last_replacing(cut.batches)
    names = {file.name for batch in shown for file in batch.files}
    before: PublishRecord | None = record
    while names and before is not None:
        names -= {file.name for file in before.files}
        before = None if before.parent is None else table.record(before.parent)
    if names:
        raise Corrupt(
            f"table {table.uri}: its publish {record.checkpoint_id} (history {record.lineage or 'unknown'}) has other "
            f"rows than the snapshot ({min(names)} is not in it): the table was put back, or is another deployment's. "
            "Give the table that belongs to the snapshot, or read all data again (restore_from = 'none')"
        )


def _keep(table: Table, state: TableState, cut: SinkCut | None, attempt: AttemptId) -> RolledBack:
    """Leave the rows; what the cut had prepared and the table does not show goes out with the next
    checkpoint. Raises Corrupt when the log has lost the publish at which the cut stands.
    """
    head = None if cut is None else cut.snapshot.head
    at = None if head is None else table.record(head)
    if head is not None and at is None:
        raise Corrupt(
            f"table {table.uri}: publish {head} is no longer in its log, so nobody can tell which batches it "
            "shows; choose a later checkpoint, or fork into a table of its own"
        )
    through = None if at is None else at.through_batch
    kept = finish_begun(table, state).model_copy(
        update={
            "epoch": attempt.epoch,
            "lineage": attempt.lineage,
            "published_through": through,
            "rolling_back_to": None,
        }
    )
    table.write_state(kept)
    return RolledBack(head=kept.head, set_aside=0, returned=0)


def _converge(table: Table, state: TableState, target: _Target, attempt: AttemptId) -> RolledBack:
    hidden: dict[str, Path] = {}
    extra: set[str] = set()
    if isinstance(table.mode, Append):
        hidden = locate_intact(table, target.files)
        # By their names, not by the log's: a record may be missing.
        extra = table.visible() - {file.name for file in target.files}
    if target.record is not None:
        make_versions(table, table.add_record(target.record))
    versions = located_versions(table.paths, target.versions)
    refuse_changed_versions(table.paths, versions)
    update = {
        "epoch": attempt.epoch,
        "lineage": attempt.lineage,
        "rolling_back_to": target.head or SEED,
        "publishing": None,
    }
    table.write_state(state.model_copy(update=update))
    for name in sorted(extra):
        move_whole(table.paths.published(name), table.paths.set_aside(attempt.epoch) / name)
    for name, place in hidden.items():
        move_whole(place, table.paths.published(name))
    if isinstance(table.mode, Upsert):
        show_versions(table.paths, versions)
    flush_to_disk(table.paths.root)
    done = TableState(
        epoch=attempt.epoch,
        lineage=attempt.lineage,
        head=target.head,
        head_lineage=target.record.lineage if target.record is not None else "",
        published_through=target.through_batch,
    )
    table.write_state(done)
    return RolledBack(head=done.head, set_aside=len(extra), returned=len(hidden))


def unique_files(files: Iterable[TableFile]) -> tuple[TableFile, ...]:
    """Return the files without repetition: one may have been published by several lineages."""
    return tuple({file.name: file for file in files}.values())
