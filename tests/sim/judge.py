"""Judge of a world: told of every commit, write and deletion, it knows what may never be."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.runtime.files import handles_of
from dagster_ckpt.spark.snapshot.upload import handles_in_manifest
from dagster_ckpt.testing.memory import MemoryCheckpointStorage
from tests.sim.outside import Row, Table
from tests.sim.queries import KEYS
from tests.sim.scheduler import current


class Finding(AssertionError):
    """Something that may never be."""


def truth(counts: list[int]) -> list[Row]:
    """The rows after so many of each side."""
    sides = len(counts)
    return sorted((sides * i + side, i * (i + 1) // 2) for side, n in enumerate(counts) for i in range(n))


@dataclass
class Known:
    """What the world knows of a completed checkpoint."""

    uri: str
    keys: frozenset[str]
    read: int
    """Rows of the source at its cut."""
    is_whole: bool
    """No row was in flight."""


@dataclass(kw_only=True)
class Judge:
    """What has been seen of a world so far."""

    sides: int
    """Branches that rows come by; each has rows of its own."""
    stages: Collection[str]
    storages: Mapping[str, MemoryCheckpointStorage]
    tables: Mapping[str, Table]
    """By the uid of their sink."""
    note: Callable[[str], None]
    finding: str = ""
    """The first thing that may not be; empty: nothing was found."""
    restores: int = 0
    """Restores from a point that somebody chose: then tables go back."""
    record: dict[str, Any] = field(default_factory=dict)
    """The coordinator's record as it was written last."""
    known: dict[int, Known] = field(default_factory=dict)
    savepoints: set[int] = field(default_factory=set)
    shown: dict[str, int] = field(default_factory=dict)

    @property
    def snapshots(self) -> list[dict[str, Any]]:
        """Entries of what can be restored."""
        return [*self.record.get("completed", ()), *self.record.get("savepoints", ())]

    def found(self, what: str) -> Finding:
        """Note what may not be: whoever is told of it as of a failure may go on."""
        self.finding = self.finding or what
        self.note(f"FOUND: {what}")
        return Finding(what)

    def counts(self, table: Table, number: int = -1) -> list[int]:
        """How many rows of each side a state of a table has. Raises Finding where one is lost, doubled or wrong."""
        rows, found = table.rows_of(number), [0] * self.sides
        for k, v in rows:
            n = int((8 * v + 1) ** 0.5 + 1) // 2  # v is the sum of the numbers below n
            found[k % self.sides] = max(n, found[k % self.sides])
        expected = truth(found)
        if table.key:
            expected = sorted({k % KEYS: v for k, v in expected}.items())
        if rows != expected:
            wrong = sorted(set(expected) ^ set(rows))[:5] or "doubled rows"
            raise self.found(f"table {table.name} is wrong in {wrong}: {len(rows)} rows of {len(expected)}")
        return found

    def committed(self, table: Table) -> None:
        """Look at a table after each commit."""
        found, mark = self.counts(table), table.mark
        before = table.states[-2].mark if len(table.states) > 1 else None
        assert mark is not None
        if before is not None and mark.epoch < before.epoch:
            raise self.found(f"attempt {mark.epoch} committed to {table.name} behind attempt {before.epoch}")
        if mark.head is not None:
            known = self.known.get(mark.head)
            if known is None:
                raise self.found(f"table {table.name} shows checkpoint {mark.head}, which is not complete")
            is_same = (
                all(n == known.read for n in found) if known.is_whole else max(found, default=0) <= known.read
            )
            if not is_same:
                raise self.found(
                    f"table {table.name} shows {found} rows as checkpoint {mark.head}, whose cut has {known.read}"
                )
        newest = sum(found)
        if table.states[-1].brings is not None:
            return  # what the cut had prepared on top of it comes with the next commit
        if newest < self.shown.get(table.name, 0) and not self.restores:
            raise self.found(f"table {table.name} went back from {self.shown[table.name]} rows to {newest}")
        self.shown[table.name] = newest

    def wrote(self, record: dict[str, Any]) -> None:
        """Look at the record after each write."""
        before, self.record = self.record, record
        if record["epoch"] < before.get("epoch", 0):
            raise self.found(f"epoch {record['epoch']} wrote behind {before['epoch']}")
        here = current()
        if here is not None and here.process.is_run and record["owner"] != here.process.name:
            raise self.found(f"{here.process.name} wrote what is {record['owner']}'s")
        self.savepoints |= {one["checkpoint_id"] for one in record.get("savepoints", ())}
        if lost := self.savepoints - {one["checkpoint_id"] for one in self.snapshots}:
            raise self.found(f"savepoints {sorted(lost)} are forgotten")
        for one in self.snapshots:
            if one["checkpoint_id"] not in self.known:
                self._complete(one)
        number = (record.get("shown") or {}).get("checkpoint_id")
        was_kept = any(number == one["checkpoint_id"] for one in before.get("completed", ()))
        if was_kept and all(number != one["checkpoint_id"] for one in self.snapshots):
            raise self.found(f"readers are led to checkpoint {number}, which is retained no more")
        if record.get("shown") and record["shown"] != before.get("shown"):
            self._points_at(record["shown"])

    def _points_at(self, shown: dict[str, Any]) -> None:
        """Look at what readers of all tables find: rows of one checkpoint."""
        if shown["checkpoint_id"] and shown["checkpoint_id"] not in self.known:
            raise self.found(f"readers are led to checkpoint {shown['checkpoint_id']}, which is not complete")
        known = self.known.get(shown["checkpoint_id"] or 0)
        for uid, said in shown["tables"].items():
            table, head = self.tables[uid], said["head"]
            if head is None or known is None:
                continue
            of = [
                state.number for state in table.states if state.mark is not None and state.mark.head == head
            ]
            found = self.counts(table, of[-1]) if of else None
            if found is None or (known.is_whole and any(n != known.read for n in found)):
                raise self.found(
                    f"readers are led to checkpoint {shown['checkpoint_id']}, whose cut has {known.read} rows, and "
                    f"table {uid} has {found} of them"
                )

    def _complete(self, entry: dict[str, Any]) -> None:
        """Look at a checkpoint that has completed: it can be restored."""
        number, location = entry["checkpoint_id"], entry["location"]
        storage = self.storages[location["base_uri"]]
        key = f"{location['folder']}/_metadata"
        if key not in storage.contents:
            raise self.found(f"checkpoint {number} is complete without metadata")
        metadata = decode_metadata(storage.contents[key], name=key)
        if {one.uid for one in metadata.stages} != set(self.stages):
            raise self.found(f"checkpoint {number} lacks stages")
        inside = f"{location['folder']}/" if metadata.kind.is_savepoint else ""
        stages = tuple(_within(one, inside) for one in metadata.stages)
        handles = handles_of(storage, metadata.model_copy(update={"stages": stages}), handles_in_manifest)
        keys = {key, *(one.key if one.key.startswith(inside) else inside + one.key for one in handles)}
        if missing := sorted(keys - storage.contents.keys()):
            raise self.found(f"checkpoint {number} is complete without {missing[:3]}")
        source = next(one for one in metadata.stages if one.uid == "numbers")
        read = json.loads(source.offsets["0"])["n"] if source.offsets else 0
        is_whole = not any(one.metrics.unaligned for one in metadata.stages)
        self.known[number] = Known(location["base_uri"], frozenset(keys), read, is_whole)

    def deletes(self, uri: str, keys: Any) -> None:
        """Look at what is deleted: no retained checkpoint needs it."""
        for one in self.snapshots:
            known = self.known.get(one["checkpoint_id"])
            if known is not None and known.uri == uri and (needed := known.keys.intersection(keys)):
                raise self.found(
                    f"{sorted(needed)[:3]} of retained checkpoint {one['checkpoint_id']} deleted"
                )

    def check_savepoints(self) -> None:
        for number in sorted(self.savepoints):
            known = self.known[number]
            if missing := sorted(known.keys - self.storages[known.uri].contents.keys()):
                raise self.found(f"savepoint {number} lacks {missing[:3]}")


def _within(stage: StageSnapshot, folder: str) -> StageSnapshot:
    """Return a stage's part with the whole name of its manifest: in a savepoint it is relative."""
    assert stage.manifest is not None, "every stage acknowledges once for all its subtasks"
    return stage.model_copy(
        update={"manifest": stage.manifest.model_copy(update={"key": folder + stage.manifest.key})}
    )
