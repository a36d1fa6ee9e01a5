"""Files of a snapshot that a restore writes itself: paths of its own directory, and a part of a saved query.

Spark 4.1 to 4.3 writes its own path into one kind of file: the operator metadata of ``transformWithState``
(``state/<operator>/_metadata/v2/<batch>``, OperatorStateMetadataV2) names its schema files by full path. What they
name lies in the snapshot too, so the part below the directory says which file is meant, wherever it was written. Any
other captured text that names the directory declines the capture: restored, it would lead back to a directory that
may be gone, or that another attempt writes to.

A part of a query: what its stages read themselves it reads on from there; what another part does now comes by that
one's channel. State stays with the function that made it, rows of a sink with the sink. Files are replaced, never
edited: they may be hard links to those of the storage.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dagster_ckpt.core.chains import QueryPart
from dagster_ckpt.core.ids import StageUid, relative_path
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import FileEntry, FileKind, StageSnapshot
from dagster_ckpt.core.restore.parted import BARRIER_AT
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.directories import IN_FLIGHT, StageDirectory
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.snapshot.batch_notes import COUNTS
from dagster_ckpt.spark.snapshot.checkpoint_files import Unreadable
from dagster_ckpt.spark.snapshot.state_files import PlannedFile

MAX_TEXT = 256 * 1024
"""Bytes up to which a captured text is searched; those of Spark that could name the directory have a few hundred."""

_TEXTS = frozenset({FileKind.QUERY, FileKind.SOURCE_LOG, FileKind.STATE_SCHEMA})
_OPERATOR_METADATA = re.compile(r"query/(state/\d+)/_metadata/v2/(\d+)")


def refuse_own_paths(root: Path, files: Iterable[PlannedFile]) -> None:
    """Raise Unreadable when a captured text that a restore cannot rewrite names the query's directory."""
    query = str(StageDirectory(root).query)
    names = frozenset({f"{query}/", f"{_behind_links(query, os.lstat(query).st_ino)}/"})
    for file in files:
        if file.kind not in _TEXTS or file.size > MAX_TEXT or _OPERATOR_METADATA.fullmatch(file.path):
            continue
        if _names(f"{root}/{file.path}", file.stamp, names):
            raise Unreadable(
                f"{file.path} names the directory it lies in, which a restore elsewhere does not have, and this "
                "library does not know how to rewrite it: keep the stage's files outside its working directory"
            )


@lru_cache(maxsize=256)
def _behind_links(query: str, _inode: int) -> str:
    return os.path.realpath(query)


@lru_cache(maxsize=4096)
def _names(path: str, _stamp: tuple[int, int] | None, names: frozenset[str]) -> bool:
    with open(path, "rb", buffering=0) as file:
        content = file.read()
    return any(name.encode() in content for name in names)


def name_directory(built: Path, entries: Sequence[FileEntry], directory: Path) -> None:
    """Let the operator metadata below ``built`` name ``directory``, where it will lie.

    Raises Corrupt when one is damaged, or when the latest of an operator names a schema that the snapshot has not.
    """
    found = [(m[1], int(m[2]), e) for e in entries if (m := _OPERATOR_METADATA.fullmatch(e.path))]
    latest = {operator: max(b for o, b, _ in found if o == operator) for operator, _, _ in found}
    stored = {entry.path for entry in entries}
    for operator, batch, entry in found:
        path = built / entry.path
        needed = stored if batch == latest[operator] else None
        content = _renamed(
            path.read_text(encoding="utf-8", errors="replace"), operator, directory, needed, entry.path
        )
        # Replaced, never edited: the file may be a hard link to the one in checkpoint storage.
        path.unlink()
        path.write_text(content, encoding="utf-8")


def _renamed(text: str, operator: str, directory: Path, stored: Collection[str] | None, name: str) -> str:
    version, _, body = text.partition("\n")
    try:
        content: dict[str, Any] = parse_json(body)
        stores = content["stateStoreInfo"]
        schemas = [_below(path, operator) for store in stores for path in store["stateSchemaFilePaths"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{name} is no operator metadata of Spark: restore from another checkpoint") from error
    gone = [schema for schema in schemas if stored is not None and f"query/{schema}" not in stored]
    if gone:
        raise Corrupt(
            f"{name} needs the state schema {gone[0]}, which the snapshot does not have: restore from another "
            "checkpoint"
        )
    left = iter(schemas)
    for store in stores:
        store["stateSchemaFilePaths"] = [
            f"file:{StageDirectory(directory.absolute()).query}/{next(left)}"
            for _ in store["stateSchemaFilePaths"]
        ]
    return f"{version}\n{json.dumps(content, separators=(',', ':'), ensure_ascii=False)}"


def _below(path: str, operator: str) -> str:
    """Return a schema file's path below the query's directory; raises ValueError for one of another operator."""
    _, found, rest = path.rpartition(f"/{operator}/_stateSchema/")
    if not found:
        raise ValueError(path)
    return f"{operator}/_stateSchema/{relative_path(rest)}"


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
    if folder == COUNTS or path.startswith("query/state/"):
        return part.has_state
    return folder != IN_FLIGHT or rest.partition("/")[0] in snapshot.input_positions


def is_of_judge(path: str) -> bool:
    """Tell whether a sink that judges its rows no more needs a file of the stage that did."""
    return not path.startswith(("sink/", f"{COUNTS}/"))


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
