"""Approval of a restore or a swap of readers: what a preview or comparison was about and when, as a short text. Pure.

Whoever launches with it wants what was shown: a restore of the same snapshot, a swap to the same tables, with nothing
changed since.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import ServingRecord
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.restore.horizon import Positions
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


_SWAP_FORM = re.compile(r"([0-9a-f]{8})\.([0-9a-f]{12})")


def serving_in(record: CoordinatorRecord) -> str:
    """Return the pipeline whose tables readers of the record's pipeline find."""
    return record.pipeline if record.serving is None else record.serving.pipeline


def comparison_approval(
    name: str, serving: str, candidate: str, states: Mapping[str, tuple[str, str]]
) -> str:
    """Return the approval of a swap after a comparison: the pair, and the state of each table of both."""
    return f"{_pair_digest([name, serving, candidate], 8)}.{_pair_digest(states, 12)}"


def refuse_stale(approved: str, now: str, *, serving: str, candidate: str) -> None:
    """Raise InvalidRequest where tables have changed since the comparison that is approved."""
    if _of_pair(approved, now, serving=serving, candidate=candidate) != now:
        raise InvalidRequest(
            f"tables of {serving!r} or {candidate!r} have changed since the comparison that is approved: compare "
            "again, and approve that; where both are at work, stop one first, or allow it (allow_stale)"
        )


def refuse_other_pair(approved: str, now: str, *, serving: str, candidate: str) -> None:
    """Raise InvalidRequest where the comparison that is approved is of other pipelines than serve and are to serve."""
    _of_pair(approved, now, serving=serving, candidate=candidate)


def _of_pair(approved: str, now: str, *, serving: str, candidate: str) -> str:
    text = approved.strip()
    if _SWAP_FORM.fullmatch(text) is None:
        raise InvalidRequest(f"approved: {approved!r} is no approval: compare, and take what that answers")
    if text.partition(".")[0] != now.partition(".")[0]:
        raise InvalidRequest(
            f"the approval is of another comparison than that of {serving!r}, which serves, with {candidate!r}: "
            "compare these, and approve that"
        )
    return text


def behind(serving: Positions, candidate: Positions) -> Iterator[str]:
    """Yield where the candidate has read less of a topic than the pipeline that serves."""
    for topic, partitions in sorted(serving.items()):
        for partition, at in sorted(partitions.items()):
            reached = candidate.get(topic, {}).get(partition)
            if reached is None and at > 0:
                yield f"it has read nothing of partition {partition} of topic {topic}"
            elif reached is not None and reached < at:
                yield f"it is {at - reached:,} records behind in partition {partition} of topic {topic}"


def with_serving(record: CoordinatorRecord, serving: ServingRecord, *, expected: str) -> CoordinatorRecord:
    """Return the record after a swap. Raises InvalidRequest where ``expected`` does not serve any more."""
    _refuse_swapped(record, expected)
    before = record.serving
    if before is not None:
        serving = serving.model_copy(
            update={"before_table_dir": before.table_dir, "before_tables": before.tables}
        )
    return record.model_copy(update={"serving": serving})


def swapped_back(record: CoordinatorRecord, *, expected: str, now: float) -> CoordinatorRecord:
    """Return the record after the way back. Raises InvalidRequest where ``expected`` does not serve."""
    if record.serving is None:
        raise InvalidRequest(
            f"readers of {record.pipeline!r} find its own tables: there is nothing to swap back"
        )
    _refuse_swapped(record, expected)
    return record.model_copy(update={"serving": record.serving.back(record.pipeline, now)})


def _refuse_swapped(record: CoordinatorRecord, expected: str) -> None:
    serves = serving_in(record)
    if serves != expected:
        raise InvalidRequest(
            f"readers of {record.pipeline!r} find the tables of {serves!r} by now, and not those of {expected!r}: "
            "nothing was changed. Look who has swapped (dagster-ckpt audit), and compare again"
        )


def _pair_digest(value: object, length: int) -> str:
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
