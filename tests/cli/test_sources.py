"""What the program says of sources: positions, lag, and for how long snapshots can be restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Program
from tests.operations.restores.test_source_horizon import source_at
from tests.operations.world import World

CODE = ("-f", str(Path(__file__).with_name("topics_location.py")))


@pytest.fixture(autouse=True)
def _three(world: World, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_BASE", str(base))
    world.checkpoint(1, others=(source_at('{"orders":{"0":2,"1":9}}'),))
    world.savepoint(2, others=(source_at('{"orders":{"0":10,"1":9}}'),), name="upgrade")
    world.checkpoint(3, others=(source_at('{"orders":{"0":12,"1":9}}'),))


def test_show_tells_offsets_of_partitions_and_with_the_code_lag_and_horizon(run: Program) -> None:
    text = run("show", "savepoint-2").stdout
    assert "0: 2 partitions" in " ".join(text.split())
    assert [line.split() for line in text.splitlines() if line.startswith("orders  orders")] == [
        ["orders", "orders", "0", "10", "-", "-"],
        ["orders", "orders", "1", "9", "-", "-"],
    ]
    text = run("show", "savepoint-2", *CODE).stdout
    assert [line.split() for line in text.splitlines() if line.startswith("orders  orders")] == [
        ["orders", "orders", "0", "10", "12", "2"],
        ["orders", "orders", "1", "9", "9", "0"],
    ]
    assert "can be restored for 2.0 days: then offset 10 of partition 0 of topic orders may go" in " ".join(
        text.split()
    )
    found = run.json("show", "savepoint-2", *CODE)
    assert found["positions"][0]["partitions"][0]["latest"] == 12
    assert found["horizon"]["lost"] == []


def test_list_says_with_the_code_for_how_long_each_can_be_restored_in_80_columns(run: Program) -> None:
    assert "left" not in run("list").stdout
    listed = run("list", *CODE).stdout
    *table, why = listed.splitlines()
    assert max(map(len, table)) <= 80
    assert why.startswith(
        "chk-000001 can no longer be restored: offset 2 of partition 0 of topic orders (the earliest"
    )
    lines = {line.split()[0]: line for line in table[1:] if line.strip()}
    assert "kept" in lines["chk-000003"]
    assert "2.0 days" in lines["savepoint-000002"]
    assert "gone" in lines["chk-000001"]
    assert "2.0 days" in run("list", "--long", *CODE).stdout
    troubled = run("doctor", "sales", *CODE, code=1).stdout
    assert "offset 2 of partition 0 of topic orders" in " ".join(troubled.replace("│", " ").split())


def test_code_of_another_pipeline_is_said_and_not_passed_over(run: Program) -> None:
    other = str(Path(__file__).with_name("location.py"))
    assert "no job 'sales_care'" in run("list", "-f", other, code=3).stderr
