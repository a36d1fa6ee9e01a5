"""What the store tells of rows that a sink has shown, where the sink's own note is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.model import CheckpointKind, TableSnapshot
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.attempt import showing

ALERTS = StageUid("alerts")


def told_of(
    parts: dict[int, Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    savepoint: int = 0,
    history: tuple[Any, ...] = (),
) -> dict[int, int]:
    """Return what is told of a stage whose part of each snapshot is this."""
    known = [
        SimpleNamespace(
            checkpoint_id=number,
            epoch=number + 10,
            kind=CheckpointKind.SAVEPOINT if number == savepoint else CheckpointKind.CHECKPOINT,
            location=SimpleNamespace(base_uri="memory://x", folder=str(number)),
            metadata_checksum="",
        )
        for number in parts
    ]

    def read(_storage: Any, folder: str, *, recorded: str) -> Any:
        part = parts[int(folder)]
        if part == "damaged":
            raise Corrupt("a bit has fallen over")
        return SimpleNamespace(stage=lambda uid: part if uid == ALERTS else None)

    record = SimpleNamespace(
        completed=tuple(one for one in known if not one.kind.is_savepoint),
        savepoints=tuple(one for one in known if one.kind.is_savepoint),
    )
    records: Any = SimpleNamespace(
        record=lambda name: record,
        statistics=lambda name, *, limit: {CheckpointId(row.checkpoint_id): row for row in history},
    )
    monkeypatch.setattr(showing, "read_metadata", read)
    storage: Any = SimpleNamespace()
    before = showing.ShownBefore((PipelineId("shop"),), records, lambda uri: storage)
    return {
        int(number): int(epoch)
        for number, epoch in before.by((StageUid("renamed"), ALERTS), "function").items()
    }


def part(*, head: int | None = None, prepared: tuple[int, ...] = (), sink: str = "function") -> Any:
    return SimpleNamespace(
        table=TableSnapshot(uri="function:shop/alerts#f", head=head, prepared=prepared, sink=sink)
    )


@pytest.mark.parametrize(
    ("one", "is_shown"),
    [
        (part(head=3), True),
        (part(prepared=(0,)), True),
        (part(), False),
        (part(head=3, sink=""), False),
        (SimpleNamespace(table=None), False),
        (None, False),
        ("damaged", True),
    ],
)
def test_a_snapshot_tells_of_rows_that_it_shows_or_was_about_to(
    monkeypatch: pytest.MonkeyPatch, one: Any, is_shown: bool
) -> None:
    assert told_of({4: one}, monkeypatch) == ({4: 14} if is_shown else {})


def test_what_a_savepoint_had_prepared_was_not_published_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told_of({4: part(prepared=(0,))}, monkeypatch, savepoint=4) == {}
    assert told_of({4: part(head=2)}, monkeypatch, savepoint=4) == {4: 14}


def row(status: CheckpointStatus, *uids: str, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> Any:
    stages = tuple(SimpleNamespace(uid=uid) for uid in uids)
    return SimpleNamespace(checkpoint_id=7, status=status, kind=kind, stages=stages)


def test_the_history_tells_where_no_snapshot_is_left_that_knows_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = row(CheckpointStatus.DISCARDED, "alerts")
    assert told_of({}, monkeypatch, history=(gone,)) == {7: 1}
    assert told_of({4: None}, monkeypatch, history=(gone,)) == {7: 1}
    assert told_of({4: part()}, monkeypatch, history=(gone,)) == {}, "it had none by the newest"
    for other in (
        row(CheckpointStatus.FAILED, "alerts"),
        row(CheckpointStatus.COMPLETED, "lines"),
        row(CheckpointStatus.COMPLETED, "alerts", kind=CheckpointKind.SAVEPOINT),
    ):
        assert told_of({}, monkeypatch, history=(other,)) == {}
