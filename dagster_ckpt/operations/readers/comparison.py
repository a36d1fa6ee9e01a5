"""Comparison of the tables that readers would find after a swap with those they find now, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.units import counted
from dagster_ckpt.operations.readers.diff_tables import TablesDiff


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """One table of both pipelines."""

    sink: str
    diff: TablesDiff | None
    problem: str = ""
    """Why it was not compared; empty: it was, or both have no rows yet."""

    @property
    def is_same(self) -> bool:
        """True where readers find the same rows in both."""
        return not self.problem and (self.diff is None or self.diff.is_same)

    @property
    def line(self) -> str:
        """The comparison in one line."""
        if self.diff is None:
            return f"{self.sink}: {self.problem or 'neither has rows yet'}"
        found = self.diff
        if found.is_same:
            return f"{self.sink}: the same {counted(found.rows[0], 'row')}"
        columns = [f"column {name} added" for name in found.columns_added]
        columns += [f"column {name} missing" for name in found.columns_missing]
        changed = [f"{found.changed:,} changed"] if found.key else []
        counts = [
            f"{counted(found.same, 'row')} the same",
            f"{found.added:,} added",
            f"{found.missing:,} missing",
            *changed,
        ]
        return f"{self.sink}: {', '.join([*counts, *columns])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadersComparison:
    """Comparison of the tables that readers of a name would find after a swap with those they find now."""

    name: PipelineId
    """Pipeline that readers name."""
    serving: PipelineId
    """Pipeline whose tables they find."""
    candidate: PipelineId
    tables: tuple[TableComparison, ...]
    behind: tuple[str, ...]
    """Where the candidate has read less than the pipeline that serves; of topics only."""
    approval: str
    """What approves a swap that is as this comparison shows it."""
    only: Mapping[str, str] = field(default_factory=dict)
    """Rows that were compared; empty: all."""

    @property
    def is_same(self) -> bool:
        """True where all tables were compared whole and hold the same rows."""
        return not self.only and all(table.is_same for table in self.tables)

    @property
    def lines(self) -> tuple[str, ...]:
        """The comparison in lines for people."""
        told = f" (rows with {', '.join(f'{k}={v}' for k, v in self.only.items())})" if self.only else ""
        return (
            f"{self.candidate} compared with {self.serving}, which serves {self.name}{told}",
            *(table.line for table in self.tables),
            *(f"{self.candidate} is behind: {why}" for why in self.behind),
        )
