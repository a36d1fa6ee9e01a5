"""An Iceberg table as it was read: its snapshots as states with our marks, and the references that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from dagster_ckpt.ext.tables.marks import SinkNames
from dagster_ckpt.ext.tables.version import State, Version
from dagster_ckpt.spark.sink.port import AttemptId

MAIN = "main"


class Refs:
    """Names of the references that hold a sink's snapshots, by whose the rows are."""

    def __init__(self, owner: str) -> None:
        self.newest = f"dagster_ckpt/{owner}"
        """Tag: our newest snapshot."""
        self.base = f"{self.newest}/base"
        """Tag: the snapshot before our first one."""
        self._cuts = f"{self.newest}/cut_"

    def cut(self, head: int) -> str:
        """Tag: the snapshot that a restore of a retained cut goes back to."""
        return f"{self._cuts}{head}"

    def is_cut(self, name: str) -> bool:
        """Tell the tags of cuts."""
        return name.startswith(self._cuts)

    def set_aside(self, head: int | None, epoch: int) -> str:
        """Branch: rows that left the table when attempt ``epoch`` went back from checkpoint ``head``."""
        return f"{self.newest}/set_aside_{head or 0}_attempt_{epoch}"


@dataclass(frozen=True)
class IcebergVersion(Version):
    """One state of the table's metadata."""

    table: Table

    word: ClassVar[str] = "snapshot"
    expires: ClassVar[str] = "was expired"
    aside_word: ClassVar[str] = "branch"
    is_line: ClassVar[bool] = False

    @cached_property
    def snapshots(self) -> dict[int, Snapshot]:
        """All snapshots that the metadata tells of."""
        return {snapshot.snapshot_id: snapshot for snapshot in self.table.metadata.snapshots}

    @property
    def number(self) -> int | None:
        """The snapshot that readers see; None: there is none yet."""
        return self.ref(MAIN)

    def ref(self, name: str) -> int | None:
        """Return the snapshot that a branch or tag names."""
        found = self.table.metadata.refs.get(name)
        return found.snapshot_id if found is not None else None

    @property
    def refs(self) -> Refs:
        """The references that hold our snapshots."""
        return Refs(self.owner)

    @cached_property
    def _newest_first(self) -> list[Snapshot]:
        found = self.table.metadata.snapshots
        return sorted(found, key=lambda snapshot: snapshot.sequence_number or 0, reverse=True)

    def states(self, limit: int | None) -> Sequence[State]:
        """Return the states in the metadata, also on other branches."""
        return [_state(snapshot, self.names) for snapshot in self._newest_first[:limit]]

    def has_rows(self) -> bool:
        """Tell whether the table has a file."""
        return any(True for _ in self.table.scan().plan_files())

    def aside(self, attempt: AttemptId) -> str:
        """Return the name of a branch that is free."""
        head = self.mark.head if self.mark is not None else None
        name = self.refs.set_aside(head, int(attempt.epoch))
        number, free = 1, name
        while self.ref(free) is not None:
            number, free = number + 1, f"{name}_{number + 1}"
        return free


def _state(snapshot: Snapshot, names: SinkNames) -> State:
    summary = snapshot.summary
    operation = "unknown" if summary is None else summary.operation.value
    properties = {} if summary is None else summary.additional_properties
    return State(
        number=snapshot.snapshot_id,
        order=snapshot.sequence_number or 0,
        parent=snapshot.parent_snapshot_id,
        timestamp_ms=snapshot.timestamp_ms,
        did=operation,
        changes_rows=operation != "replace",
        keeps_rows=operation in ("append", "replace"),
        mark=names.read(properties, f"snapshot {snapshot.snapshot_id}"),
    )
