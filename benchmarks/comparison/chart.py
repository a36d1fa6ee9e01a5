"""Draws what the comparison has measured as one SVG: bars of the ways, curves of ours. Legible on light and on dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, MARGIN, BAR, GAP = 900, 24, 22, 10
LABELS, VALUES = 250, 90
CURVE_HEIGHT, CURVE_WIDTH = 170, 420
INK, QUIET, OURS, OTHERS, SECOND = "#57606a", "#8c959f", "#1a7f64", "#9aa7b4", "#c4722b"


@dataclass(frozen=True)
class Bars:
    """One figure of each way."""

    title: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Curve:
    """Rows per second and milliseconds of a checkpoint at rest, by one setting."""

    title: str
    points: Sequence[tuple[float, float, float]]


def draw(bars: Sequence[Bars], curves: Sequence[Curve]) -> str:
    """Return the SVG."""
    parts: list[str] = []
    y = MARGIN
    for panel in bars:
        parts.append(_text(MARGIN, y + 6, panel.title, weight="600"))
        y += 20
        most = max(panel.values.values(), default=1.0) or 1.0
        for name, value in panel.values.items():
            parts.append(_bar(name, value, most, y))
            y += BAR + GAP
        y += 14
    for at, one in enumerate(curves):
        left = MARGIN + (at % 2) * (CURVE_WIDTH + 20)
        parts.append(_curve(one, left, y))
        if at % 2 or at == len(curves) - 1:
            y += CURVE_HEIGHT + 46
    style = "font-family: system-ui, sans-serif; font-size: 13px"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" style="{style}" '
        f'role="img" aria-label="Flink, Spark and dagster_ckpt compared">{"".join(parts)}</svg>\n'
    )


def _bar(name: str, value: float, most: float, y: float) -> str:
    width = (WIDTH - 2 * MARGIN - LABELS - VALUES) * value / most
    color = OURS if name.startswith("dagster_ckpt") else OTHERS
    left = MARGIN + LABELS
    return (
        _text(left - 10, y + 16, name, anchor="end")
        + f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{color}"/>'
        + _text(left + width + 8, y + 16, _number(value))
    )


def _curve(one: Curve, left: float, top: float) -> str:
    """Both figures from zero, each to its own greatest; the setting on a logarithmic axis."""
    xs = [math.log10(max(point[0], 1)) for point in one.points]
    low, span = min(xs), (max(xs) - min(xs)) or 1.0
    at = [left + 20 + (CURVE_WIDTH - 70) * (x - low) / span for x in xs]
    base = top + CURVE_HEIGHT
    parts = [
        _text(left, top + 6, f"by {one.title}", weight="600"),
        f'<line x1="{left + 10}" x2="{left + CURVE_WIDTH - 30}" y1="{base}" y2="{base}" stroke="{QUIET}"/>',
    ]
    for index, (color, unit) in enumerate(((OURS, "rows/s"), (SECOND, "ms a checkpoint at rest")), start=1):
        values = [point[index] for point in one.points]
        most = max(values) or 1.0
        ys = [base - (CURVE_HEIGHT - 50) * value / most for value in values]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(at, ys, strict=True))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in zip(at, ys, strict=True)
        ]
        text = f"{unit}: {', '.join(_number(value) for value in values)}"
        parts.append(_text(left, top + 6 + 16 * index, text, color=color, size=11))
    parts += [
        _text(x, base + 16, _number(point[0]), anchor="middle", size=11)
        for x, point in zip(at, one.points, strict=True)
    ]
    return "".join(parts)


def _number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    if value >= 10_000:
        return f"{value / 1e3:,.0f} k"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    weight: str = "400",
    color: str = INK,
    size: int = 13,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}" '
        f'fill="{color}">{escape(text)}</text>'
    )
