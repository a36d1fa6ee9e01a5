"""The checkpoint page as one HTML file that needs nothing else, and refreshes itself where it is served."""

from __future__ import annotations

from html import escape

from dagster_ckpt.core.units import moment
from dagster_ckpt.page.chart import durations_chart
from dagster_ckpt.page.facts import CheckpointPage, Links
from dagster_ckpt.page.sections import audit, cards, history, in_progress, restorable, stages, summary
from dagster_ckpt.page.style import STYLE

__all__ = ["index_html", "page_html"]

_KEY = (
    '<div class="k key"><i class="delay"></i>until the first barrier<i class="wait"></i>waiting for the other barriers'
    '<i class="sync"></i>synchronous part<i class="async"></i>storing and completing '
    '&nbsp; <span class="save">▲</span> savepoint &nbsp; <span class="bad">✕</span> failed</div>'
)


def page_html(page: CheckpointPage, *, links: Links | None = None, refresh: int | None = None) -> str:
    """Return the page. ``refresh``: seconds after which a browser loads it again; None: never."""
    goes = links or Links()
    failed = f'<div class="card alarm">{escape(page.job_failure)}</div>' if page.job_failure else ""
    served = "" if page.readers is None else escape(page.readers.sentence(page.pipeline))
    found = [escape(page.late_tables), served]
    readers = "".join(f"<div class=sub>{text}</div>" for text in found if text)
    newest = escape(page.newest) if page.newest else "No snapshot yet"
    body = (
        f"<h1>{escape(page.pipeline)}</h1><div class=sub>{_about(page, goes)}</div>{readers}{failed}"
        f"<h2>Checkpoints since the pipeline exists</h2>{cards(page)}{in_progress(page.pending)}"
        f"<h2>Duration of the last {len(page.statistics.history)}</h2>"
        f'<div class="card">{durations_chart(page.statistics.history)}{_KEY}</div>'
        f"<h2>Where it can go back to</h2>{restorable(page, goes)}"
        f"<h2>{newest}, stage by stage</h2>{stages(page)}"
        f"<h2>Summary</h2>{summary(page)}"
        f"<h2>History</h2>{history(page, goes)}"
        f"{_audited(page, goes)}"
        f"<p class=k>Read at {moment(page.now)}.</p>"
    )
    return _document(f"{page.pipeline} · checkpoints", body, refresh)


def _audited(page: CheckpointPage, links: Links) -> str:
    return f"<h2>Restored, forked, disposed of</h2>{audit(page, links)}" if page.audit else ""


def index_html(pipelines: list[str], *, refresh: int | None = None) -> str:
    """Return a page that names the pipelines of a store, each with a link to its own."""
    links = "".join(f'<p><a href="/{escape(name)}">{escape(name)}</a></p>' for name in pipelines)
    return _document("checkpoints", f"<h1>Pipelines</h1>{links or '<p>None has run yet.</p>'}", refresh)


def _about(page: CheckpointPage, links: Links) -> str:
    run = escape(page.run_id[:8])
    if page.run_id and links.run is not None:
        run = f'<a href="{escape(links.run(page.run_id))}">{run}</a>'
    alive = "alive" if page.is_alive else "no process is alive"
    return f"{escape(page.status)} · attempt {page.epoch}" + (f", run {run}" if run else "") + f" · {alive}"


def _document(title: str, body: str, refresh: int | None) -> str:
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"{again}<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    )
