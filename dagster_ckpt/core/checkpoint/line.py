"""Line of the pipeline's present state: which retained checkpoints a restore left behind."""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.record import CompletedRecord


def marked(entries: tuple[CompletedRecord, ...], *, base: int, epoch: int) -> tuple[CompletedRecord, ...]:
    """Return the retained checkpoints after the attempt ``epoch`` was restored from ``base`` by a person's choice.

    Those that ``base`` does not come from are left behind. One that was left behind earlier is back on the line when
    ``base`` comes from it: somebody went back too far, and thinks better of it.
    """
    chosen = next((e for e in entries if e.checkpoint_id == base), None)
    # The restore that left the chosen one behind, if any: what was on the line before that is what it comes from.
    before = epoch if chosen is None or chosen.left_by is None else chosen.left_by

    def leads_to_base(entry: CompletedRecord) -> bool:
        was_on_line = entry.epoch < before and (entry.left_by is None or entry.left_by >= before)
        return entry.checkpoint_id == base or (was_on_line and entry.checkpoint_id < base)

    return tuple(_with(e, None if leads_to_base(e) else e.left_by or epoch) for e in entries)


def _with(entry: CompletedRecord, left_by: int | None) -> CompletedRecord:
    if entry.left_by == left_by:
        return entry
    why = entry.stands_for if left_by is None else ""
    return entry.model_copy(update={"left_by": left_by, "stands_for": why})
