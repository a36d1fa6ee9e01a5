"""Fates of the states of a pipeline's hooks in a restore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.restore.matching import NonRestoredState, match_hooks, non_restored_state
from dagster_ckpt.errors import InvalidRequest


class HookFate(StrEnum):
    """Fate of a hook's state in a restore."""

    RESTORED = "restored"
    NEW = "new"
    """It begins without state."""
    DROPPED = "dropped"
    """Its state was saved, and the pipeline no longer has the hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookPreview:
    """One hook."""

    uid: str
    fate: HookFate


def preview_hooks(
    hooks: Sequence[str] | None, metadata: CheckpointMetadata, options: RestoreOptions
) -> tuple[tuple[HookPreview, ...], list[str]]:
    """Return each hook's fate, and the refusal where a state would be lost."""
    if hooks is None:
        return (), []
    states, refusals = metadata.master_states, []
    try:
        match_hooks(hooks, states, non_restored=non_restored_state(options))
    except InvalidRequest as error:
        refusals = [str(error)]
    matched = match_hooks(hooks, states, non_restored=NonRestoredState.SKIP)
    fates = (
        (HookFate.RESTORED, matched.restored),
        (HookFate.NEW, matched.new),
        (HookFate.DROPPED, matched.dropped),
    )
    return tuple(HookPreview(uid=uid, fate=fate) for fate, uids in fates for uid in uids), refusals
