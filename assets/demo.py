"""``make demo``: the reference pipeline as its users live it, in a few minutes, with proof at the end.

Days of flights arrive and epochs run as real Dagster runs; a savepoint is taken; one run is killed with SIGKILL in the
middle of its work and the pipeline restarted from its latest checkpoint. The same pipeline then goes on as a stream
while more days arrive, with checkpoints on a timer, and is stopped with a savepoint; both tables are compared with the
truth. Last, a second pipeline forks from the first savepoint, replays, and is compared as well. What readers saw on the
way is recorded, and judged by a checker of its own. Everything stays under ``.demo/``.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deltalake.exceptions import DeltaError
from rich.console import Console

from assets import truth
from assets.demo_deployment import Deployment, RunFailed, StandsStill
from assets.demo_history import DemoHistory
from assets.flights import ARRIVALS, DEMO_DIR
from assets.flights_data import FlightsFeed, date_of, prepare

FIRST, SECOND, KILLED, LAST = range(1, 101), range(101, 171), range(171, 271), range(271, 336)
"""Days of 2013 that arrive before each epoch."""
STREAMED, AT_ONCE = range(336, 366), 5
"""Days that arrive while the pipeline streams, so many together."""

out = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """Run the demonstration; 0 when every row is as it should be."""
    began = time.monotonic()
    _clean()
    feed = prepare(ARRIVALS)
    say(f"flights and weather of 2013 lie ready in {ARRIVALS.name}/ ({_seconds(began)})")
    with Deployment(DEMO_DIR) as dagster:
        say(f"Dagster is up: {dagster.url}")
        try:
            differences = _story(dagster, feed)
        except RunFailed as error:
            out.print(f"[red]{error}[/red]")
            return 1
    say(f"finished in {_seconds(began)}; `make dev` shows these runs and checkpoints in Dagster")
    if differences:
        out.print(f"[red]{differences} of 5 comparisons differ from the truth[/red]")
        return 1
    out.print("[green]nothing lost, nothing doubled[/green]")
    return 0


@dataclass(frozen=True)
class _Source:
    """Days that arrive, each recorded before it does."""

    feed: FlightsFeed
    history: DemoHistory

    def arrive(self, day: int) -> None:
        self.history.arrive(day)
        self.feed.arrive(day)


def _story(dagster: Deployment, feed: FlightsFeed) -> int:
    history = DemoHistory(DEMO_DIR / "history.jsonl")
    source = _Source(feed, history)
    _epoch(dagster, source, "epoch 1", FIRST)
    _epoch(dagster, source, "epoch 2", SECOND)
    savepoint = _savepoint(dagster)
    _killed(dagster, source)
    _epoch(dagster, source, "epoch 3, again", LAST, note="restarted from the latest checkpoint; meanwhile")
    _stream(dagster, source)
    differences = _compare("flights", DEMO_DIR / "tables")
    history.look(DEMO_DIR / "tables", settled=True)
    _fork(dagster, savepoint)
    history.fork("flights_fork", SECOND[-1])
    history.look(DEMO_DIR / "fork_tables", "flights_fork", settled=True)
    return differences + _compare("flights_fork", DEMO_DIR / "fork_tables") + _judged(history)


# --- chapters -----------------------------------------------------------------------------------------------------


def _epoch(dagster: Deployment, source: _Source, name: str, days: range, *, note: str = "") -> None:
    for day in days:
        source.arrive(day)
    heading(name, f"{note} {date_of(days[0])} to {date_of(days[-1])} arrive".strip())
    run = dagster.run("flights")
    source.history.look(DEMO_DIR / "tables")
    _report(dagster, run)


def _savepoint(dagster: Deployment) -> str:
    heading("savepoint", "of the idle pipeline, self-contained and relocatable")
    run = dagster.run("flights_savepoint", {"ops": {"savepoint": {"config": {"name": "after epoch 2"}}}})
    _report(dagster, run)
    location = dagster.checkpoint_of(run)["location"]
    return str(location)


def _killed(dagster: Deployment, source: _Source) -> None:
    for day in KILLED:
        source.arrive(day)
    heading("epoch 3", f"{date_of(KILLED[0])} to {date_of(KILLED[-1])} arrive; the run will be killed")
    run = dagster.launch("flights")
    pid = dagster.kill_when_step_runs(run, "airport_delays")
    source.history.killed()
    source.history.look(DEMO_DIR / "tables")
    say(
        f"run {run[:8]} (process {pid}) killed with SIGKILL while airport_delays was at work: {dagster.wait(run)}"
    )


def _stream(dagster: Deployment, source: _Source) -> None:
    """The same stages at once, as concurrent queries: barriers flow while days keep arriving."""
    heading(
        "stream", f"{date_of(STREAMED[0])} to {date_of(STREAMED[-1])} arrive while all stages run at once"
    )
    run = dagster.launch("flights_streaming", {"ops": {"stream": {"config": {"report": "all"}}}})

    def completed() -> int:
        return len(dagster.checkpoints_of(run, "flights"))

    for first in STREAMED[::AT_ONCE]:
        seen = completed()
        dagster.until(run, "a checkpoint completes", lambda seen=seen: completed() > seen, completed)  # type: ignore[misc]
        for day in range(first, min(first + AT_ONCE, STREAMED[-1] + 1)):
            source.arrive(day)
        source.history.look(DEMO_DIR / "tables")
    tables = DEMO_DIR / "tables"
    with suppress(StandsStill):  # the comparison says what is missing
        dagster.until(run, "the tables hold all", lambda: not _differences(tables), lambda: _files(tables))
    taken = dagster.checkpoints_of(run, "flights")
    times = sorted(1e3 * float(checkpoint["duration_s"]) for checkpoint in taken)
    say(
        f"{len(taken)} checkpoints on a timer of 2 s, completed in {times[len(times) // 2]:.0f} ms (median) to "
        f"{times[-1]:.0f} ms; the newest: {int(taken[-1]['bytes_new']):,} bytes new of {int(taken[-1]['bytes_full']):,}"
    )
    stopped = dagster.run(
        "flights_savepoint", {"ops": {"savepoint": {"config": {"action": "stop", "name": "end of the year"}}}}
    )
    savepoint = dagster.checkpoints_of(run, "flights")[-1]
    say(
        f"stopped with {savepoint['partition']} by run {stopped[:8]}: the stream ended as {dagster.wait(run)} "
        f"after {dagster.seconds(run):.0f} s"
    )


def _fork(dagster: Deployment, savepoint: str) -> None:
    heading("fork", "a second pipeline starts from the savepoint and replays everything after it")
    config = {"ops": {"restore": {"config": {"restore_from": savepoint, "fork": True}}}}
    _report(dagster, dagster.run("flights_fork", config))


def _differences(tables: Path) -> int:
    """How many tables differ from the truth at this moment; a file may come or go under the reader."""
    try:
        delays = truth.compare_airport_delays(tables / "airport_delays", truth.closed_days(truth.WHOLE_YEAR))
        totals = truth.compare_tail_totals(tables / "tail_totals", truth.WHOLE_YEAR)
    except (OSError, DeltaError):
        return 2
    return (not delays.ok) + (not totals.ok)


def _files(tables: Path) -> list[str]:
    """The files that readers see: they change while rows are published."""
    return sorted(
        path.name for kind in ("*.parquet", "_delta_log/*.json") for path in tables.glob(f"*/{kind}")
    )


def _compare(pipeline: str, tables: Path) -> int:
    heading("truth", f"tables of {pipeline} against pandas over the CSV files")
    closed = truth.closed_days(truth.WHOLE_YEAR)
    delays = truth.compare_airport_delays(tables / "airport_delays", closed)
    totals = truth.compare_tail_totals(tables / "tail_totals", truth.WHOLE_YEAR)
    say(f"joined flights of the year: {truth.joined_count():,}")
    say(f"airport_delays ({len(closed)} days whose watermark has passed): {delays}")
    say(f"tail_totals: {totals}; {truth.tail_totals().without_tail_number:,} flights have no tail number")
    return (not delays.ok) + (not totals.ok)


def _judged(history: DemoHistory) -> int:
    reads, found = history.judged()
    say(f"{reads} reads on the way, judged by a checker: {len(found)} anomalies")
    for one in found[:10]:
        say(str(one))
    return bool(found)


# --- printing -----------------------------------------------------------------------------------------------------


def _report(dagster: Deployment, run: str) -> None:
    for line in dagster.stage_lines(run):
        say(line)
    checkpoint = dagster.checkpoint_of(run)
    say(
        f"{checkpoint['partition']} completed in {float(checkpoint['duration_s']):.1f} s: "
        f"{int(checkpoint['bytes_new']):,} bytes new of {int(checkpoint['bytes_full']):,}; "
        f"run {run[:8]} took {dagster.seconds(run):.0f} s"
    )


def heading(name: str, text: str) -> None:
    """Begin a chapter."""
    out.print(f"\n[bold]{name}[/bold]  {text}")


def say(line: str) -> None:
    """Print one line of the report."""
    out.print(f"  {line}")


def _seconds(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


def _clean() -> None:
    for name in (
        "dagster_home",
        "arrivals",
        "checkpoints",
        "savepoints",
        "work",
        "tables",
        "fork_tables",
        "reports",
    ):
        shutil.rmtree(DEMO_DIR / name, ignore_errors=True)
    for path in DEMO_DIR.glob("coordinator.db*"):
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
