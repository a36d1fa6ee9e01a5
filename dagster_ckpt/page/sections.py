"""Parts of the checkpoint page, as HTML. Everything that came from outside is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from dagster_ckpt.core.checkpoint.statistics import (
    STORED_SUBTASKS,
    CheckpointStatistics,
    CheckpointStatus,
    MinMaxAvg,
    StageStatistics,
)
from dagster_ckpt.core.model import SnapshotMetrics
from dagster_ckpt.core.restore.horizon import no_longer
from dagster_ckpt.core.units import ago, count, counted, duration, milliseconds, moment, size
from dagster_ckpt.operations.snapshots.catalog import SnapshotSummary
from dagster_ckpt.page.facts import CheckpointPage, Links, PendingCheckpoint, StagePosition

_STATUS_COLOR = {CheckpointStatus.FAILED: "bad", CheckpointStatus.IN_PROGRESS: "run"}
_BAR_PARTS = (
    ("delay", "start_delay_ms"), ("wait", "alignment_ms"), ("sync", "sync_ms"), ("async", "async_ms"),
)  # fmt: skip


def cards(page: CheckpointPage) -> str:
    """Return the counts."""
    counts, summary_ = page.statistics.counts, page.statistics.summary
    restored = f"restored, last from {escape(page.restored_key)}" if page.restored_key else "restored"
    told = [
        _card(count(counts.total), "triggered"),
        _card(count(counts.completed), "completed", "ok"),
        _card(count(len(page.pending)), "in progress", "run" if page.pending else ""),
        _card(count(counts.failed), "failed", "bad" if counts.failed else ""),
        _card(count(counts.restored), restored),
    ]
    if summary_.duration is not None:
        spread = summary_.duration.quantiles
        told.append(
            _card(
                duration(spread[0.5]), f"median · p95 {duration(spread[0.95])} · p99 {duration(spread[0.99])}"
            )
        )
    if summary_.bytes_full is not None and summary_.bytes_new is not None:
        new = size(summary_.bytes_new.quantiles[0.5])
        newest = page.newest_statistics
        full = summary_.bytes_full.quantiles[0.5] if newest is None else newest.bytes_full
        told.append(_card(size(full), f"full · {new} new (median)"))
    return f'<div class="row">{"".join(told)}</div>'


def _card(number: str, what: str, color: str = "") -> str:
    return f'<div class="card"><div class="n {color}">{number}</div><div class="k">{what}</div></div>'


def in_progress(pending: Sequence[PendingCheckpoint]) -> str:
    """Return the stages that checkpoints in progress wait for; none: no section."""
    return "".join(
        f'<div class="card"><b class="run">{escape(one.key)}</b> since {duration(one.since)}: '
        f"{len(one.acknowledged)} of {len(one.acknowledged) + len(one.missing)} acknowledged"
        + (f", waits for <b>{escape(', '.join(one.missing))}</b>" if one.missing else ", is being completed")
        + f'<div class="k">{_expiry(one.expires_in)}</div></div>'
        for one in pending
    )


def _expiry(left: float) -> str:
    return f"expires in {duration(left)}" if left > 0 else f"expired {duration(-left)} ago"


def restorable(page: CheckpointPage, links: Links) -> str:
    """Return the table of what can be restored from, newest first."""
    if not page.restorable:
        return '<div class="card k">Nothing yet: the first completed checkpoint appears here.</div>'
    head = _head("snapshot*", "taken*", "kind*", "took", "full", "new", "attempt", "*")
    return _table(head, (_restorable_row(page, one, links) for one in page.restorable))


def _restorable_row(page: CheckpointPage, one: SnapshotSummary, links: Links) -> str:
    gone = no_longer(one.key, one.lost, one.lost_since)
    note = " · ".join(filter(None, (one.name, one.note, gone)))
    named = f"<b>{escape(one.key)}</b>" + (f'<div class="k">{escape(note)}</div>' if note else "")
    taken = "-" if one.completed_at is None else ago(page.now - one.completed_at)
    at = f'<span title="{moment(one.completed_at)}">{taken}</span>'
    kind = "savepoint" if "savepoint" in one.kind else "checkpoint"
    tag = f'<span class="tag {"save" if kind == "savepoint" else "ok"}">{kind}</span>'
    return _row(
        f"w{named}", f"*{at}", f"*{tag}", duration(one.duration), size(one.bytes_full), size(one.bytes_new),
        str(one.epoch), f"*{_way_back(one, links)}",
    )  # fmt: skip


def _way_back(one: SnapshotSummary, links: Links) -> str:
    """Return how it is restored; that it is gone, where it cannot be."""
    goes = []
    if one.lost:
        return '<span class="bad">gone</span>'
    if links.preview is not None:
        goes.append(f'<a href="{escape(links.preview(one.key))}">preview</a>')
    if links.restore is not None:
        goes.append(f'<a href="{escape(links.restore(one.key))}">restore →</a>')
    if not goes and links.command is not None:
        goes.append(f"<code>{escape(links.command(one.key))}</code>")
    return " · ".join(goes)


def stages(page: CheckpointPage) -> str:
    """Return the newest snapshot stage by stage, with its subtasks."""
    if page.unreadable:
        return (
            f'<div class="card alarm">{escape(page.newest)} cannot be read: {escape(page.unreadable)}</div>'
        )
    numbers = page.newest_statistics
    known = {stage.uid: stage for stage in numbers.stages} if numbers is not None else {}
    head = _head("stage*", "barrier's way*", "delay", "waited", "sync", "stored", "full", "new", "in flight",
                 "batch", "position*", "watermark*", "table*")  # fmt: skip
    return _table(head, (_stage_row(one, known.get(one.uid), numbers) for one in page.positions))


def _stage_row(
    position: StagePosition, numbers: StageStatistics | None, checkpoint: CheckpointStatistics | None
) -> str:
    metrics = SnapshotMetrics() if numbers is None else numbers.metrics
    fed_by = f'<div class="k">from {escape(", ".join(position.inputs))}</div>' if position.inputs else ""
    offsets = "<br>".join(
        escape(text if len(position.offsets) == 1 else f"{source}: {text}")
        for source, text in position.offsets
    )
    marked = moment(position.watermark_ms / 1000) if position.watermark_ms else "-"
    table = position.table.rstrip("/").rpartition("/")[2]
    return _row(
        f"*<b>{escape(position.uid)}</b>{fed_by}{_finished(position)}{_refused(metrics)}{_subtasks(numbers, position)}",
        f"*{_bar(metrics, numbers, checkpoint)}",
        *_times(metrics),
        size(metrics.bytes_full),
        size(metrics.bytes_new),
        size(metrics.persisted_in_flight) if metrics.persisted_in_flight else "-",
        "-" if position.batch_id is None else count(position.batch_id),
        f"w{offsets or '-'}",
        f"*{marked}",
        f'*<span title="{escape(position.table)}">{escape(table) or "-"}</span>',
    )


def _finished(position: StagePosition) -> str:
    return '<div class="k">FINISHED</div>' if position.is_finished else ""


def _times(metrics: SnapshotMetrics) -> list[str]:
    return [
        milliseconds(metrics.start_delay_ms),
        milliseconds(metrics.alignment_ms),
        milliseconds(metrics.sync_ms),
        milliseconds(metrics.async_ms),
    ]


def _refused(metrics: SnapshotMetrics) -> str:
    told = metrics.refused_rows
    return f'<div class="k">{escape(told)}</div>' if told else ""


def _subtasks(numbers: StageStatistics | None, position: StagePosition) -> str:
    """Return a line per subtask: as each acknowledged, or what each state partition keeps where its stage did."""
    lines = [
        f"{one.index}: stored {size(one.metrics.bytes_new)} of {size(one.metrics.bytes_full)} in "
        f"{milliseconds(one.metrics.sync_ms + one.metrics.async_ms)}{' (late)' if one.late else ''}"
        for one in (() if numbers is None else numbers.details)
    ] or [
        f"{one.index}: stored {size(one.bytes_new)} of {size(one.bytes_full)} in {counted(one.files, 'file')}"
        for one in position.subtasks
    ]
    if len(lines) < 2:
        return ""
    rows = "".join(f"<div>{line}</div>" for line in lines[:STORED_SUBTASKS])
    return f'<details class="k"><summary>{counted(len(lines), "subtask")}</summary>{rows}</details>'


def _bar(
    metrics: SnapshotMetrics, numbers: StageStatistics | None, checkpoint: CheckpointStatistics | None
) -> str:
    """Return the stage's part of the checkpoint as a timeline: from its trigger to its end."""
    if numbers is None or checkpoint is None or numbers.latest_ack_at is None or not checkpoint.duration:
        return ""
    parts = [(color, getattr(metrics, name)) for color, name in _BAR_PARTS]
    before = (numbers.latest_ack_at - checkpoint.triggered_at) * 1000 - sum(value for _, value in parts)
    scale = 100 / max(checkpoint.duration * 1000, sum(value for _, value in parts), 0.001)
    drawn = "".join(
        f'<i class="{color}" style="width:{value * scale:.2f}%"></i>'
        for color, value in (("", before), *parts)
        if value > 0
    )
    return f'<div class="bar" title="{_told(parts)}">{drawn}</div>'


def _told(parts: Sequence[tuple[str, float]]) -> str:
    names = ("first barrier", "waited", "synchronous", "stored")
    return " · ".join(
        f"{name} {milliseconds(value)}" for name, (_, value) in zip(names, parts, strict=True) if value
    )


def summary(page: CheckpointPage) -> str:
    """Return minimum, average and quantiles over the completed checkpoints known."""
    numbers = page.statistics.summary
    rows = [
        _summary_row("duration", numbers.duration, duration),
        _summary_row("full size", numbers.bytes_full, size),
        _summary_row("new bytes", numbers.bytes_new, size),
        _summary_row("in flight, stored", numbers.persisted_in_flight, size),
        _summary_row("in flight, processed", numbers.processed_in_flight, size),
    ]
    found = [row for row in rows if row]
    if not found:
        return '<div class="card k">No checkpoint has completed yet.</div>'
    return _table(
        _head("completed checkpoints*", "min", "average", "median", "p95", "p99", "max", "of"), found
    )


def _summary_row(name: str, numbers: MinMaxAvg | None, told: Callable[[float], str]) -> str:
    if numbers is None:
        return ""
    spread = numbers.quantiles
    values = (numbers.minimum, numbers.average, spread[0.5], spread[0.95], spread[0.99], numbers.maximum)
    return _row(f"*{name}", *(told(value) for value in values), count(numbers.count))


def history(page: CheckpointPage, links: Links) -> str:
    """Return the newest checkpoints, failed and discarded ones too."""
    head = _head("id*", "status*", "kind*", "triggered*", "took", "acknowledged", "full", "new", "in flight",
                 "what happened*")  # fmt: skip
    begins = f'<div class="k">{escape(page.history_begins)}</div>' if page.history_begins else ""
    return _table(head, (_history_row(page, row, links) for row in page.statistics.history)) + begins


def _history_row(page: CheckpointPage, row: CheckpointStatistics, links: Links) -> str:
    color = _STATUS_COLOR.get(row.status, "ok")
    status = f'<span class="tag {color}">{row.status.value.replace("_", " ")}</span>'
    kind = row.kind.value.replace("_", " ") + (" · unaligned" if row.unaligned else "")
    told = escape(row.failure_message or row.failure_reason)
    run = row.run_id[:8]
    if row.run_id and links.run is not None:
        run = f'<a href="{escape(links.run(row.run_id))}">{escape(run)}</a>'
    elif run:
        run = escape(run)
    what = told or (f"run {run}" if run else "")
    at = f'<span title="{moment(row.triggered_at)}">{ago(page.now - row.triggered_at)}</span>'
    flying = size(row.persisted_in_flight) if row.persisted_in_flight else "-"
    number = f'<a href="#c{row.checkpoint_id}">{row.checkpoint_id}</a>'
    return _row(
        f"*{number}", f"*{status}", f"*{kind}", f"*{at}", duration(row.duration),
        f"{row.acknowledged} of {row.subtasks}", size(row.bytes_full), size(row.bytes_new), flying, f"w{what}",
    )  # fmt: skip


def details(page: CheckpointPage) -> str:
    """Return every checkpoint of the history, stage by stage, folded up; the history links there."""
    return "".join(map(_details, page.statistics.history))


def _details(row: CheckpointStatistics) -> str:
    head = _head("stage*", "checkpoint*", "acknowledged", "delay", "waited", "sync", "stored", "full", "new",
                 "in flight")  # fmt: skip
    lines = _table(head, (_stage_details(stage, row) for stage in row.stages)) if row.stages else ""
    where = f'<div class="k">{escape(row.path)}</div>' if row.path else ""
    named = f"{row.kind.noun} {row.checkpoint_id}, {row.status.value.replace('_', ' ')}"
    inside = f'<div id="c{row.checkpoint_id}">{lines}{where}</div>'
    return f'<details class="k"><summary>{named}</summary>{inside}</details>'


def _stage_details(stage: StageStatistics, row: CheckpointStatistics) -> str:
    metrics = stage.metrics
    ended = '<div class="k">FINISHED</div>' if stage.finished else ""
    return _row(
        f"*<b>{escape(stage.uid)}</b>{ended}{_refused(metrics)}",
        f"*{_bar(metrics, stage, row)}",
        f"{stage.acknowledged} of {stage.subtasks}",
        *_times(metrics),
        size(metrics.bytes_full),
        size(metrics.bytes_new),
        size(metrics.persisted_in_flight) if metrics.persisted_in_flight else "-",
    )


def settings(page: CheckpointPage) -> str:
    """Return the settings of the newest attempt, folded up: those that were set stand out from the defaults."""
    rows = (
        _row(f"*{f'<b>{escape(name)}</b>' if is_set else escape(name)}", f"w{escape(value)}",
             "*" if is_set else "*<span class=k>default</span>")
        for name, value, is_set in page.settings
    )  # fmt: skip
    found = _table(_head("setting*", "value*", "*"), rows)
    return f'<details class="k"><summary>Settings of attempt {page.epoch}</summary>{found}</details>'


def last_failure(page: CheckpointPage) -> str:
    """Return why the pipeline has failed, and why checkpoints have since the newest that completed."""
    failed, done = page.statistics.latest_failed, page.statistics.latest_completed
    told = [escape(page.job_failure)] if page.job_failure else []
    if failed is not None and (done is None or failed.checkpoint_id > done.checkpoint_id):
        since = ago(page.now - (failed.ended_at or failed.triggered_at))
        why = escape(failed.failure_message or failed.failure_reason)
        told.append(f"{failed.kind.noun} {failed.checkpoint_id} failed {since}: {why}")
    return "".join(f'<div class="card alarm">{text}</div>' for text in told)


def index(pipelines: Mapping[str, CheckpointPage | str]) -> str:
    """Return the pipelines of a store, each with its state; a sentence for one that cannot be read."""
    head = _head("pipeline*", "status*", "newest*", "failed since", "can go back to", "last failure*")
    return _table(head, (_index_row(name, page) for name, page in pipelines.items()))


def _index_row(name: str, page: CheckpointPage | str) -> str:
    link = f'*<a href="/{escape(name)}">{escape(name)}</a>'
    if isinstance(page, str):
        return _row(link, '*<span class="tag bad">cannot be read</span>', "*", "", "", f"w{escape(page)}")
    done = page.statistics.latest_completed
    since = [row for row in page.statistics.history if done is None or row.checkpoint_id > done.checkpoint_id]
    failed = sum(row.status is CheckpointStatus.FAILED for row in since)
    newest = "-" if done is None else ago(page.now - (done.ended_at or done.triggered_at))
    alive = "" if page.is_alive else " · no process is alive"
    return _row(
        link,
        f"*{escape(page.status)}{alive}",
        f"*{newest}",
        f'<span class="{"bad" if failed else ""}">{failed}</span>',
        counted(len(page.restorable), "snapshot"),
        f"w{last_failure(page)}",
    )


def audit(page: CheckpointPage, links: Links) -> str:
    """Return the deeds of people, with the preview they were shown."""
    rows = []
    for one in page.audit:
        run = escape(one.run_id[:8])
        if one.run_id and links.run is not None:
            run = f'<a href="{escape(links.run(one.run_id))}">{run}</a>'
        who = " · ".join(part for part in (escape(one.who), f"run {run}" if run else "") if part) or "-"
        at = f'<span title="{moment(one.at)}">{ago(page.now - one.at)}</span>'
        shown = "<br>".join(escape(line) for line in one.shown.splitlines()) or "-"
        rows.append(
            _row(
                f"*{at}",
                f"*{escape(one.what)}",
                f"*{escape(one.key or 'from nothing')}",
                f"*{who}",
                f"w{shown}",
            )
        )
    return _table(_head("when*", "what*", "snapshot*", "who*", "what was shown before*"), rows)


# --- tables -------------------------------------------------------------------------------------------------


def _head(*names: str) -> str:
    """Return a head; names that end in ``*`` stand above text."""
    cells = "".join(
        f"<th{' class=l' if name.endswith('*') else ''}>{name.removesuffix('*')}</th>" for name in names
    )
    return f"<tr>{cells}</tr>"


def _row(*cells: str) -> str:
    """Return a row; cells that begin with ``*`` hold text, with ``w`` and more text that may be broken."""
    return f"<tr>{''.join(map(_cell, cells))}</tr>"


def _cell(text: str) -> str:
    match text[:1]:
        case "*":
            return f"<td class=l>{text[1:]}</td>"
        case "w":
            return f'<td class="l w">{text[1:]}</td>'
        case _:
            return f"<td>{text}</td>"


def _table(head: str, rows: Iterable[str]) -> str:
    return f'<div class="card wide"><table>{head}{"".join(rows)}</table></div>'
