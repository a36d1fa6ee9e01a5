"""The checkpoint page as one HTML file, and a small read-only server of it for this machine, without login."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.core.units import counted, duration, moment
from dagster_ckpt.errors import CheckpointError, InvalidRequest, NotFound, Unavailable
from dagster_ckpt.page.facts import CheckpointPage, Links
from dagster_ckpt.page.sections import (
    audit,
    cards,
    details,
    history,
    in_progress,
    index,
    last_failure,
    restorable,
    settings,
    stages,
    summary,
)

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
    served = "" if page.readers is None else escape(page.readers.sentence(page.pipeline))
    found = [escape(page.late_tables), served]
    readers = "".join(f"<div class=sub>{text}</div>" for text in found if text)
    newest = escape(page.newest) if page.newest else "No snapshot yet"
    body = (
        f"<h1>{escape(page.pipeline)}</h1><div class=sub>{_about(page, goes)}</div>{readers}{last_failure(page)}"
        f"<h2>Checkpoints since the pipeline exists</h2>{cards(page)}{in_progress(page.pending)}"
        f"<h2>Duration of the last {len(page.statistics.history)}</h2>"
        f'<div class="card">{durations_chart(page.statistics.history)}{_KEY}</div>'
        f"<h2>Where it can go back to</h2>{restorable(page, goes)}"
        f"<h2>{newest}, stage by stage</h2>{stages(page)}"
        f"<h2>Summary</h2>{summary(page)}"
        f"<h2>History</h2>{history(page, goes)}{details(page)}"
        f"{_audited(page, goes)}{settings(page) if page.settings else ''}"
        f"<p class=k>Read at {moment(page.now)}.</p>"
    )
    return _document(f"{page.pipeline} · checkpoints", body, refresh)


def _audited(page: CheckpointPage, links: Links) -> str:
    return f"<h2>Restored, forked, disposed of</h2>{audit(page, links)}" if page.audit else ""


def index_html(pipelines: Mapping[str, CheckpointPage | str], *, refresh: int | None = None) -> str:
    """Return a page of the pipelines of a store: their state, or why it cannot be read, and links to their pages."""
    found = index(pipelines) if pipelines else "<p>None has run yet.</p>"
    return _document("checkpoints", f"<h1>Pipelines</h1>{found}", refresh)


def _about(page: CheckpointPage, links: Links) -> str:
    run = escape(page.run_id[:8])
    if page.run_id and links.run is not None:
        run = f'<a href="{escape(links.run(page.run_id))}">{run}</a>'
    alive = "alive" if page.is_alive else "no process is alive"
    asset = f' · <a href="{escape(links.asset)}">asset</a>' if links.asset else ""
    return (
        f"{escape(page.status)} · attempt {page.epoch}"
        + (f", run {run}" if run else "")
        + f" · {alive}{asset}"
    )


def _document(title: str, body: str, refresh: int | None) -> str:
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"{again}<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    )


_OF_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class PageServer(ThreadingHTTPServer):
    """Answers ``/`` and ``/<pipeline>`` with what ``render`` returns for the pipeline (empty: the index).

    Raises Unavailable: the port is taken.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, render: Callable[[str], str]) -> None:
        self.render = render
        self.names = _OF_THIS_MACHINE | {host} if host in _OF_THIS_MACHINE else None
        """Names by which it is asked for; None: anybody may reach it, by names that only its network knows."""
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise Unavailable(
                f"the page cannot be served at {host}:{port}: {error}. Choose another --port"
            ) from error

    @property
    def url(self) -> str:
        """Address of the index."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        """Answer with a page."""
        if self.server.names is not None and self._asked_for() not in self.server.names:
            # Another web page's name that leads here: a browser would show it this one's content.
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", f"ask for {self.server.url}")
            return
        name = unquote(urlsplit(self.path).path).strip("/")
        try:
            self._answer(HTTPStatus.OK, "text/html", self.server.render(name))
        except (NotFound, InvalidRequest) as error:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", str(error))
        except CheckpointError as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))
        except Exception as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{type(error).__name__}: {error}")

    def _asked_for(self) -> str:
        host = self.headers.get("Host", "").lower()
        return host if host.endswith("]") else host.rpartition(":")[0] or host

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: a page that refreshes itself would fill the terminal."""
