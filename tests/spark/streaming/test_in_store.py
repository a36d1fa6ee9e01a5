"""A stream whose checkpoints are rows of the coordinator store, killed, and started again from them alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from dagster_ckpt.core.location import CHECKPOINTS_IN_STORE
from tests.removal import remove_tree
from tests.spark.streaming.lab import StreamLab, until
from tests.spark.streaming.pipelines import Numbers, read_rows, straight


def each_once(count: int) -> Counter[tuple[int, str]]:
    return Counter((n, "fast") for n in range(count))


class InStoreLab(StreamLab):
    @property
    def storage_uri(self) -> str:
        return CHECKPOINTS_IN_STORE


def test_a_stream_that_was_killed_goes_on_from_the_rows_and_retention_deletes_them(
    tmp_path: Path, spark: SparkSession
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = straight(numbers.folder)
    lab = InStoreLab(tmp_path / "lab", spark)
    settings = {"interval": 0.5, "num_retained": 2, "checkpoint_storage": "store"}
    try:
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
    finally:
        lab.close()

    record = lab.record(pipeline)
    assert record.restored_id is not None
    kept = {f"chk-{c.checkpoint_id}" for c in record.completed}
    assert len(kept) == 2
    rows = [stored.key.split("/")[1] for stored in lab.open_storage(CHECKPOINTS_IN_STORE).list("straight")]
    assert {row for row in rows if row != "shared"} == kept, (
        "what was subsumed or cut off by the kill is gone"
    )
    assert not (lab.folder / "checkpoints").exists()
