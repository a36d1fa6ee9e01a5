"""What the preview job shows: a sentence, tables, and every reason a restore would be refused for."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import dagster as dg

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, SnapshotMetrics, StageSnapshot
from dagster_ckpt.dagster.jobs.gate import preview_metadata, sentence_of
from dagster_ckpt.dagster.reports.asset import completed_metadata
from dagster_ckpt.operations.restores.parts import TableFate, TablePreview
from dagster_ckpt.operations.restores.preview import (
    Replay,
    RestorePreview,
    SchemaMismatch,
    StageFate,
    StagePreview,
)
from dagster_ckpt.operations.snapshots.diff import OffsetStep

POSSIBLE = RestorePreview(
    pipeline=PipelineId("shop"),
    snapshot="checkpoint 31 of shop",
    uri="file:///c/shop/chk-31",
    refusals=(),
    warnings=("table /t keeps rows past the restore point",),
    compared_with="its newest snapshot, chk-000040",
    stages=(
        StagePreview(
            uid="orders", fate=StageFate.RESTORED, saved_uid="orders", batch_id=7, bytes=100, files=3
        ),
        StagePreview(uid="totals", fate=StageFate.NEW),
    ),
    replay=(
        Replay(
            stage="orders",
            step=OffsetStep(source="0", start="3", end="9", units=6),
            batches=2,
        ),
    ),
    tables=(TablePreview(stage="totals", uri="/t", mode="append", fate=TableFate.MOVES, rows_leaving=5),),
    schemas=(SchemaMismatch(stage="orders", what="provider", saved="hdfsbacked", current="rocksdb"),),
)


def rows(value: Any) -> list[dict[str, Any]]:
    assert isinstance(value, dg.TableMetadataValue)
    return [dict(record.data) for record in value.records]


def test_a_preview_tells_what_comes_back_what_is_read_again_and_what_moves() -> None:
    assert sentence_of(POSSIBLE) == (
        "restoring checkpoint 31 of shop would bring back 100 B of state in 2 stages, read 1 source again and "
        "touch 1 table"
    )
    aged = replace(POSSIBLE, completed_at=time.time() - 125)
    assert sentence_of(aged).startswith(
        "restoring checkpoint 31 of shop, completed 2 min ago, would bring back 100 B "
    )
    said = preview_metadata(aged)
    assert str(said["completed"].value).endswith(" UTC, 2 min ago")
    assert said["goes_back"].value == "2 min 5 s"
    assert said["state"].value == "100 B"
    shown = preview_metadata(POSSIBLE)
    assert shown["possible"].value is True
    assert rows(shown["stages"]) == [
        {"stage": "orders", "gets": "restored", "batch": "7", "size": "100 B", "files": 3},
        {"stage": "totals", "gets": "new", "batch": "-", "size": "0 B", "files": 0},
    ]
    assert rows(shown["replay"]) == [
        {"stage": "orders", "source": "0", "from": "9", "back_to": "3", "units": "6", "batches": "2"}
    ]
    assert rows(shown["tables"])[0]["rows_leaving"] == 5
    assert rows(shown["state_schema_changes"]) == [
        {"stage": "orders", "what": "provider", "saved": "hdfsbacked", "now": "rocksdb"}
    ]
    assert shown["warnings"].value == "* table /t keeps rows past the restore point"
    assert "refusals" not in shown


def test_a_restore_that_would_be_refused_says_so_with_every_reason() -> None:
    refused = replace(POSSIBLE, refusals=("a.sst is missing", "stage 'x' had other inputs"))
    assert sentence_of(refused) == "restoring checkpoint 31 of shop would be refused: a.sst is missing"
    shown = preview_metadata(refused)
    assert shown["possible"].value is False
    assert shown["refusals"].value == "* a.sst is missing\n* stage 'x' had other inputs"


def test_what_a_snapshot_says_of_itself_is_text_and_no_link_or_picture() -> None:
    """A condition, a uid or an address in a stranger's snapshot could be one, which Dagster's page loads."""
    picture = "![](https://b.example/x.png)"
    shown = preview_metadata(replace(POSSIBLE, refusals=(picture,), warnings=(picture,)))
    metrics = SnapshotMetrics(rows_judged=2, rows_refused=1, broken={picture: 1})
    taken = CheckpointMetadata(
        pipeline="shop",
        checkpoint_id=1,
        kind=CheckpointKind.SAVEPOINT,
        epoch=1,
        triggered_at=1.0,
        completed_at=2.0,
        stages=(StageSnapshot(uid="clean", parallelism=1, metrics=metrics),),
        name=picture,
        note=picture,
        labels={"a": picture},
    )
    shown = {**shown, **completed_metadata(taken, location="file:///c", link=None)}
    markdown = {name: one.value for name, one in shown.items() if isinstance(one, dg.MarkdownMetadataValue)}
    assert {"refusals", "warnings", "rows", "stages"} <= markdown.keys()
    assert not [name for name, text in markdown.items() if picture in text]
