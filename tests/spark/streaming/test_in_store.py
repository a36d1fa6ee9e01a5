"""A stream whose checkpoints are rows of the coordinator store, killed, and started again from them alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dagster_ckpt.core.paths import CHECKPOINTS_IN_STORE
from tests.lab.lab import Lab
from tests.lab.streams import until
from tests.removal import remove_tree
from tests.spark.streaming.pipelines import Numbers, read_rows, straight


def each_once(count: int) -> Counter[tuple[int, str]]:
    return Counter((n, "fast") for n in range(count))


def test_a_stream_that_was_killed_goes_on_from_the_rows_and_retention_deletes_them(
    lab: Lab, tmp_path: Path
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = straight(numbers.folder)
    settings = {"interval": 0.5, "num_retained": 2, "checkpoint_storage": "store"}
    numbers.put(10)
    running = lab.start(pipeline, **settings)
    until(lambda: read_rows(lab.tables) == each_once(10), running)
    running.wait_for_checkpoints(4)
    running.crash()
    running.join()
    remove_tree(lab.folder / "work")

    numbers.put(10)
    again = lab.start(pipeline, **settings)
    until(lambda: read_rows(lab.tables) == each_once(20), again)
    again.wait_for_checkpoints(2)
    again.stop()

    record = lab.record(pipeline)
    assert record.restored_id is not None
    kept = {f"chk-{c.checkpoint_id}" for c in record.completed}
    assert len(kept) == 2
    stored = lab.store().checkpoint_storage(CHECKPOINTS_IN_STORE).list("straight")
    rows = [file.key.split("/")[1] for file in stored]
    assert {row for row in rows if row != "shared"} == kept, (
        "what was subsumed or cut off by the kill is gone"
    )
    assert not (lab.folder / "checkpoints").exists()
