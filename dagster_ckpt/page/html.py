"""The checkpoint page as one HTML file that needs nothing else, and refreshes itself where it is served."""

from __future__ import annotations

from html import escape

from dagster_ckpt.core.units import moment
from dagster_ckpt.page.chart import durations_chart
from dagster_ckpt.page.facts import CheckpointPage, Links
from dagster_ckpt.page.sections import audit, cards, history, in_progress, restorable, stages, summary

STYLE = """
:root{--bg:#fbfbfa;--card:#fff;--ink:#1c1f23;--dim:#5d6572;--line:#e3e5e9;--ok:#1f7f53;--run:#2f5fe0;--bad:#c23a31;
--save:#7443e0;--sync:#d98a1f;--async:#4f93ee;--wait:#c3c8d1;--delay:#e6e8ec}
@media(prefers-color-scheme:dark){:root{--bg:#14161a;--card:#1b1e24;--ink:#e7e9ee;--dim:#a0a8b6;--line:#2a2e37;
--ok:#4cc38a;--run:#84a8ff;--bad:#ff8078;--save:#b49bff;--sync:#f0a63c;--async:#6aa7f8;--wait:#5a6270;--delay:#343a45}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:14px/1.45 ui-sans-serif,system-ui,"Segoe UI",Inter,sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 24px 60px}
h1{font-size:20px;margin:0 0 2px}
h2{font-size:13px;letter-spacing:.02em;margin:28px 0 10px;color:var(--dim);font-weight:600}
.sub,.k{color:var(--dim)}.k{font-size:12px}
.row{display:flex;gap:12px;flex-wrap:wrap}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.wide{padding:4px 6px;overflow-x:auto}
.n{font-size:22px;font-weight:650;font-variant-numeric:tabular-nums}
table{width:100%;border-collapse:collapse;font-variant-numeric:tabular-nums}
th{font-weight:600;color:var(--dim);font-size:12px;text-align:right;padding:6px 10px}
th{border-bottom:1px solid var(--line)}
td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child>td{border-bottom:0}
td,th{white-space:nowrap}
th.l,td.l{text-align:left}
td.w{white-space:normal;min-width:180px;max-width:420px;overflow-wrap:anywhere}
.tag{font-size:11px;padding:1px 7px;border-radius:99px;border:1px solid currentColor}
.ok{color:var(--ok)}.run{color:var(--run)}.bad{color:var(--bad)}.save{color:var(--save)}
a{color:var(--run);text-decoration:none}a:hover{text-decoration:underline}
code{font:12px ui-monospace,SFMono-Regular,Menlo,monospace}
.bar{display:flex;height:9px;border-radius:4px;overflow:hidden;width:180px;background:var(--bg);margin-top:6px}
.bar i{display:block;height:9px;flex:none}.bar i[class]:not([class=""]){min-width:2px}
.delay{background:var(--delay)}.wait{background:var(--wait)}.sync{background:var(--sync)}.async{background:var(--async)}
.key i{display:inline-block;width:9px;height:9px;border-radius:2px;margin:0 4px 0 12px}
svg{display:block}svg text{fill:var(--dim);font-size:11px}
details>summary{cursor:pointer}
.alarm{border-color:var(--bad)}
"""


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
