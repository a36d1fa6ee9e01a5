"""blue-green and replay, with the real jobs of a fork in this process; Spark is not needed to compare and swap."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.cli.commands import blue_green
from dagster_ckpt.cli.launch import launched
from tests.cli.conftest import Program
from tests.operations.readers.test_blue_green import Site
from tests.operations.world import World

FILE = str(Path(__file__).with_name("blue_green_location.py"))


@pytest.fixture
def site(world: World, base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Two tables that differ in one row, on disk."""
    monkeypatch.setenv("SALES", str(world.folder))
    monkeypatch.setenv("BASE", str(base))
    world.store.migrate()  # type: ignore[attr-defined]
    site = Site(world)
    site.publish(site.blue, 1, [(1, 10), (2, 20)])
    site.publish(site.green, 1, [(1, 10), (2, 21)])
    yield site
    sys.modules.pop("blue_green_location", None)


def test_a_fork_is_compared_swapped_in_and_swapped_back_from_the_command_line(
    run: Program, site: Site
) -> None:
    assert run("blue-green", "show", "sales").stdout == "readers of sales find its own tables\n"
    told = run("blue-green", "compare", "sales_green", "-f", FILE).stdout.splitlines()
    assert told[:3] == [
        "sales_green compared with sales, which serves sales",
        "totals: 1 row the same, 0 added, 0 missing, 1 changed",
        "  changed: k=2, v=20 -> k=2, v=21",
    ]
    printed = told[3].removeprefix("to swap readers: dagster-ckpt ")

    refused = run("blue-green", "swap", "sales_green", "-f", FILE, code=1)
    assert "1 changed: nothing was swapped" in refused.stdout
    assert site.read() == [(1, 10), (2, 20)]
    run(*shlex.split(printed))
    assert site.read() == [(1, 10), (2, 21)]
    shown = run("blue-green", "show", "sales").stdout
    assert re.match(r"readers of sales find the tables of sales_green since .* UTC; before: sales\n", shown)
    assert str(site.world.folder / "green" / "totals") in shown
    assert run("blue-green", "show", "sales_green").stdout == shown, "a fork is found by its own name"
    listed = run("list", "-p", "sales").stdout
    assert re.search(r"^readers find the tables of sales_green since .* UTC; before: sales$", listed, re.M)
    both = run("list").stdout
    assert re.search(r"^sales: readers find the tables of sales_green since ", both, re.M)
    assert re.search(r"^sales_green: readers of sales find its tables since ", both, re.M)
    assert re.search(
        r"readers: readers of sales find its tables since", run("show", "latest", "-p", "sales_green").stdout
    )
    names = {one["pipeline"]: one["serving"] for one in run.json("list", "--pipelines")}
    assert names == {"sales": "sales_green", "sales_green": ""}

    run("blue-green", "back", "sales_green", "-f", FILE)
    assert site.read() == [(1, 10), (2, 20)]
    assert "readers" not in run("list").stdout, "nothing is swapped any more"
    audit = run("audit", "-p", "sales").stdout
    assert re.search(r"swapped back +sales ", audit)
    assert re.search(r"swapped +sales_green ", audit)
    nothing = run("blue-green", "back", "sales_green", "-f", FILE, code=1)
    assert "there is nothing to swap back" in nothing.stdout


def test_a_comparison_as_json_has_the_approval_and_its_exit_code_says_whether_rows_differ(
    run: Program, site: Site
) -> None:
    found = run.json("blue-green", "compare", "sales_green", "-f", FILE, "--exit-code", code=1)
    assert (found["serving"], found["candidate"]) == ("sales", "sales_green")
    assert found["tables"][0]["diff"]["changed"] == 1
    assert found["approval"]
    site.publish(site.blue, 2, [(2, 21)])
    run("blue-green", "compare", "sales_green", "-f", FILE, "--exit-code")
    swapped = run.json("blue-green", "swap", "sales_green", "-f", FILE)
    assert swapped["run"]["status"] == "SUCCESS"
    assert (
        json.loads(run("blue-green", "show", "sales", "--json").stdout)["serving"]["pipeline"]
        == "sales_green"
    )


def test_without_code_and_of_what_is_no_fork_one_sentence_says_so(run: Program, site: Site) -> None:
    assert "the pipeline's code is needed" in run("blue-green", "compare", "sales_green", code=2).stderr
    assert "'sales' is no fork" in run("blue-green", "compare", "sales", "-f", FILE, code=2).stderr
    assert "knows no pipeline 'nobody'" in run("blue-green", "show", "nobody", code=3).stderr


def test_a_replays_plan_names_the_nearest_snapshot_before_a_moment(run: Program, site: Site) -> None:
    fork = site.green
    site.world.change(fork.name, latest_completed=1)
    refused = run("replay", fork.name, "1970-01-01T00:01", "--plan", "-f", FILE, code=2)
    assert "'sales_green' has run before" in refused.stderr
    planned = run("replay", fork.name, "1970-01-02", "--again", "--plan", "-f", FILE).stdout
    assert planned.startswith("would begin with chk-000001 of sales, taken 1970-01-01 00:00:01 UTC: file://")
    for nonsense in ("17.11.2026", "yesterday", "2026-13-01"):
        told = run("replay", fork.name, nonsense, "--again", "--plan", "-f", FILE, code=2)
        assert f"since={nonsense!r} is no moment and no snapshot: give a day (2026-11-17)" in told.stderr
    early = run("replay", fork.name, "1969-12-31", "--again", "--plan", "-f", FILE, code=3)
    assert "has no checkpoint or savepoint from before 1969-12-31 00:00:00 UTC" in early.stderr
    assert "the oldest, chk-000001, was complete at 1970-01-01 00:00:01 UTC" in early.stderr


def test_a_replay_prints_its_comparison_and_how_readers_are_swapped(
    run: Program, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run tells is printed: the comparing job's, which needs no Spark, is told as the replay tells its own."""

    def compares(work: Any, target: Any, job: str, op: str, *, config: Any, **_: Any) -> Any:
        assert (job, op, config["action"]) == ("sales_green_care", "care", "replay")
        return launched(work, target, job, op, config={"action": "compare"}, tags={})

    approved = run.json("blue-green", "compare", "sales_green", "-f", FILE)["approval"]
    monkeypatch.setattr(blue_green, "launched", compares)
    told = run("replay", "sales_green", "2026-11-17", "-f", FILE).stdout.splitlines()
    assert told[1:] == [
        "sales_green compared with sales, which serves sales",
        "totals: 1 row the same, 0 added, 0 missing, 1 changed",
        f"to swap readers: dagster-ckpt blue-green --base {run.base} swap sales_green --approved {approved} -f {FILE}",
    ]
    found = run.json("replay", "sales_green", "2026-11-17", "-f", FILE)["run"]
    assert (found["comparison"], found["approved"]) == (told[1:3], approved)


def test_one_table_at_two_snapshots_is_compared_and_a_snapshot_with_now(run: Program, site: Site) -> None:
    site.publish(site.blue, 2, [(2, 22), (3, 30)])
    of = ("-p", "sales", "--sink", "totals", "-f", FILE)
    told = run("diff-tables", "chk-1", "now", *of).stdout.splitlines()
    assert told[0].startswith("before: ")
    assert told[2:] == [
        "1 row is the same, 1 added, 0 missing, 1 changed",
        "  changed: k=2, v=20 -> k=2, v=22",
        "  added: k=3, v=30",
    ]
    assert run("diff-tables", "chk-2", "now", *of).stdout.endswith("they hold the same rows\n")
    narrowed = run("diff-tables", "chk-1", "chk-2", "--only", "k=1", "--exit-code", *of).stdout
    assert narrowed.endswith("they hold the same rows\n")
    assert "there is no chk-9" in run("diff-tables", "chk-9", "now", *of, code=3).stderr
    assert (
        "no sink 'nothing': name one of totals"
        in run("diff-tables", "chk-1", "now", "-p", "sales", "--sink", "nothing", "-f", FILE, code=3).stderr
    )
    assert (
        "--sink needs the pipeline's code" in run("diff-tables", "a", "b", "--sink", "totals", code=2).stderr
    )


def test_everything_of_several_pipelines_is_verified_at_once(run: Program, site: Site) -> None:
    found = run.json("verify", "--all")
    assert len(found) == 2
    assert all(one["is_intact"] for one in found)
    assert "name a pipeline (-p NAME): there are sales, sales_green" in run("show", "latest", code=2).stderr


def test_what_a_swap_is_asked_that_cannot_be_is_told_in_one_sentence(run: Program, site: Site) -> None:
    wrong = run("blue-green", "swap", "sales_green", "--approved", "yes", "-f", FILE, code=1).stdout
    assert "approved: 'yes' is no approval: compare, and take what that answers" in wrong
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(FILE).parent))
        from blue_green_location import defs  # type: ignore[import-not-found]

        job = defs.resolve_job_def("sales_green_care")
        done = job.execute_in_process(
            run_config={"ops": {"care": {"config": {"action": "swap", "readers": "bck"}}}},
            raise_on_error=False,
        )
    [failed] = done.get_step_failure_events()
    assert failed.step_failure_data.user_failure_data is not None
    assert (
        failed.step_failure_data.user_failure_data.description == "readers must be to_fork or back, got 'bck'"
    )
