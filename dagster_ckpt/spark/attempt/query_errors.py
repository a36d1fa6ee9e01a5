"""Errors of a stage's query in one sentence: the user's own line first, without Spark's and py4j's proxies around it.

Spark tells of an error through several processes, and each puts a page of its own before it.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.authoring.stages import StageRole
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, NotFound, Unavailable
from dagster_ckpt.spark.attempt.changed_query import changed_query
from dagster_ckpt.spark.java_errors import JAVA_GONE, is_java_gone
from dagster_ckpt.spark.retryable_start import is_retryable_start

if TYPE_CHECKING:
    from dagster_ckpt.authoring.stages import StageDefinition

__all__ = ["StageFailed", "is_no_aggregation", "no_aggregation_in_project", "understood"]


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
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+;?")
_LIBRARIES = tuple(str(folder) for folder in (*sysconfig.get_paths().values(), Path(__file__).parents[2]))


def understood(stage: StageDefinition, error: BaseException, *, title: str = "") -> CheckpointError | None:
    """Return what ended the query of ``stage``, in one sentence; None: the error says it best itself.

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


def is_no_aggregation(text: str) -> bool:
    """Tell whether Spark refuses to append the rows of an aggregation without a watermark."""
    return _NO_AGGREGATION.search(text) is not None


def _no_aggregation(stage: StageDefinition, name: str) -> str:
    if stage.of_project:
        return no_aggregation_in_project(stage.of_project)
    what = (
        "add key=[...] to the sink, the columns it is grouped by, and the table holds one row per key"
        if stage.role is StageRole.SINK
        else 'add output_mode="update" to the stage, and readers get each changed row'
    )
    return (
        f"{name} aggregates, and its rows change with every batch, which appending cannot show: {what}; "
        "or add a watermark (withWatermark) to its input, and rows come once their window is closed"
    )


def no_aggregation_in_project(flow: str) -> str:
    """Return what a flow that aggregates without a watermark is told: Spark itself appends rows to its table."""
    return (
        f"{flow} aggregates without a watermark, and its rows change with every batch, which a streaming table cannot "
        "show: make it a materialized view; or add a watermark (withWatermark) to its input, and rows come once their "
        "window is closed"
    )


def _from_python_worker(text: str, name: str) -> StageFailed | None:
    """Return what the user's own function raised in a batch, at which line of theirs."""
    _, found, trace = text.rpartition(_TRACEBACK)
    raised = _RAISED.search(trace) if found else None
    frames = [frame for frame in _FRAME.finditer(trace) if not frame["file"].startswith(_LIBRARIES)]
    if raised is None or not frames:
        return None
    own, said = frames[-1], _SQLSTATE.sub("", raised["said"]).strip()
    source = _source_of(trace, own)
    line = f", `{source}`" if source else ""
    return StageFailed(f"{own['file']}:{own['line']} in {own['where']}{line}: {said} ({name}); {GOES_ON}")


def _source_of(trace: str, frame: re.Match[str]) -> str:
    following = trace[frame.end() :].partition("\n")[0]
    if following.startswith("    "):
        return following.strip()
    return linecache.getline(frame["file"], int(frame["line"])).strip()


def _from_spark(error: BaseException, text: str, name: str) -> CheckpointError | None:
    """Return Spark's own sentence: without wrappers, plan and state, after the line that asked for it."""
    conditions = [found for found in _CONDITION.finditer(text) if found["code"] not in _WRAPPERS]
    if not conditions:
        return None
    said = _SQLSTATE.sub("", conditions[-1]["said"]).strip().rstrip(";.")
    at = _own_line(error)
    if at:
        return InvalidRequest(f"{at}: {said} ({name})")
    return StageFailed(f"{name}: {said}; {GOES_ON}")


def _own_line(error: BaseException) -> str:
    """Return the innermost line of the stage's function, where calling it raised ``error``; empty: it did not."""
    frames = traceback.extract_tb(error.__traceback__)
    called = next((i for i, frame in enumerate(frames) if frame.name == "call_stage"), None)
    own = [] if called is None else [f for f in frames[called + 1 :] if not f.filename.startswith(_LIBRARIES)]
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}, `{own[-1].line}`" if own else ""
