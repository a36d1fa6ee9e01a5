"""Durations of the last checkpoints as bars: waiting, synchronous part, storing; savepoints and failures marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.core.units import counted, duration, moment

_WIDTH, _HEIGHT, _LEFT, _BASE = 1180, 150, 64, 124
_WIDEST = 26.0


@dataclass(frozen=True, slots=True)
class _Parts:
    """Seconds of one checkpoint: each the longest of its stages, together what it lasted."""

    delay: float
    wait: float
    sync: float
    store: float

    @property
    def total(self) -> float:
        return self.delay + self.wait + self.sync + self.store


def durations_chart(history: Sequence[CheckpointStatistics]) -> str:
    """Return the chart as SVG; ``history``: newest first."""
    shown = [row for row in reversed(history) if row.duration is not None]
    if not shown:
        return '<div class="k">No checkpoint has ended yet.</div>'
    longest = max(row.duration or 0.0 for row in shown) or 0.001
    step = min(_WIDEST, (_WIDTH - _LEFT) / len(shown))
    bars = "".join(_bar(row, index, step, longest) for index, row in enumerate(shown))
    lines = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.0f}" y2="{y:.0f}" stroke="var(--line)"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{duration(value) if value else "0"}</text>'
        for value, y in (
            (0.0, _BASE),
            (longest / 2, _y(longest / 2, longest)),
            (longest, _y(longest, longest)),
        )
    )
    first, last = moment(shown[0].triggered_at), moment(shown[-1].triggered_at)
    last_at = min(_WIDTH, max(_LEFT + step * len(shown), _LEFT + 420))
    ends = f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{first}</text>'
    if len(shown) > 1:
        ends += f'<text x="{last_at:.0f}" y="{_HEIGHT - 6}" text-anchor="end">{last}</text>'
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" role="img" '
        f'aria-label="durations of the last {counted(len(shown), "checkpoint")}">{lines}{bars}{ends}</svg>'
    )


def _y(seconds: float, longest: float) -> float:
    return _BASE - (_BASE - 18) * seconds / longest


def _bar(row: CheckpointStatistics, index: int, step: float, longest: float) -> str:
    x, width = _LEFT + index * step + step * 0.12, max(1.0, step * 0.76)
    parts = _scaled(row)
    drawn, at = [], 0.0
    for value, color in (
        (parts.delay, "delay"), (parts.wait, "wait"), (parts.sync, "sync"), (parts.store, "async"),
    ):  # fmt: skip
        low, high = _y(at, longest), _y(at + value, longest)
        at += value
        if low - high > 0.05:
            place = f'x="{x:.1f}" width="{width:.1f}" y="{high:.1f}" height="{low - high:.1f}"'
            drawn.append(f'<rect {place} fill="var(--{color})"/>')
    if row.status is CheckpointStatus.FAILED:
        drawn.append(_mark(x + width / 2, _BASE - 4, "bad", "✕"))
    elif row.kind.is_savepoint:
        drawn.append(_mark(x + width / 2, 12, "save", "▲"))
    return f"<g><title>{escape(_told(row))}</title>{''.join(drawn)}</g>"


def _mark(x: float, y: float, color: str, sign: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.0f}" text-anchor="middle" style="fill:var(--{color})">{sign}</text>'


def _scaled(row: CheckpointStatistics) -> _Parts:
    """Return the parts of a bar: what no stage accounts for (messages, the store) counts as storing."""
    total = row.duration or 0.0
    delay, wait, sync = (
        max((getattr(stage.metrics, name) for stage in row.stages), default=0.0) / 1000
        for name in ("start_delay_ms", "alignment_ms", "sync_ms")
    )
    known = delay + wait + sync
    if known > total:  # stages wait one after the other: their longest parts overlap
        shrink = total / known
        return _Parts(delay * shrink, wait * shrink, sync * shrink, 0.0)
    return _Parts(delay, wait, sync, total - known)


def _told(row: CheckpointStatistics) -> str:
    what = f"{row.kind.noun} {row.checkpoint_id}, {row.status.value}, {duration(row.duration)}"
    slowest = max(row.stages, key=lambda s: s.latest_ack_at or 0.0, default=None)
    if slowest is not None and slowest.latest_ack_at is not None:
        what += f"; acknowledged last: {slowest.uid}"
    return f"{what}; {row.failure_message}" if row.failure_message else what
