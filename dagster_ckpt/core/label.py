"""Name, labels and note of a snapshot: what people call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLabel:
    """Label of a snapshot: a name, labels to find it by, a free-text note."""

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the label's fields as records, requests and run configs spell them: flat."""
        return {"name": self.name, "note": self.note, "labels": dict(self.labels)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChanges:
    """Changes that a copy makes to its label; None: as the original."""

    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Added to the original's."""
    note: str | None = None

    def applied_to(self, label: SnapshotLabel) -> SnapshotLabel:
        """Return the copy's label."""
        return SnapshotLabel(
            name=label.name if self.name is None else self.name,
            labels={**label.labels, **self.labels},
            note=label.note if self.note is None else self.note,
        )


class _Flat(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def note(self) -> str: ...


class Labeled:
    """Gives a class with the flat fields ``name``, ``labels`` and ``note`` its label."""

    __slots__ = ()

    @property
    def label(self: _Flat) -> SnapshotLabel:
        """The three as one."""
        return SnapshotLabel(name=self.name, labels=self.labels, note=self.note)
