"""Errors of a stage's query in one sentence: the user's own line first, without Spark's and py4j's proxies around it.

Spark tells of an error through several processes, and each puts a page of its own before it.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.authoring.stages import StageRole
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import (
    CheckpointError,
    Corrupt,
    InvalidRequest,
    NotFound,
    Unavailable,
    first_line,
    is_of_disk,
    with_room,
)
from dagster_ckpt.spark.java.process import JAVA_GONE, is_java_gone, is_retryable_start

if TYPE_CHECKING:
    from dagster_ckpt.authoring.stages import StageDefinition


class StageFailed(CheckpointError):
    """The stage's own code, or a row it cannot take, ended its query: mend it, and run again."""

    kind = "stage_failed"


GOES_ON = "once that is mended, the next run goes on from the latest checkpoint"
_WRAPPERS = {"STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR"}
_NO_AGGREGATION = re.compile(
    r"\[STREAMING_OUTPUT_MODE\.UNSUPPORTED_OPERATION\].*aggregations without watermark"
)
_OURS = re.compile(
    r"^(?:dagster_ckpt\.errors\.)(InvalidRequest|NotFound|Unavailable|Corrupt): (.+)$", re.MULTILINE
)
_CLASSES: dict[str, type[CheckpointError]] = {
    "InvalidRequest": InvalidRequest,
    "NotFound": NotFound,
    "Unavailable": Unavailable,
    "Corrupt": Corrupt,
}
_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<where>[^\n]+)\n', re.MULTILINE)
_RAISED = re.compile(r"^(?=\S)(?!File )(?P<said>[\w.]+(?:: .*)?)$", re.MULTILINE)
_CONDITION = re.compile(r"\[(?P<code>[A-Z][A-Z0-9_]{3,}(?:\.[A-Z0-9_]+)*)\] (?P<said>[^\n]*)")
_READ = re.compile(r"while reading file (?P<file>\S+?)\.?\s*(?:SQLSTATE|$)")
"""Which file Spark read, in a condition before the one that says what was wrong with it."""
_CAUSED = re.compile(
    r"(?:^Caused by: (?:[\w$]+\.)*|terminated with exception: )(?P<said>\w[^\n]*)$", re.MULTILINE
)
_QUERY = re.compile(r"Identifier: (\S+) \[id = ")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+;?")
_LIBRARIES = tuple(str(folder) for folder in (*sysconfig.get_paths().values(), Path(__file__).parents[2]))


def understood(stage: StageDefinition, error: BaseException, *, title: str = "") -> CheckpointError | None:
    """Return the end of ``stage``'s query in one sentence; None: the error says it best itself.

    ``title``: how people are told of the query, where it is a chain's.
    """
    if isinstance(error, CheckpointError) or is_retryable_start(error):
        return None
    if is_java_gone(error):
        return Unavailable(f"{title or f'stage {stage.uid}'}: {JAVA_GONE}")
    changed = changed_query(stage.uid, error)
    if changed is not None:
        return changed
    text = str(error).partition("=== Streaming Query ===")[0]
    name = title or f"stage {stage.uid}"
    if ours := _OURS.findall(text):
        kind, said = ours[-1]
        return _CLASSES[kind](f"{name}: {said}")
    if is_no_aggregation(text):
        return InvalidRequest(_no_aggregation(stage, name))
    return _from_python_worker(text, name) or _from_spark(error, text, name)


def end_of_program(error: Exception, *, called: str) -> CheckpointError:
    """Return the end of a program that starts its queries itself in one sentence, the user's own line first.

    ``called``: name of the function that ran its code.
    """
    if isinstance(error, CheckpointError):
        return error
    if is_java_gone(error):
        return Unavailable(JAVA_GONE)
    text, _, query = str(error).partition("=== Streaming Query ===")
    at, said = _raised_in_worker(text) or ("", "")
    conditions = [found["said"] for found in _CONDITION.finditer(text) if found["code"] not in _WRAPPERS]
    if not at and conditions:
        said = _SQLSTATE.sub("", conditions[-1]).strip().rstrip(";.")
    at = at or _own_line(error, called)
    said = said or f"{type(error).__name__}: {text.strip().partition(chr(10))[0]}"
    named = _QUERY.search(query)
    return StageFailed(f"{at}: {said}".removeprefix(": ") + (f" (query {named[1]})" if named else ""))


def is_no_aggregation(text: str) -> bool:
    """Tell whether Spark refuses to append the rows of an aggregation without a watermark."""
    return _NO_AGGREGATION.search(text) is not None


def _no_aggregation(stage: StageDefinition, name: str) -> str:
    if stage.no_aggregation:
        return stage.no_aggregation
    what = (
        "add key=[...] to the sink, the columns it is grouped by, and the table holds one row per key"
        if stage.role is StageRole.SINK
        else 'add output_mode="update" to the stage, and readers get each changed row'
    )
    return (
        f"{name} aggregates, and its rows change with every batch, which appending cannot show: {what}; "
        "or add a watermark (withWatermark) to its input, and rows come once their window is closed"
    )


def _from_python_worker(text: str, name: str) -> StageFailed | None:
    """Return the error of the user's own function in a batch, with the line of theirs."""
    found = _raised_in_worker(text)
    return StageFailed(f"{found[0]}: {found[1]} ({name}); {GOES_ON}") if found and found[0] else None


def _raised_in_worker(text: str) -> tuple[str, str] | None:
    """Return the user's line that raised in a Python worker, empty where none did, and what was raised."""
    _, found, trace = text.rpartition(_TRACEBACK)
    raised = _RAISED.search(trace) if found else None
    if raised is None:
        return None
    said = first_line(_SQLSTATE.sub("", raised["said"]))  # it may quote a row, which may be long
    frames = [frame for frame in _FRAME.finditer(trace) if not _is_of_library(frame["file"])]
    if not frames:
        return "", said
    own = frames[-1]
    source = _source_of(trace, own)
    line = f", `{source}`" if source else ""
    return f"{own['file']}:{own['line']} in {own['where']}{line}", said


def _is_of_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or file.endswith((".pyx", ".pxi"))  # which are relative to nothing


@dataclass(frozen=True, slots=True)
class RowError:
    """Error that a row's values may be the reason of."""

    name: str
    """Class of a Python exception, or Spark's condition: ``ValueError``, ``CAST_INVALID_INPUT``."""
    said: str
    """A sentence: the user's line, and what was raised there."""


_OF_WORKER = "org.apache.spark.api.python.PythonException", "exception was thrown from the Python worker"
_ROW_STATES = re.compile(r"SQLSTATE: (?:22|39|P0)")
"""Classes of SQL states: data exceptions, exceptions of functions, and those that a query raises itself."""
_MALFORMED = re.compile(r"Malformed (?:records|Protobuf messages) are detected in [^\n]*")
"""What a parser says in FAILFAST mode: of Avro without a condition, of CSV before another one, of Protobuf as its own
error."""


def row_error(error: BaseException) -> RowError | None:
    """Return the error of a row in a job's error; None: it says nothing of rows (memory, storage, a lost machine)."""
    if isinstance(error, CheckpointError) or is_java_gone(error) or is_retryable_start(error):
        return None
    text = str(error)
    if _OURS.search(text):
        return None
    if any(one in text for one in _OF_WORKER) and (raised := _raised_in_worker(text)):
        line, said = raised
        return RowError(said.partition(":")[0], f"{line}: {said}" if line else said)
    if malformed := _MALFORMED.search(text):
        return RowError("MALFORMED_RECORD_IN_PARSING", first_line(_SQLSTATE.sub("", malformed[0])))
    conditions = [found for found in _CONDITION.finditer(text) if found["code"] not in _WRAPPERS]
    if not conditions or not _ROW_STATES.search(text, conditions[-1].start()):
        return None
    return RowError(conditions[-1]["code"], first_line(_SQLSTATE.sub("", conditions[-1]["said"])))


def _source_of(trace: str, frame: re.Match[str]) -> str:
    following = trace[frame.end() :].partition("\n")[0]
    if following.startswith("    "):
        return following.strip()
    return linecache.getline(frame["file"], int(frame["line"])).strip()


def _from_spark(error: BaseException, text: str, name: str) -> CheckpointError | None:
    """Return Spark's own sentence: without wrappers, plan and state, after the line that asked for it."""
    conditions = [found for found in _CONDITION.finditer(text) if found["code"] not in _WRAPPERS]
    causes = [cause for cause in _causes(error, text) if "Python Proxy" not in cause]
    full = next(filter(is_of_disk, reversed(causes)), "")
    if not conditions:
        return StageFailed(f"{name}: {with_room(full or causes[-1])}; {GOES_ON}") if causes else None
    said = first_line(_SQLSTATE.sub("", conditions[-1]["said"])).rstrip(";.")
    if full:
        return StageFailed(f"{name}: {said}: {with_room(full)}; {GOES_ON}")
    if read := next((file for found in conditions if (file := _READ.search(found["said"]))), None):
        said = f"{read['file']}: {said}" if read["file"] not in said else said
    at = _own_line(error)
    if at:
        return InvalidRequest(f"{at}: {said} ({name})")
    return StageFailed(f"{name}: {said}; {GOES_ON}")


def _causes(error: BaseException, text: str) -> Iterator[str]:
    """Yield a line for each cause that Java names below an error, the innermost last."""
    yield from (first_line(_SQLSTATE.sub("", found["said"])).rstrip(".") for found in _CAUSED.finditer(text))
    while (below := getattr(error, "_cause", None)) is not None:
        error = below
        yield first_line(error)


def _own_line(error: BaseException, called: str = "call_stage") -> str:
    """Return the innermost line of the user's code, where calling it raised ``error``; empty: it did not."""
    frames = traceback.extract_tb(error.__traceback__)
    call = next((i for i, frame in enumerate(frames) if frame.name == called), None)
    own = [] if call is None else [f for f in frames[call + 1 :] if not f.filename.startswith(_LIBRARIES)]
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}, `{own[-1].line}`" if own else ""


# --- a changed query ------------------------------------------------------------------------------------------

# A query that was changed so that it cannot go on from its state or positions: one sentence of Spark's twenty lines.
#
# Spark compares the query with its checkpoint when its first batch is planned, before a row is read, and so do we where
# only that batch shows the change. None of it is cured by another try.

WAY_OUT = (
    "Change it back; or give the stage a new uid and restore with allow_non_restored_state, and it begins without "
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
_OUR_CHANGES = re.compile(
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
    """Return the change of ``uid``'s query in one sentence; None when it failed for another reason."""
    text = str(error)
    if ours := _OUR_CHANGES.search(text):
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


def was_stopped(name: str) -> str:
    """Return the sentence about a query that somebody stopped."""
    return (
        f"the query of {name} was stopped before it had read all there was: something in this process calls "
        "StreamingQuery.stop, perhaps of all spark.streams.active. Rows it has not read are read by the next run"
    )
