"""An Iceberg table as it was read: whose rows it shows, what it has seen of us, what others committed in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from dagster_ckpt.ext.iceberg.marks import Mark, Refs, changes_rows, mark_of
from dagster_ckpt.spark.sink.port import AttemptId

MAIN = "main"


@dataclass(frozen=True)
class Version:
    """One state of the table's metadata."""

    place: str
    table: Table
    owner: tuple[str, str]
    refs: Refs

    @cached_property
    def snapshots(self) -> dict[int, Snapshot]:
        """All snapshots that the metadata tells of."""
        return {snapshot.snapshot_id: snapshot for snapshot in self.table.metadata.snapshots}

    @property
    def current(self) -> int | None:
        """The snapshot that readers see; None: there is none yet."""
        return self.ref(MAIN)

    def ref(self, name: str) -> int | None:
        """Return the snapshot that a branch or tag names."""
        found = self.table.metadata.refs.get(name)
        return found.snapshot_id if found is not None else None

    def ancestors(self, number: int | None) -> Iterator[Snapshot]:
        """Yield a snapshot and those below it, newest first, as far as they were not expired."""
        while number is not None and (snapshot := self.snapshots.get(number)) is not None:
            yield snapshot
            number = snapshot.parent_snapshot_id

    # --- marks ------------------------------------------------------------------------------------------------

    @cached_property
    def _newest(self) -> tuple[Snapshot, Mark] | None:
        """Our newest snapshot, whether the table shows it or was put back."""
        snapshot = self.snapshots.get(self.ref(self.refs.newest) or 0)
        mark = mark_of(snapshot, self.owner) if snapshot is not None else None
        return None if snapshot is None or mark is None else (snapshot, mark)

    @cached_property
    def _shown(self) -> tuple[Mark | None, Snapshot | None]:
        """The newest of our marks that readers see, and others' newest change of rows above it."""
        base = self._newest[1].base if self._newest is not None else None
        theirs = oldest = None
        for snapshot in self.ancestors(self.current):
            mark = mark_of(snapshot, self.owner)
            if mark is not None:
                return mark, theirs
            if snapshot.snapshot_id == base:
                return None, theirs
            if theirs is None and changes_rows(snapshot):
                theirs = snapshot
            oldest = snapshot
        # Where those in between were expired, a tagged one that is older than all that are left is still below them.
        if self._newest is not None and oldest is not None:
            snapshot, mark = self._newest
            if (snapshot.sequence_number or 0) < (oldest.sequence_number or 0):
                return mark, theirs or oldest
        return None, theirs

    @cached_property
    def mark(self) -> Mark | None:
        """What the table has seen of us, and shows of it; None: nothing."""
        shown = self._shown[0]
        if self._newest is None:
            return shown
        newest = self._newest[1]
        if shown is None:
            return newest.model_copy(update={"head": None, "through_batch": None, "theirs": None})
        kept = {name: getattr(shown, name) for name in ("head", "through_batch", "theirs", "origin")}
        return newest.model_copy(update=kept)

    @property
    def theirs(self) -> int | None:
        """The newest snapshot since our first one by which somebody else changed rows."""
        if self.mark is None:
            return None
        mark, theirs = self._shown
        if theirs is not None:
            return theirs.snapshot_id
        return mark.theirs if mark is not None else None

    def next_mark(self, attempt: AttemptId, **changes: Any) -> Mark:
        """Return the mark of a commit by this attempt on top of this version."""
        pipeline, uid = self.owner
        mark = self.mark or Mark(
            pipeline=pipeline, sink=uid, lineage=attempt.lineage, epoch=0, base=self.current
        )
        mine = {"lineage": attempt.lineage, "epoch": int(attempt.epoch), "theirs": self.theirs}
        return mark.model_copy(update=mine | changes)

    def showing(self, head: int) -> Snapshot | None:
        """Return the newest snapshot that shows checkpoint ``head``, on whichever branch."""
        found = (
            snapshot
            for snapshot in self.snapshots.values()
            if (mark := mark_of(snapshot, self.owner)) is not None and mark.head == head
        )
        return max(found, key=lambda snapshot: snapshot.sequence_number or 0, default=None)
