"""Approval of a restore: what a preview was about and when, as a short text. Pure.

Whoever launches with it wants what was shown: a restore of the same snapshot, with nothing changed since.
"""

from __future__ import annotations

import hashlib
import re

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.errors import InvalidRequest

_FORM = re.compile(r"(\d+)\.(\d+)\.([0-9a-f]{8})\.([0-9a-f]{8})")


def approval_of(record: CoordinatorRecord, options: RestoreOptions) -> str:
    """Return the approval of restoring with ``options`` a pipeline that is as ``record`` says."""
    return f"{record.epoch}.{record.next_id}.{_of_options(options)}.{_of_snapshots(record)}"


def refuse_outdated(
    approved: str, record: CoordinatorRecord, options: RestoreOptions, *, root: str = ""
) -> None:
    """Raise InvalidRequest where something has happened since the preview, or the approval is of another restore.

    An earlier try of run ``root`` is no such thing.
    """
    if root and record.root == root:
        return
    found = _FORM.fullmatch(approved.strip())
    if found is None:
        raise InvalidRequest(
            f"approved: {approved!r} is no approval: launch with mode: gate, without it, and follow its preview's link"
        )
    epoch, next_id, restore, snapshots = found.groups()
    if restore != _of_options(options):
        raise InvalidRequest(
            f"the approval is of another restore than this one of {options.restore_from}: preview this one, and follow "
            "its link"
        )
    happened = [
        *_counted(record.epoch - int(epoch), "run has", "runs have", "claimed the pipeline"),
        *_counted(record.next_id - int(next_id), "checkpoint was", "checkpoints were", "triggered"),
    ]
    if not happened and snapshots != _of_snapshots(record):
        happened = ["other checkpoints or savepoints are retained"]
    if happened:
        raise InvalidRequest(
            f"since the preview {' and '.join(happened)}: nothing was restored. Preview it again, and approve that"
        )


def _counted(number: int, one: str, many: str, what: str) -> list[str]:
    return [f"{number} {one if number == 1 else many} {what}"] if number else []


def _of_options(options: RestoreOptions) -> str:
    return _digest(options.model_dump_json())


def _of_snapshots(record: CoordinatorRecord) -> str:
    keys = [each.known.key for each in (*record.completed, *record.savepoints)]
    return _digest(" ".join([record.lineage, *keys]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
