"""Location of a checkpoint: where its files go, and what they may reuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.model import CheckpointKind, StageSnapshot
from dagster_ckpt.ports import CheckpointStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLocation:
    """Location of a checkpoint: where its files go, and what it may reuse."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    storage: CheckpointStorage
    folder: str
    """Key of its folder in ``storage``."""
    previous: Mapping[StageUid, StageSnapshot] = field(default_factory=dict)
    """Per stage, the snapshot whose files need not be uploaded again; empty: everything is uploaded."""

    @property
    def uri(self) -> str:
        """The folder as a URI a user can restore from."""
        return f"{self.storage.base_uri}/{self.folder}"
