"""Differences of two snapshots: offsets, batches, sizes, files, settings, plan. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import FileEntry, StageSnapshot
from dagster_ckpt.core.units import counted
from dagster_ckpt.operations.snapshots.contents import StatefulOperator, batch_conf, operators_of
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetStep:
    """One source of a stage: from where to where; None: it had no offset."""

    source: str
    """Name or index of the source in the query."""
    start: str | None
    end: str | None
    units: int | None
    """Records, files, entries: whatever the source counts; negative going back; None: it does not say."""

    @property
    def is_same(self) -> bool:
        """True where both offsets are equal."""
        return self.start == self.end

    @property
    def number(self) -> str:
        """How much a restore to ``start`` reads again; of a source that is not as far yet, how much it passes over."""
        if self.units is None:
            return "-"
        return f"{self.units:,}" if self.units >= 0 else f"{-self.units:,} passed over"

    def sentence(self) -> str:
        """Say where a source that is at ``end`` goes with a restore to ``start``."""
        start, end = self.start or "its beginning", self.end or "its beginning"
        if self.units is None:
            return f"from {end} to {start}"
        way, does = ("back", "read again") if self.units >= 0 else ("forward", "passed over")
        return f"from {end} {way} to {start}, {counted(abs(self.units), 'unit is', 'units are')} {does}"


def step_between(source: str, start: str | None, end: str | None) -> OffsetStep:
    """Return the step from one offset (Spark's JSON text) to another."""
    return OffsetStep(source=source, start=start, end=end, units=_units(start, end))


def _units(start: str | None, end: str | None) -> int | None:
    if start == end:
        return 0
    after = _counted(end)
    before = {} if start is None else _counted(start)
    if after is None or before is None:
        return None
    if end is None:
        return -sum(before.values())
    return sum(after.values()) - sum(before.values())


def _counted(offset: str | None) -> dict[str, int] | None:
    """Return the numbers in an offset by their place in it; None where something in it is no number."""
    if offset is None:
        return {}
    try:
        value = parse_json(offset)
    except ValueError:
        return None
    found: dict[str, int] = {}
    return found if _collect(value, "", found) else None


def _collect(value: Any, place: str, found: dict[str, int]) -> bool:
    match value:
        case bool():
            return False
        case int():
            # A file source has read entry 0 when its offset is 0: the number of entries is one more.
            found[place] = value + 1 if place.endswith("/logOffset") else value
            return True
        case dict():
            return all(_collect(part, f"{place}/{name}", found) for name, part in value.items())
        case _:
            return False


class Presence(StrEnum):
    """In which of the two a stage is."""

    BOTH = "both"
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDifference:
    """One value that is not the same; None: it is not there."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiff:
    """Overlap of a stage's files; sizes in bytes."""

    same: int
    added: int
    removed: int
    bytes_same: int
    bytes_added: int
    bytes_removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDiff:
    """One stage in both snapshots."""

    uid: str
    presence: Presence
    batches: tuple[int | None, int | None]
    offsets: tuple[OffsetStep, ...]
    """Every source, also those that stand still."""
    bytes_full: tuple[int, int]
    files: FileDiff
    values: tuple[ValueDifference, ...]
    """Watermark, parallelism, query id, barrier positions, table, formats."""
    conf: tuple[ValueDifference, ...]
    """Spark settings of the cut's batch."""
    plan: tuple[ValueDifference, ...]
    """Stateful operators: name, stores, partitions, state variables."""

    @property
    def is_same(self) -> bool:
        """True where nothing differs."""
        moved = any(not step.is_same for step in self.offsets)
        return self.presence is Presence.BOTH and not (
            moved
            or self.values
            or self.conf
            or self.plan
            or self.files.added
            or self.files.removed
            or self.batches[0] != self.batches[1]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDiff:
    """Everything that differs."""

    before: str
    after: str
    seconds: float
    """From the trigger of the one to that of the other."""
    bytes_full: tuple[int, int]
    stages: tuple[StageDiff, ...]
    edges: tuple[ValueDifference, ...]
    values: tuple[ValueDifference, ...]
    """Pipeline, kind, name, labels, note, library version."""

    @property
    def is_same(self) -> bool:
        """True where restoring either gives the same state."""
        return not self.edges and all(stage.is_same for stage in self.stages)


def diff_snapshots(before: StoredSnapshot, after: StoredSnapshot) -> SnapshotDiff:
    """Compare two snapshots, of one pipeline or of two. Raises Corrupt when a file list cannot be read, Unavailable."""
    old, new = before.metadata, after.metadata
    uids = dict.fromkeys([*(s.uid for s in old.stages), *(s.uid for s in new.stages)])
    sides = [(_Side.of(before, uid), _Side.of(after, uid)) for uid in uids]
    stages = tuple(_stage(uid, *pair) for uid, pair in zip(uids, sides, strict=True))
    named = ("pipeline", "kind", "name", "note", "library_version", "labels")
    return SnapshotDiff(
        before=before.describe(),
        after=after.describe(),
        seconds=new.triggered_at - old.triggered_at,
        bytes_full=(sum(s.bytes_full[0] for s in stages), sum(s.bytes_full[1] for s in stages)),
        stages=stages,
        edges=_differences(
            {f"{a} -> {b}": "there" for a, b in old.edges}, {f"{a} -> {b}": "there" for a, b in new.edges}
        ),
        values=_differences(
            {name: _text(getattr(old, name)) for name in named},
            {name: _text(getattr(new, name)) for name in named},
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A stage in one of the two; without a snapshot it is not there."""

    snapshot: StageSnapshot | None
    files: Mapping[str, FileEntry]
    conf: Mapping[str, str]
    operators: tuple[StatefulOperator, ...]

    @classmethod
    def of(cls, source: StoredSnapshot, uid: str) -> _Side:
        """Read what is compared."""
        snapshot = source.metadata.stage(uid)
        if snapshot is None:
            return cls(snapshot=None, files={}, conf={}, operators=())
        return cls(
            snapshot=snapshot,
            files={entry.path: entry for entry in source.entries(snapshot)},
            conf=batch_conf(source, snapshot),
            operators=operators_of(source, snapshot),
        )

    @property
    def offsets(self) -> Mapping[str, str]:
        """End offset by source."""
        return self.snapshot.offsets if self.snapshot else {}

    @property
    def batch(self) -> int | None:
        """Batch of the cut."""
        return self.snapshot.batch_id if self.snapshot else None

    @property
    def size(self) -> int:
        """Bytes a restore reads."""
        return sum(entry.size for entry in self.files.values())

    def values(self) -> dict[str, str]:
        """Return the other values that are compared, as text."""
        found = self.snapshot
        if found is None:
            return {}
        positions = {f"barrier of {uid}": str(at) for uid, at in found.input_positions.items()}
        formats = {f"format {name}": text for name, text in found.state_formats.items()}
        table = {} if found.table is None else {"table": found.table.uri, "table head": str(found.table.head)}
        single = {
            "watermark_ms": found.watermark_ms,
            "parallelism": found.parallelism,
            "max_parallelism": found.max_parallelism,
            "query_id": found.query_id,
            "output_position": found.output_position,
            "finished": found.finished or None,
        }
        return {
            **{name: str(value) for name, value in single.items() if value is not None},
            **positions,
            **formats,
            **table,
        }

    def plan(self) -> dict[str, str]:
        """Return the stateful operators as text."""
        return {
            f"operator {o.operator}": f"{o.name} (stores {', '.join(o.stores)}; {counted(o.partitions, 'partition')})"
            + (f" {o.properties}" if o.properties else "")
            for o in self.operators
        }


def _stage(uid: str, old: _Side, new: _Side) -> StageDiff:
    if old.snapshot is None:
        presence = Presence.ADDED
    elif new.snapshot is None:
        presence = Presence.REMOVED
    else:
        presence = Presence.BOTH
    sources = dict.fromkeys([*old.offsets, *new.offsets])
    return StageDiff(
        uid=uid,
        presence=presence,
        batches=(old.batch, new.batch),
        offsets=tuple(step_between(s, old.offsets.get(s), new.offsets.get(s)) for s in sources),
        bytes_full=(old.size, new.size),
        files=_files(old.files, new.files),
        values=_differences(old.values(), new.values()),
        conf=_differences(old.conf, new.conf),
        plan=_differences(old.plan(), new.plan()),
    )


def _files(old: Mapping[str, FileEntry], new: Mapping[str, FileEntry]) -> FileDiff:
    """A file is the same where path and checksum are: a name alone does not identify its content."""
    same = {path for path in old.keys() & new.keys() if old[path].checksum == new[path].checksum}
    added = [entry for path, entry in new.items() if path not in same]
    removed = [entry for path, entry in old.items() if path not in same]
    return FileDiff(
        same=len(same),
        added=len(added),
        removed=len(removed),
        bytes_same=sum(new[path].size for path in same),
        bytes_added=_size(added),
        bytes_removed=_size(removed),
    )


def _size(entries: Iterable[FileEntry]) -> int:
    return sum(entry.size for entry in entries)


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[ValueDifference, ...]:
    names = sorted({*old, *new})
    return tuple(
        ValueDifference(name=name, before=old.get(name), after=new.get(name))
        for name in names
        if old.get(name) != new.get(name)
    )


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={text}" for name, text in sorted(value.items()))
    return str(value)
