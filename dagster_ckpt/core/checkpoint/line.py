"""The history that a pipeline's present state comes from, among what is kept of others that restores have left."""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.record import BeforeRestore, CompletedRecord, CoordinatorRecord
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.core.restore.facts import RestoreLine


def marked(
    entries: tuple[CompletedRecord, ...],
    *,
    base: int,
    epoch: int,
    known: tuple[CompletedRecord, ...] | None = None,
    before: RestoreLine | None = None,
) -> tuple[CompletedRecord, ...]:
    """Return the snapshots after the attempt ``epoch`` was restored from ``base`` by a person's choice.

    Those that ``base`` does not come from are left behind. One that was left behind earlier is back on the line when
    ``base`` comes from it: somebody went back too far, and thinks better of it.

    Args:
        entries: retained checkpoints and savepoints.
        base: number of what was restored.
        epoch: attempt that was restored.
        known: the entries as they were before it, where the one of ``base`` is another now; None: as they are.
        before: line until now. What came before one that began without state is left behind by that one.
    """

    def left_by(entry: CompletedRecord) -> int | None:
        begun = before is not None and before.base is None and entry.epoch < before.since
        return before.since if begun and before is not None and entry.left_by is None else entry.left_by

    chosen = (left_by(e) for e in (entries if known is None else known) if e.checkpoint_id == base)
    # The restore that left the chosen one behind, if any: what was on the line before that is what it comes from.
    until = next((left for left in chosen if left is not None), epoch)

    def leads_to_base(entry: CompletedRecord) -> bool:
        left = left_by(entry)
        was_on_line = entry.epoch < until and (left is None or left >= until)
        return entry.checkpoint_id == base or (was_on_line and entry.checkpoint_id < base)

    return tuple(_with(e, None if leads_to_base(e) else left_by(e) or epoch) for e in entries)


def revocable(before: CoordinatorRecord, claimed: CoordinatorRecord) -> CoordinatorRecord:
    """Return the claimed record, which can be taken back until the restore changes anything outside."""
    is_same = claimed.line == before.line and claimed.completed == before.completed
    if (
        is_same or before.epoch == 0
    ):  # the first attempt has nothing to return to: a fork is tried again from its start
        return claimed
    kept = {name: getattr(before, name) for name in BeforeRestore.model_fields if name != "next_id"}
    return claimed.model_copy(update={"before_restore": BeforeRestore(next_id=claimed.next_id, **kept)})


def without_refused_restore(record: CoordinatorRecord) -> CoordinatorRecord:
    """Return the record as the last attempt found it, where that was refused before it changed anything.

    What a person disposed of or brought in meanwhile stays so. An attempt that has triggered a checkpoint was none.
    """
    before = record.before_restore
    if before is None or before.next_id != record.next_id:
        return record.model_copy(update={"before_restore": None})
    there = {entry.checkpoint_id for entry in (*record.completed, *record.savepoints)}
    known = {entry.checkpoint_id for entry in (*before.completed, *before.savepoints)}
    new = (s for s in record.savepoints if s.checkpoint_id not in known)
    changes = {name: getattr(before, name) for name in BeforeRestore.model_fields}
    changes["completed"] = tuple(c for c in before.completed if c.checkpoint_id in there)
    changes["savepoints"] = (*(s for s in before.savepoints if s.checkpoint_id in there), *new)
    return record.model_copy(update={**changes, "before_restore": None})


def on_line(entry: CompletedRecord, line: RestoreLine | None) -> bool:
    """Tell whether the pipeline's present state comes from it, or leads to it.

    The mark alone does not tell: nothing is marked by a beginning without state, which lets go of no older day, and
    versions before this one have marked no savepoint.
    """
    if entry.is_left_behind:
        return False
    if line is None or entry.epoch >= line.since:
        return True
    return line.base is not None and entry.checkpoint_id <= line.base.checkpoint_id


def newest_retained(record: CoordinatorRecord) -> CompletedRecord | None:
    """Return the retained snapshot that the stages start again from; None: they began without state.

    After a restore that went back it is not the one with the highest number: that one has another history.
    """
    return next((e for e in reversed(record.completed) if on_line(e, record.line)), None)


def that_tell_ends(record: CoordinatorRecord) -> tuple[CompletedRecord, ...]:
    """Return the snapshots whose finished stages an adopted directory has: the newest checkpoint, savepoints since it.

    The last one of a run may be the savepoint that stopped it; one of an idle pipeline knows of no ends, so that none
    alone tells all.
    """
    newest = newest_retained(record)
    since = 0 if newest is None else newest.checkpoint_id
    later = (s for s in record.savepoints if s.checkpoint_id > since and on_line(s, record.line))
    return (*(() if newest is None else (newest,)), *later)


def is_ending_the_run(record: CoordinatorRecord, entry: CompletedRecord) -> bool:
    """Tell whether a savepoint has completed that is to end the run, and the run goes on.

    Its results are published: if the run failed now instead of ending, it would begin again from this one.
    """
    runs = record.status is RunStatus.RUNNING and record.status_epoch == record.epoch == entry.epoch
    published = (*record.completed, *(s for s in record.savepoints if s.kind.is_synchronous))
    is_newest = all(
        one.checkpoint_id <= entry.checkpoint_id for one in published if one.epoch == record.epoch
    )
    return entry.kind.is_synchronous and runs and is_newest


def _with(entry: CompletedRecord, left_by: int | None) -> CompletedRecord:
    if entry.left_by == left_by:
        return entry
    why = entry.stands_for if left_by is None else ""
    return entry.model_copy(update={"left_by": left_by, "stands_for": why})
