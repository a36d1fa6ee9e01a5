"""Audit: who restored, forked and disposed of what, written with the change that made it true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.paths import snapshot_key
from dagster_ckpt.core.restore.choice import Fresh, Restore, RestoreDecision
from dagster_ckpt.core.restore_point import Latest
from dagster_ckpt.ports import AuditRow

MOST_SHOWN = 8000
"""Characters of a preview that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Person or machine who has something done, with the preview they were shown before."""

    who: str = ""
    shown: Sequence[str] = ()
    """The preview, line by line."""
    sets_aside: str = ""
    """Folder that rows go to which cannot be shown; empty: none are set aside."""

    @property
    def text(self) -> str:
        """The preview as it is kept."""
        whole = "\n".join(self.shown)
        return whole if len(whole) <= MOST_SHOWN else f"{whole[:MOST_SHOWN]}…"


NOBODY = Operator()


def restored_by(
    operator: Operator,
    restored: RestoreDecision,
    options: RestoreOptions,
    *,
    pipeline: PipelineId,
    run_id: str,
    now: float,
) -> list[AuditRow]:
    """Return the rows of what a person chose: what to start from, and which rows to set aside.

    None where a run went on from the latest by itself.
    """
    by = AuditRow(
        pipeline=pipeline,
        at=now,
        what="set aside",
        key="",
        uri=operator.sets_aside,
        who=operator.who,
        run_id=run_id,
        shown=operator.text,
    )
    rows = [by] if operator.sets_aside else []
    if options.restore_from == Latest():
        return rows
    match restored:
        case Fresh():
            what, key, uri = "begun", "", ""
        case Restore(metadata=metadata):
            what = "forked" if options.fork else "restored"
            key, uri = snapshot_key(metadata.kind, metadata.checkpoint_id), restored.location.uri
        case _:
            return rows
    return [*rows, replace(by, what=what, key=key, uri=uri)]
