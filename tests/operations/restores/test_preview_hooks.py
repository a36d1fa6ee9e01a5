"""What a preview says of the states of hooks."""

from __future__ import annotations

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata
from dagster_ckpt.operations.restores.parts import HookFate, preview_hooks

METADATA = CheckpointMetadata(
    pipeline="p",
    checkpoint_id=1,
    kind=CheckpointKind.CHECKPOINT,
    epoch=1,
    triggered_at=1.0,
    completed_at=2.0,
    stages=(),
    master_states={"ledger": "text", "gone": "text"},
)


def test_every_hook_and_every_saved_state_is_named_and_a_loss_is_a_refusal() -> None:
    hooks, refusals = preview_hooks(("ledger", "new"), METADATA, RestoreOptions())
    assert [(h.uid, h.fate) for h in hooks] == [
        ("ledger", HookFate.RESTORED),
        ("new", HookFate.NEW),
        ("gone", HookFate.DROPPED),
    ]
    (refusal,) = refusals
    assert "hook 'gone'" in refusal
    assert "allow_non_restored_state" in refusal


def test_a_loss_on_request_is_none_and_without_the_code_nothing_is_said() -> None:
    hooks, refusals = preview_hooks((), METADATA, RestoreOptions(allow_non_restored_state=True))
    assert [h.fate for h in hooks] == [HookFate.DROPPED, HookFate.DROPPED]
    assert refusals == []
    assert preview_hooks(None, METADATA, RestoreOptions()) == ((), [])
