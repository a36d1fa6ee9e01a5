"""The line of the event log that speaks of a stage."""

from __future__ import annotations

from dagster_ckpt.core.ids import BatchId, CheckpointId, StageUid
from dagster_ckpt.core.model import SnapshotMetrics
from dagster_ckpt.spark.stage_report import StageReport


def test_a_stage_says_what_it_read_and_what_its_snapshot_holds() -> None:
    report = StageReport(
        uid=StageUid("totals"),
        checkpoint_id=CheckpointId(3),
        batch_id=BatchId(7),
        batches=2,
        rows=65408,
        drain_ms=2400.0,
        subtasks=2,
        metrics=SnapshotMetrics(bytes_new=1200, bytes_full=34567, sync_ms=1.06, async_ms=2.3),
    )
    assert report.line() == (
        "totals: 65,408 rows in 2 batches (2.4 s); checkpoint 3 acknowledged at batch 7: 2 subtasks, "
        "1.2 kB new of 34.6 kB, sync 1 ms, async 2 ms"
    )


def test_one_of_a_thing_is_not_several() -> None:
    report = StageReport(
        uid=StageUid("flights"),
        checkpoint_id=None,
        batch_id=None,
        batches=1,
        rows=1,
        drain_ms=10.0,
        outcome="storage is away",
    )
    assert report.line() == "flights: 1 row in 1 batch (10 ms); no checkpoint: storage is away"
