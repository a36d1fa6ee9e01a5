"""A real pipeline operated from the command line: every command on what real epoch runs have left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_ckpt.cli.app import main
from tests.lab.lab import Lab
from tests.spark.epoch.small_pipeline import Feed, read_lines, read_totals, shop


@pytest.fixture
def lab(tmp_path: Path, spark: object) -> Iterator[Lab]:
    with Lab(tmp_path / "base", {"num_retained": 3}) as made:
        yield made


def ckpt(lab: Lab, *arguments: str, code: int = 0) -> Any:
    """Run dagster-ckpt with --json on the lab's deployment."""
    result = CliRunner().invoke(main, [*arguments, "--base", str(lab.folder), "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_a_pipelines_snapshots_are_looked_at_moved_and_restored(lab: Lab, tmp_path: Path) -> None:
    feed = Feed(tmp_path / "feed")
    feed.customer("ann", "fr")
    feed.customer("bob", "de")
    feed.order(("ann", 5), ("bob", 7))
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    lines, totals = feed.expected_lines(), feed.expected_totals()
    feed.order(("ann", 1))
    lab.succeeds(pipeline)

    # looking
    assert [s["key"] for s in ckpt(lab, "list")] == ["chk-000002", "chk-000001"]
    assert all(v["is_intact"] for v in ckpt(lab, "verify", "--all"))
    assert ckpt(lab, "doctor")["is_healthy"]
    shown = ckpt(lab, "inspect", "chk-1", "totals", "--where", "key.country = 'fr'")
    assert shown["rows"] == 1
    keys = {t["stage"]: t for t in ckpt(lab, "diff", "chk-1", "chk-2", "--keys", "--stage", "totals")["keys"]}
    assert (keys["totals"]["added"], keys["totals"]["changed"], keys["totals"]["removed"]) == (0, 1, 0)

    # what a restore would do, and that it then does it
    said = ckpt(lab, "preview", "chk-1")
    assert said["is_possible"], said["refusals"]
    assert {(r["stage"], r["step"]["units"]) for r in said["replay"]} == {("orders", 1), ("customers", 0)}
    moved = {t["stage"]: (t["fate"], t["rows_leaving"]) for t in said["tables"]}
    assert moved["lines"] == ("moves", 1)
    exported = ckpt(lab, "export", "chk-1", str(tmp_path / "elsewhere"), "--name", "first day")
    brought = ckpt(lab, "import", exported["uri"])
    assert brought["key"] == "savepoint-000003", "1 is chk-1 here"
    for path in (tmp_path / "feed/orders").glob("00004.json"):
        path.unlink()
    lab.succeeds(pipeline, restore_from=brought["key"])
    assert read_lines(lab.tables) == lines
    assert read_totals(lab.tables) == totals

    # cleaning up
    assert ckpt(lab, "dispose", brought["key"])["dry_run"] is True
    assert ckpt(lab, "dispose", brought["key"], "--yes")["done"]["files"] > 0
    ckpt(lab, "clean", "--yes")
    assert all(v["is_intact"] for v in ckpt(lab, "verify", "--all"))
    assert ckpt(lab, "doctor")["is_healthy"]
    lab.succeeds(pipeline)
    assert read_lines(lab.tables) == lines
