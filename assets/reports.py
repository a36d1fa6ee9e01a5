"""A report of plain Dagster on the published tables: made again when a checkpoint or a restore changed their rows."""

import base64
from typing import Any

import dagster as dg

from assets.flights import DEMO_DIR, flights_pipeline
from dagster_ckpt import CheckpointCoordinatorResource, load_table

REPORTS = DEMO_DIR / "reports"
WIDTH, HEIGHT = 730, 240
COLORS = {"EWR": "#d95f02", "JFK": "#1b9e77", "LGA": "#7570b3"}


@dg.asset(
    deps=[["flights", "airport_delays"], ["flights", "tail_totals"]],
    automation_condition=dg.AutomationCondition.eager(),
    group_name="flights",
    owners=["team:flights"],
    kinds={"pandas", "svg"},
)
def delays_report(checkpoint_coordinator: CheckpointCoordinatorResource) -> dg.MaterializeResult[None]:
    """Mean departure delays per airport and day, and the airplanes that flew farthest."""
    delays = load_table(flights_pipeline, "airport_delays", coordinator=checkpoint_coordinator).to_pandas()
    totals = load_table(flights_pipeline, "tail_totals", coordinator=checkpoint_coordinator).to_pandas()
    plot = _plot(delays)
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS / "delays.svg").write_text(plot)
    farthest = totals.nlargest(5, "distance")[["tailnum", "flights", "distance"]]
    encoded = base64.b64encode(plot.encode()).decode()
    return dg.MaterializeResult(
        metadata={
            "plot": dg.MetadataValue.md(f"![mean departure delay](data:image/svg+xml;base64,{encoded})"),
            "airports": dg.MetadataValue.md(_airports(delays)),
            "farthest": dg.MetadataValue.table(
                [dg.TableRecord(_plain(row)) for row in farthest.to_dict("records")]
            ),
            "file": dg.MetadataValue.path(str(REPORTS / "delays.svg")),
            "days": int(delays["day"].nunique()),
            "flights": int(delays["flights"].sum()),
        }
    )


def _plain(row: dict[Any, Any]) -> dict[str, str | int | float]:
    return {name: value if isinstance(value, str) else int(value) for name, value in row.items()}


def _airports(delays: Any) -> str:
    """A table in Markdown: per airport its days, flights and mean delay."""
    lines = ["| airport | days | flights | mean delay (min) |", "|---|---|---|---|"]
    for origin, rows in delays.groupby("origin"):
        weighted = (rows["mean_dep_delay"] * rows["flights"]).sum() / rows["flights"].sum()
        lines.append(f"| {origin} | {len(rows)} | {int(rows['flights'].sum()):,} | {weighted:.1f} |")
    return "\n".join(lines)


def _plot(delays: Any) -> str:
    """A line per airport over the days, as SVG; no plotting library is needed for it."""
    days = sorted(delays["day"].unique())
    highest = max(float(delays["mean_dep_delay"].max()), 1.0) if len(delays) else 1.0
    place = {day: number * WIDTH / max(len(days) - 1, 1) for number, day in enumerate(days)}
    lines = []
    for number, (origin, rows) in enumerate(delays.sort_values("day").groupby("origin")):
        points = " ".join(
            f"{place[day]:.1f},{HEIGHT - max(delay, 0.0) / highest * HEIGHT:.1f}"
            for day, delay in zip(rows["day"], rows["mean_dep_delay"], strict=True)
        )
        color = COLORS.get(str(origin), "#666666")
        lines.append(f'<polyline fill="none" stroke="{color}" points="{points}"/>')
        lines.append(f'<text x="{8 + 48 * number}" y="16" fill="{color}" font-size="14">{origin}</text>')
    scale = f'<text x="{WIDTH - 90}" y="16" font-size="12">{highest:.0f} minutes</text>'
    body = "".join([*lines, scale])
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">{body}</svg>'
