"""A query that was changed so that it cannot go on from its state or positions: one sentence of Spark's twenty lines.

Spark compares the query with its checkpoint when its first batch is planned, before a row is read, and so do we where
only that batch shows the change. None of it is cured by another try.
"""

from __future__ import annotations

import re

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest

__all__ = ["WAY_OUT", "ChangedQuery", "changed_query"]

WAY_OUT = (
    "change it back; or give the stage a new uid and restore with allow_non_restored_state, and it begins without "
    "its state and its positions; or begin from nothing with restore_from: none"
)


class ChangedQuery(InvalidRequest):
    """The stage's function was changed in a way that its restored state does not allow."""


_SCHEMA = re.compile(
    r"\[STATE_STORE_(KEY|VALUE)_SCHEMA_NOT_COMPATIBLE\].*?Existing \w+_schema=(.*?) and new \w+_schema=(.*?)\.?\n",
    re.DOTALL,
)
_OPERATORS = re.compile(
    r"\[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA\].*?in the metadata: \[(.*?)\]; "
    r"Stateful operators in current batch: \[(.*?)\]",
    re.DOTALL,
)
_STATE_APPEARED = re.compile(
    r"\[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY\].*?in current batch: \[(.*?)\]", re.DOTALL
)
_SOURCES = re.compile(r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\]")
_FILES = re.compile(r"Wrong basePath (.*?) for the root path: (\S.*?)(?= SQLSTATE|\n|$)")
_OTHER_STATE = re.compile(
    r"\[((?:STATE_STORE|STATEFUL_PROCESSOR|TRANSFORM_WITH_STATE)_\w*(?:SCHEMA|INVALID|MISMATCH|EVOLUTION)\w*)\] "
    r"([^\n]*)"
)
_OURS = re.compile(
    r"InvalidRequest: (the (?:order of its inputs has|columns of its input have|variables of its state have) changed: "
    r"[^\n]*)"
)
_OPERATOR = re.compile(r"OperatorName: (\w+)")

_OPERATOR_NAMES = {
    "stateStoreSave": "aggregation",
    "dedupe": "dropDuplicates",
    "dedupeWithinWatermark": "dropDuplicatesWithinWatermark",
    "symmetricHashJoin": "stream-stream join",
    "sessionWindowStateStoreSaveExec": "session window",
    "sessionWindowStateStoreSave": "session window",
    "applyInPandasWithState": "applyInPandasWithState",
    "transformWithStateInPandasExec": "transformWithState",
    "transformWithStateInPySparkExec": "transformWithState",
    "transformWithStateExec": "transformWithState",
}


def changed_query(uid: StageUid, error: BaseException) -> ChangedQuery | None:
    """Return what was changed about the query of ``uid``, in one sentence; None when it failed for another reason."""
    text = str(error)
    if ours := _OURS.search(text):
        return ChangedQuery(f"stage {uid!r} cannot go on from its checkpoint: {ours[1].strip()}")
    what = _what_changed(text)
    return (
        None
        if what is None
        else ChangedQuery(f"stage {uid!r} cannot go on from its state: {what}. {WAY_OUT}")
    )


def _what_changed(text: str) -> str | None:
    if found := _SCHEMA.search(text):
        return (
            f"the {found[1].lower()} of its state was ({_fields(found[2])}) and is now ({_fields(found[3])})"
        )
    if found := _OPERATORS.search(text):
        return f"its stateful operators were {_operators(found[1])} and are now {_operators(found[2])}"
    if found := _STATE_APPEARED.search(text):
        return f"it had no stateful operators and has {_operators(found[1])} now"
    if found := _SOURCES.search(text):
        return f"it had {found[1]} sources and has {found[2]} now"
    if found := _OTHER_STATE.search(text):
        return f"Spark says {found[1]}: {found[2].rstrip('.')}"
    return _other_files(text)


def _other_files(text: str) -> str | None:
    found = _FILES.search(text)
    return found and (
        f"it has read {found[2]}, and its function reads files of {found[1]} now: a folder was moved, or two "
        "pipelines (two projects) have one name and one base_dir, so that one goes on from the other's checkpoint: "
        "give one of them a name of its own"
    )


def _fields(schema: str) -> str:
    """Return a schema as Spark prints it, ``k long, v string``."""
    inner = schema.removeprefix("StructType(").removesuffix(")")
    fields = re.sub(r"StructField\(([^,]+),(.*?),(?:true|false)\)", r"\1 \2", inner)
    return re.sub(r",(?=\w+ )", ", ", fields.replace("Type", "").lower())


def _operators(listed: str) -> str:
    names = [_OPERATOR_NAMES.get(name, name) for name in _OPERATOR.findall(listed)]
    return ", ".join(names) or "none"
