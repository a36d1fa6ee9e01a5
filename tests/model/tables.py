"""The tables of a world: each shows a checkpoint's rows once it is told of it, and readers of all go by the pointer.

Of the pointer these hold: every table can be read at what it names, and that checkpoint can be restored; it goes back
with the start of an attempt that took rows back, and never else; who is told of it finds it in the store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import ShownTable, ShownTables
from dagster_ckpt.core.restore.choice import Adopt, Restore
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.faulty import SimulatedCrash
from tests.records import stored_record

NAMES = ("orders", "ledger", "totals")


@dataclass
class Table:
    """One table: the checkpoint whose rows it shows, and those it can be read at."""

    shows: int | None = None
    readable: set[int | None] = field(default_factory=lambda: {None})

    def show(self, number: int | None) -> None:
        """Publish the rows of a checkpoint, or take back what came after it."""
        self.shows = number
        self.readable.add(number)


class Tables:
    """All of them, what they refuse, and what the oracle remembers of the pointer."""

    def __init__(self) -> None:
        self.tables = {name: Table() for name in NAMES}
        self.refusing: frozenset[str] = frozenset()
        self.dies_behind: str | None = None
        """Table behind whose publish the process ends; empty: before any."""
        self.pointer: ShownTables | None = None
        """As it was in the store when it was looked at last."""
        self.noted: int = 0
        """Newest checkpoint that this process's tables have all shown: the end of the attempt stores it."""

    # --- what they do ---------------------------------------------------------------------------------------

    def follow(self, h: CoordinatorHarness) -> None:
        """Publish what this process is told is complete."""
        h.gateway.on_complete = lambda message: self._publish(h, message.checkpoint_id)

    def another_process_of(self, h: CoordinatorHarness) -> None:
        """End the process, and open the coordinator again for the same run."""
        h.crash()
        h.gateway.on_complete, self.noted = None, 0
        h.recover()
        self.follow(h)

    def _publish(self, h: CoordinatorHarness, number: int) -> None:
        for name, table in self.tables.items():
            if self.dies_behind == "":
                self._die()
            if name not in self.refusing and number >= (table.shows or 0):
                table.show(number)
            if self.dies_behind == name:
                self._die()
        if {table.shows for table in self.tables.values()} == {number}:
            self.noted = number
            h.coordinator.tables_shown(self.showing(number))

    def _die(self) -> None:
        self.dies_behind = None
        raise SimulatedCrash("while tables are published")

    def showing(self, number: int | None) -> ShownTables:
        """Return the pointer to a checkpoint."""
        tables = {name: ShownTable(uri=f"/tables/{name}", head=number) for name in NAMES}
        return ShownTables(checkpoint_id=number, tables=tables)

    def shown_before(self, random: Random) -> int | None:
        """Return a checkpoint that all of them have shown, and no newer one than readers are shown."""
        common = set.intersection(*(table.readable for table in self.tables.values()))
        newest = 0 if self.pointer is None else self.pointer.checkpoint_id or 0
        return random.choice([*sorted(n for n in common if n is not None and n <= newest), None])

    def start(self, h: CoordinatorHarness, random: Random, *, keep: bool = False) -> None:
        """Bring them to what the attempt restores, and report it as RUNNING; ``keep``: later rows stay."""
        self.noted, self.refusing = 0, frozenset()
        self.follow(h)
        match h.coordinator.restored:
            case Adopt():
                shown = None
            case _ if keep:
                shown = None
            case restored:
                number = restored.metadata.checkpoint_id if isinstance(restored, Restore) else None
                dies_at = random.choice([*NAMES, *[None] * 6])
                for name, table in self.tables.items():
                    if name == dies_at:
                        self.another_process_of(h)
                    table.show(number)
                shown = self.showing(number)
        assert _stored(h).shown == self.pointer, "the pointer moved before the attempt has started"
        h.coordinator.started(f"/work/{h.owner}", shown)
        if shown is not None:
            self.pointer = shown

    def collect_garbage(self, h: CoordinatorHarness) -> None:
        """Forget the versions that neither readers need nor a checkpoint that can be restored."""
        record = h.coordinator.stored_record
        kept: set[int | None] = {one.checkpoint_id for one in (*record.completed, *record.savepoints)}
        kept.add(record.shown_id)
        for table in self.tables.values():
            table.readable &= {*kept, table.shows}

    # --- what must hold -------------------------------------------------------------------------------------

    def check(self, h: CoordinatorHarness) -> None:
        """Check what must hold of the pointer at any moment."""
        record = _stored(h)
        shown = record.shown
        if shown is None:
            assert self.pointer is None, "the pointer is lost"
            return
        number = shown.checkpoint_id
        cannot = [name for name, table in self.tables.items() if number not in table.readable]
        assert not cannot, f"readers are sent to checkpoint {number}, which {cannot} do not show"
        was = None if self.pointer is None else self.pointer.checkpoint_id
        assert (number or 0) >= (was or 0), f"the pointer went back from {was} to {number}"
        assert number is None or record.completed_of(number) is not None, (
            f"{number} is shown and not retained"
        )
        for told in h.moved:
            assert (told.after.checkpoint_id or 0) <= (number or 0), (
                f"{told.after} was told and is not stored"
            )
        self.pointer = shown

    def check_end(self, h: CoordinatorHarness) -> None:
        """Check that an attempt which has ended left readers all that its tables showed."""
        shown = _stored(h).shown_id or 0
        assert shown >= self.noted, f"tables show {self.noted}, readers are left with {shown}"
        self.check(h)


def _stored(h: CoordinatorHarness) -> CoordinatorRecord:
    return stored_record(h.memory_store, h.graph.pipeline)
