"""An approval of a restore holds while nothing happens, and says what has happened since."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.supervision.approval import approval_of, refuse_outdated
from dagster_ckpt.errors import InvalidRequest

SHOP = CoordinatorRecord(pipeline="shop", lineage="a", epoch=4, next_id=31)
WANTED = RestoreOptions(restore_from="chk-30")
AGAIN = ": nothing was restored. Preview it again, and approve that"


@given(epoch=st.integers(0, 10**6), next_id=st.integers(1, 10**6))
def test_an_approval_holds_for_what_it_was_made_of(epoch: int, next_id: int) -> None:
    record = SHOP.model_copy(update={"epoch": epoch, "next_id": next_id})
    refuse_outdated(approval_of(record, WANTED), record, WANTED)


@pytest.mark.parametrize(
    ("since", "said"),
    [
        ({"next_id": 32}, f"since the preview 1 checkpoint was triggered{AGAIN}"),
        (
            {"next_id": 33, "epoch": 5},
            f"since the preview 1 run has claimed the pipeline and 2 checkpoints were triggered{AGAIN}",
        ),
        ({"lineage": "b"}, f"since the preview other checkpoints or savepoints are retained{AGAIN}"),
    ],
)
def test_what_happened_since_the_preview_is_said(since: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        refuse_outdated(approval_of(SHOP, WANTED), SHOP.model_copy(update=since), WANTED)
    assert str(refused.value) == said


def test_an_approval_is_of_one_restore() -> None:
    with pytest.raises(InvalidRequest, match="the approval is of another restore than this one of chk-29"):
        refuse_outdated(approval_of(SHOP, WANTED), SHOP, RestoreOptions(restore_from="chk-29"))
    with pytest.raises(InvalidRequest, match="approved: 'yes' is no approval"):
        refuse_outdated("yes", SHOP, WANTED)
