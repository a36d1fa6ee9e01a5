"""Partitions of the checkpoints asset: those missing, and those whose checkpoint is gone."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord

_OURS = re.compile(r"(chk|savepoint)-[0-9]{6,}")
GRACE = 30.0
"""Seconds a live run is given to add the partition of its own checkpoint."""
REPORT_GRACE = 900.0
"""Seconds it is given to report it: streams report seldom, and most checkpoints are gone by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorPlan:
    """Plan that makes the partitions agree with the record."""

    add: tuple[CompletedRecord, ...]
    """Retained, and without a partition; oldest first."""
    remove: tuple[str, ...]
    """Partition keys of what is no longer retained."""
    settled: tuple[CompletedRecord, ...] = ()
    """Retained, and no longer left to the run that took them to report; oldest first."""

    @property
    def is_idle(self) -> bool:
        """True where nothing is to be done."""
        return not (self.add or self.remove)


def plan_mirror(
    record: CoordinatorRecord, partitions: Collection[str], *, owner_is_alive: bool, now: float
) -> MirrorPlan:
    """Return the difference between record and partitions.

    ``partitions`` must have been read before ``record``: else one that a run adds in between looks left over.
    Snapshots that came in by a restore from elsewhere have no partition: they are not of this pipeline's making.
    """
    retained = sorted(
        (c for c in (*record.completed, *record.savepoints) if c.taken_as is None),
        key=lambda c: c.checkpoint_id,
    )

    def left_to_its_run(entry: CompletedRecord, grace: float) -> bool:
        return owner_is_alive and entry.run_id == record.owner and now - entry.completed_at < grace

    newest = max((c.checkpoint_id for c in record.completed), default=0)

    def held_back(entry: CompletedRecord) -> bool:
        # Kept for its hour or day: told now, it would come after newer ones, and what depends on them would start.
        return (
            left_to_its_run(entry, float("inf"))
            and not entry.kind.is_savepoint
            and entry.checkpoint_id < newest
        )

    keys = {c.known.key for c in retained}
    return MirrorPlan(
        add=tuple(c for c in retained if c.known.key not in partitions and not left_to_its_run(c, GRACE)),
        remove=tuple(sorted(k for k in partitions if _OURS.fullmatch(k) and k not in keys)),
        settled=tuple(c for c in retained if not (left_to_its_run(c, REPORT_GRACE) or held_back(c))),
    )
