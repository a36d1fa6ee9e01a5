"""Swaps of readers in the record, and their approval: what a comparison was about and when, as a short text. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import ServingRecord
from dagster_ckpt.core.restore.horizon import Positions
from dagster_ckpt.errors import InvalidRequest

_FORM = re.compile(r"([0-9a-f]{8})\.([0-9a-f]{12})")


def serving_in(record: CoordinatorRecord) -> str:
    """Return the pipeline whose tables readers of the record's pipeline find."""
    return record.pipeline if record.serving is None else record.serving.pipeline


def comparison_approval(
    name: str, serving: str, candidate: str, states: Mapping[str, tuple[str, str]]
) -> str:
    """Return the approval of a swap after a comparison: the pair, and the state of each table of both."""
    return f"{_digest([name, serving, candidate], 8)}.{_digest(states, 12)}"


def refuse_unapproved(
    approved: str, now: str, *, serving: str, candidate: str, allow_stale: bool = False
) -> None:
    """Raise InvalidRequest where the approval is of another pair, or tables have changed since the comparison."""
    text = approved.strip()
    if _FORM.fullmatch(text) is None:
        raise InvalidRequest(f"approved: {approved!r} is no approval: compare, and take what that answers")
    if text.partition(".")[0] != now.partition(".")[0]:
        raise InvalidRequest(
            f"the approval is of another comparison than that of {serving!r}, which serves, with {candidate!r}: "
            "compare these, and approve that"
        )
    if text != now and not allow_stale:
        raise InvalidRequest(
            f"tables of {serving!r} or {candidate!r} have changed since the comparison that is approved: compare "
            "again, and approve that; where both are at work, stop one first, or allow it (allow_stale)"
        )


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


def _digest(value: object, length: int) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]
