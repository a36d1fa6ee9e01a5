"""Reporting of checkpoints: which of a stream's become events of their own, so that a day of them stays readable.

Partitions of the checkpoints asset: those missing, and those whose checkpoint is gone.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_ckpt.core.checkpoint.record import CompletedRecord, CoordinatorRecord
from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from dagster_ckpt.core.model import CheckpointMetadata


REPORT_PAUSE = 300.0
"""Seconds between two reports of a stream, where nobody says."""

FORGOTTEN_AFTER = 12
"""Pauses after which it is forgotten that a sentence was told."""

Cut = tuple[tuple[str, int | None], ...]
"""The committed batch of each stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPolicy:
    """Policy of reports, as ``report`` says it: ``changed``, ``every: 10`` or ``all``."""

    every: int = 0
    """Every so-many-th checkpoint; 0: one that brought something new, and then the newest after each pause."""

    @classmethod
    def of(cls, text: str) -> ReportPolicy:
        """Return the policy. Raises InvalidRequest."""
        word = str(text).strip().lower()
        if word == "changed":
            return cls()
        if word == "all":
            return cls(every=1)
        found = re.fullmatch(r"(?:every\s*[:=]?\s*)?([1-9][0-9]{0,8})", word)
        if found is None:
            raise InvalidRequest(
                f"report={text!r}: give 'changed', 'all', or 'every: 10' for every tenth checkpoint"
            )
        return cls(every=int(found[1]))

    @property
    def is_all(self) -> bool:
        """True where each checkpoint is reported, also one that brought nothing new."""
        return self.every == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """Completions that have not been reported."""

    told_at: float | None = None
    """When the last report was; None: there was none."""
    cut: Cut | None = None
    """Of the newest completion."""
    checkpoints: int = 0
    changed: int = 0
    bytes_new: int = 0

    def with_completed(self, metadata: CheckpointMetadata) -> Untold:
        """Return the untold completions with one more."""
        return replace(
            self,
            cut=cut_of(metadata),
            checkpoints=self.checkpoints + 1,
            changed=self.changed + has_changed(metadata, self.cut),
            bytes_new=self.bytes_new + new_bytes(metadata),
        )

    def told(self, now: float) -> Untold:
        """Return the untold completions after a report: none."""
        return Untold(told_at=now, cut=self.cut)

    def due_at(self, policy: ReportPolicy, *, pause: float) -> float | None:
        """Return when a report is due, on the clock of ``told``; None: not before something more completes."""
        if policy.every:
            return (self.told_at or 0.0) if self.checkpoints >= policy.every else None
        if not self.changed:
            return None
        return 0.0 if self.told_at is None else self.told_at + pause


def cut_of(metadata: CheckpointMetadata) -> Cut:
    """Return the committed batch of each stage."""
    return tuple(sorted((stage.uid, stage.batch_id) for stage in metadata.stages))


def new_bytes(metadata: CheckpointMetadata) -> int:
    """Return the bytes that this checkpoint wrote."""
    return sum(stage.metrics.bytes_new for stage in metadata.stages)


def has_changed(metadata: CheckpointMetadata, before: Cut | None = None) -> bool:
    """Return whether the checkpoint holds anything that the one ``before`` did not; None: that one is not known."""
    is_new = new_bytes(metadata) > 0 or not any(stage.metrics.bytes_full for stage in metadata.stages)
    return is_new and cut_of(metadata) != before


class Repeats:
    """Sentences and failures that repeat: the first is news, the next of its kind after a pause."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._seen: dict[str, tuple[float, int]] = {}

    def is_news(self, kind: str, *, now: float) -> bool:
        """Return whether to tell; else it is counted."""
        at, untold = self._seen.get(kind, (None, 0))
        if at is None or now - at >= self._pause:
            return True
        self._seen[kind] = (at, untold + 1)
        return False

    def news_at(self, kind: str) -> float:
        """Return when the next of its kind is news."""
        seen = self._seen.get(kind)
        return float("-inf") if seen is None else seen[0] + self._pause

    def untold(self) -> dict[str, int]:
        """Return how many of each kind were not told, where any were not."""
        return {kind: untold for kind, (_, untold) in self._seen.items() if untold}

    def told(self, kind: str, *, now: float) -> int:
        """Note that it was told; return how many of its kind were not since the last time."""
        untold = self._seen.get(kind, (0.0, 0))[1]
        self._seen = {k: v for k, v in self._seen.items() if now - v[0] < FORGOTTEN_AFTER * self._pause}
        self._seen[kind] = (now, 0)
        return untold


def kind_of(sentence: str) -> str:
    """Return a sentence without its numbers and names with numbers: two that differ in these only are of one kind."""
    return re.sub(r"\S*[0-9]\S*", "#", sentence)


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
