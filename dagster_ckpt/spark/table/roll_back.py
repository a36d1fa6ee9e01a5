"""Bringing a table to the rows of a cut, backwards or forwards.

A file keeps its name for life, so the wanted rows are a set of names: what is visible and not wanted is set
aside, what is wanted and set aside (or still staged) comes back. Everything is located before anything moves.
Repeating a roll-back that stopped half-way finishes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.files import classified, flush_to_disk, move_whole
from dagster_ckpt.spark.sink.committables import PreparedBatch, TableFile, read_committables
from dagster_ckpt.spark.table.buckets import located_versions, show_versions
from dagster_ckpt.spark.table.log import Table, refuse_fenced
from dagster_ckpt.spark.table.publish import (
    finish_begun,
    locate_hidden,
    make_versions,
    new_record,
)
from dagster_ckpt.spark.table.records import (
    SEED,
    Append,
    PublishRecord,
    TableState,
    Upsert,
)


class LaterRows(StrEnum):
    """Treatment of rows that were published after the cut."""

    SET_ASIDE = "set_aside"
    """They leave the table and stay under ``_dagster_ckpt``."""
    KEEP = "keep"
    """They stay, and the restored pipeline publishes its rows on top: rows repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """Result of a roll-back."""

    head: int | None
    set_aside: int
    """Files that left the table."""
    returned: int
    """Files that came back or became visible for the first time."""


def roll_back(
    table: Table,
    *,
    snapshot: TableSnapshot,
    checkpoint_id: CheckpointId | None,
    stage_dir: Path,
    epoch: CoordinatorEpoch,
    later_rows: LaterRows = LaterRows.SET_ASIDE,
) -> RolledBack:
    """Bring the table to exactly the rows of a cut; ``stage_dir`` is the restored stage with its
    committables.

    ``TableSnapshot(uri=table.uri)`` with no checkpoint empties it. Older attempts are fenced from here on.
    Raises Corrupt, naming the file, when rows of the cut are gone: nothing was moved then.
    """
    with table.locked() as state, classified(f"rolling back table {table.uri}"):
        refuse_fenced(table, state, epoch)
        match later_rows:
            case LaterRows.KEEP:
                return _keep(table, state, snapshot, epoch=epoch)
            case LaterRows.SET_ASIDE:
                if snapshot.head is not None and state.head is None and not table.records():
                    raise Corrupt(
                        f"table {table.uri} has lost its rows: its folder was removed or emptied. Bring it back from a "
                        "backup, or read all data again (restore_from = 'none')"
                    )
                batches = read_committables(stage_dir, snapshot.prepared)
                target = _target(table, snapshot, batches, checkpoint_id=checkpoint_id, epoch=epoch)
                return _converge(table, state, target, epoch=epoch)
            case _:
                assert_never(later_rows)


@dataclass(frozen=True, slots=True)
class _Target:
    """Target of a roll-back: the publish that contains exactly the cut (None: no rows at all)."""

    record: PublishRecord | None
    files: tuple[TableFile, ...]

    @property
    def head(self) -> int | None:
        return self.record.checkpoint_id if self.record is not None else None

    @property
    def buckets(self) -> dict[int, int]:
        return self.record.buckets if self.record is not None else {}

    @property
    def through_batch(self) -> int | None:
        return self.record.through_batch if self.record is not None else None


def _target(
    table: Table,
    snapshot: TableSnapshot,
    batches: Sequence[PreparedBatch],
    *,
    checkpoint_id: CheckpointId | None,
    epoch: CoordinatorEpoch,
) -> _Target:
    lineage = table.lineage(snapshot.head)
    prepared = [file for batch in batches for file in batch.files]
    published = [file for record in lineage for file in record.files]
    files = unique_files([*published, *prepared])
    if not prepared:
        return _Target(lineage[0] if lineage else None, files)
    if checkpoint_id is None:
        raise InvalidRequest(
            "prepared batches can only be restored for the checkpoint that holds them: name it"
        )
    record = table.record(checkpoint_id)
    if record is None:
        record = new_record(table, snapshot.head, list(batches), checkpoint_id=checkpoint_id, epoch=epoch)
    return _Target(record, files)


def _keep(table: Table, state: TableState, snapshot: TableSnapshot, *, epoch: CoordinatorEpoch) -> RolledBack:
    """Leave the rows; what the cut had prepared and the table does not show goes out with the next
    checkpoint. Raises Corrupt when the log has lost the publish at which the cut stands.
    """
    at = None if snapshot.head is None else table.record(snapshot.head)
    if snapshot.head is not None and at is None:
        raise Corrupt(
            f"table {table.uri}: publish {snapshot.head} is no longer in its log, so nobody can tell which batches it "
            "shows; choose a later checkpoint, or fork into a table of its own"
        )
    through = None if at is None else at.through_batch
    kept = finish_begun(table, state).model_copy(
        update={"epoch": epoch, "published_through": through, "rolling_back_to": None}
    )
    table.write_state(kept)
    return RolledBack(head=kept.head, set_aside=0, returned=0)


def _converge(table: Table, state: TableState, target: _Target, *, epoch: CoordinatorEpoch) -> RolledBack:
    hidden: dict[str, Path] = {}
    extra: set[str] = set()
    if isinstance(table.mode, Append):
        hidden = locate_hidden(table, target.files)
        extra = _published_names(table) - {file.name for file in target.files}
    if target.record is not None:
        make_versions(table, table.add_record(target.record))
    versions = located_versions(table.paths, target.buckets)
    rolling = state.model_copy(
        update={"epoch": epoch, "rolling_back_to": target.head or SEED, "publishing": None}
    )
    table.write_state(rolling)
    for name in sorted(extra):
        move_whole(table.paths.published(name), table.paths.set_aside(epoch) / name)
    for name, place in hidden.items():
        move_whole(place, table.paths.published(name))
    if isinstance(table.mode, Upsert):
        show_versions(table.paths, versions)
    flush_to_disk(table.paths.root)
    done = TableState(epoch=epoch, head=target.head, published_through=target.through_batch)
    table.write_state(done)
    return RolledBack(head=done.head, set_aside=len(extra), returned=len(hidden))


def _published_names(table: Table) -> set[str]:
    named = {file.name for record in table.records() for file in record.files}
    return {path.name for path in table.paths.root.glob("part-*.parquet")} & named


def unique_files(files: Iterable[TableFile]) -> tuple[TableFile, ...]:
    """Return the files without repetition: one may have been published by several lineages."""
    return tuple({file.name: file for file in files}.values())
