"""A part of a saved query, made a query of its own: files of the whole one, of which it keeps what it goes on from.

What its stages read themselves it reads on from there; what another part does now comes by that one's channel. State
stays with the function that made it, rows of a sink with the sink. Files are replaced, never edited: they may be hard
links to those of the storage.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_ckpt.core.chains import QueryPart
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.core.restore.parted import BARRIER_AT
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.directories import IN_FLIGHT, StageDirectory
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.snapshot.row_counts import FOLDER as ROWS

_BY_SOURCE = ("sources", "source_options", "source_schemas")
"""Facts of a plan that are one for each source."""
_OF_ANY_PLAN = (*_BY_SOURCE, "written_by", "read_in_zone", "functions", "output_mode")
"""Facts of a plan that one without state has too."""
_COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'


def is_of_part(path: str, part: QueryPart, snapshot: StageSnapshot) -> bool:
    """Tell whether a part needs a file of the whole query's."""
    folder, _, rest = path.partition("/")
    if folder == "sink":
        return part.has_sink
    if folder == ROWS or path.startswith("query/state/"):
        return part.has_state
    return folder != IN_FLIGHT or rest.partition("/")[0] in snapshot.input_positions


def is_of_judge(path: str) -> bool:
    """Tell whether a sink that judges its rows no more needs a file of the stage that did."""
    return not path.startswith(("sink/", f"{ROWS}/"))


def count_on(stage: StageDirectory, judge: StageSnapshot, snapshot: StageSnapshot) -> None:
    """Let a judge's query count its batches on from its sink's, where that has had more of them: it keeps no state."""
    more = (snapshot.batch_id or 0) - (judge.batch_id or 0)
    for log in ("offsets", "commits") if more else ():
        for path in sorted((stage.query / log).iterdir(), key=lambda one: int(one.name), reverse=True):
            path.rename(path.with_name(str(int(path.name) + more)))


def take_part(stage: StageDirectory, part: QueryPart, snapshot: StageSnapshot) -> None:
    """Make a stage's directory, which is as the whole query's was, the part's. Raises Corrupt, InvalidRequest."""
    is_same = part.reads_alone and part.has_state and all(one == now for one, now in part.readers.items())
    if is_same or not stage.query.exists():
        return
    if snapshot.batch_id is None:
        _take_beginning(stage, part)
        return
    facts = _read_facts(stage)
    last = stage.query / f"offsets/{snapshot.batch_id}"
    reads = _reads_of(part, _readers_of(stage, part, facts, len(_lines_of(last)[1])))
    for path in (last.with_name(f"{snapshot.batch_id - 1}"), last):
        if path.exists():
            _take_offsets(path, reads, part)
    _take_sources(stage.query / "sources", [read.place for read in reads if read.channel is None])
    if not part.has_state:
        replace_whole(stage.query / f"commits/{snapshot.batch_id}", _COMMITTED.encode())
    replace_whole(stage.plan, json.dumps(_facts_of(part, facts, reads), indent=1).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A source of the part's query."""

    place: int
    """Number of the source of the whole query."""
    reader: StageUid
    channel: StageUid | None
    """Channel that brings what that source brought; None: it is read on."""


def _readers_of(
    stage: StageDirectory, part: QueryPart, facts: Mapping[str, Any], sources: int
) -> Sequence[str]:
    """Return the saved stage that read each source. Raises Corrupt where several did, and no plan says which."""
    if not facts.get("stages") and len(part.inputs) > 1:
        raise Corrupt(f"{stage.plan} does not say who read which source: restore from another checkpoint")
    return facts.get("stages") or part.inputs * sources


def _reads_of(part: QueryPart, read_by: Sequence[str]) -> list[_Read]:
    """Return the part's sources in Spark's order: channels take the places of the sources behind them."""
    found: list[_Read] = []
    for place, saved in enumerate(read_by):
        channel = part.feeds.get(saved)
        if saved in part.feeds and (channel is None or channel not in [read.channel for read in found]):
            found.append(_Read(place=place, reader=part.readers[saved], channel=channel))
    return found


def _facts_of(part: QueryPart, whole: Mapping[str, Any], reads: Sequence[_Read]) -> dict[str, Any]:
    facts = dict(whole) if part.has_state else {name: whole[name] for name in _OF_ANY_PLAN if name in whole}
    facts.pop("passed_on", None)
    for name in ("origins", "source_columns") if part.channels else ():
        facts.pop(name, None)
    for name in _BY_SOURCE:
        said = facts.pop(name, ())
        if not part.channels and len(said) > reads[-1].place:
            facts[name] = [said[read.place] for read in reads]
    return {**facts, "stages": [read.reader for read in reads] if part.is_chain else []}


def _take_beginning(stage: StageDirectory, part: QueryPart) -> None:
    """Leave a query that has run no batch: it begins where its sources did."""
    if part.reads_alone:
        return
    if part.begins and any((stage.query / "sources").glob("*/*")):
        raise InvalidRequest(
            f"part {part.uid!r} of the chain of {', '.join(part.feeds)} has read nothing yet, and where each of these "
            "begins is known of all together: run the pipeline as it was until a checkpoint has rows, and then this one"
        )
    shutil.rmtree(stage.query)


def _read_facts(stage: StageDirectory) -> dict[str, Any]:
    try:
        found = parse_json(stage.plan.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines_of(path: Path) -> tuple[list[str], list[str]]:
    """Return the beginning of a file of offsets, and its offsets in the order of the sources."""
    version, header, *lines = path.read_text(encoding="utf-8").split("\n")
    if version == "v2":
        named = dict(line.split(":", 1) for line in lines)
        if any(not name.isdecimal() for name in named):
            raise InvalidRequest(
                f"sources of {path.parent} have names of their own in Spark: such a query cannot be parted, let its "
                "stages run as one again"
            )
        lines = [named[name] for name in sorted(named, key=int)]
    return [version, header], lines


def _take_offsets(path: Path, reads: Sequence[_Read], part: QueryPart) -> None:
    (version, header), lines = _lines_of(path)
    if len(lines) <= max(read.place for read in reads):
        raise Corrupt(f"{path} has fewer sources than its plan: restore from another checkpoint")
    made = [
        lines[read.place]
        if read.channel is None
        else json.dumps({"channel": read.channel, "pos": BARRIER_AT})
        for read in reads
    ]
    if version == "v2":
        made = [f"{number}:{text}" for number, text in enumerate(made)]
    if not part.has_state:
        header = json.dumps({**parse_json(header), "batchWatermarkMs": 0})
    replace_whole(path, "\n".join([version, header, *made]).encode())


def _take_sources(folder: Path, places: Sequence[int]) -> None:
    """Leave what the sources keep that the part reads, under the numbers that they have in its query."""
    if not folder.exists():
        return
    aside = folder.with_name("sources.whole")
    folder.rename(aside)
    folder.mkdir()
    for number, place in enumerate(places):
        if (aside / str(place)).exists():
            (aside / str(place)).rename(folder / str(number))
    shutil.rmtree(aside)
