"""Checkpoints that ``spark-pipelines run`` has left, one a flow, and what in them is proven before it is taken over."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.paths import local_path
from dagster_ckpt.errors import Declined, InvalidRequest, NotFound
from dagster_ckpt.ext.spark_pipelines.elements import parts_of
from dagster_ckpt.ext.spark_pipelines.graph import FlowNode
from dagster_ckpt.ext.spark_pipelines.left.source_order import PlannedSource, SourceOrder
from dagster_ckpt.spark.channel.positions import parsed_position
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch

_SCHEME = re.compile(r"file:/+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLog:
    """A log of files that Spark keeps, of a source or of a file sink, as it stood after one batch.

    One file of JSON lines a batch; every tenth or so (``<n>.compact``) holds all before it as well.
    Source: CompactibleFileStreamLog.
    """

    newest: int | None
    """Its newest batch; None: it has none."""
    files: frozenset[str]
    """Local paths, or URIs of another file system."""


def read_file_log(folder: Path, *, through: int | None = None) -> FileLog:
    """Return the files of a log, those of batches up to ``through``. Raises Declined for one that is damaged."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    compacted = [int(name.removesuffix(".compact")) for name in names if re.fullmatch(r"\d+\.compact", name)]
    single = [int(name) for name in names if name.isdecimal()]
    newest = max([*single, *compacted], default=None)
    last = newest if through is None else through
    if last is None:
        return FileLog(newest=None, files=frozenset())
    base = max((number for number in compacted if number <= last), default=-1)
    missing = [number for number in range(base + 1, last + 1) if number not in single]
    if missing:
        raise Declined(
            f"{folder} has lost its batch {missing[0]}: its table or source cannot be told any more"
        )
    paths = [folder / f"{base}.compact"] if base >= 0 else []
    paths += [folder / str(number) for number in range(base + 1, last + 1)]
    found: set[str] = set()
    for path in paths:
        for entry in _entries(path):
            name = local_part(str(entry["path"]))
            found.discard(name) if entry.get("action") == "delete" else found.add(name)
    return FileLog(newest=newest, files=frozenset(found))


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    version, *lines = path.read_text(encoding="utf-8").split("\n")
    if version != "v1":
        raise Declined(f"{path} has format {version[:20]!r}, and v1 is known")
    for line in lines:
        if not line:
            continue
        try:
            entry = parse_json(line)
        except ValueError as error:
            raise Declined(f"{path} is damaged: {error}") from error
        if not isinstance(entry, dict) or "path" not in entry:
            raise Declined(f"{path} is damaged: {line[:80]!r} names no file")
        yield entry


def local_part(uri: str) -> str:
    """Return the local path of a URI as Spark writes it; of another file system the URI."""
    return unquote(_SCHEME.sub("/", uri, count=1)) if _SCHEME.match(uri) else uri


AGAIN = "Let spark-pipelines run once more, to its end, and adopt then"
_HEAD_LINES = 2
"""Of an entry of the offset log: its version, and what is of the batch."""


NOWHERE = ("", "-")
"""Position of a source that no batch has read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCheckpoint:
    """One flow's checkpoint directory, at its newest committed batch."""

    flow: FlowNode
    directory: Path
    batch: BatchId | None
    """None: the flow has read nothing so far."""

    @property
    def title(self) -> str:
        """The flow as people are told of it."""
        return f"flow {self.flow.name!r} of {self.flow.target!r}"

    def query_id(self) -> str:
        """Return Spark's id of the query. Raises Declined."""
        path = self.directory / "metadata"
        try:
            return str(parse_json(path.read_text(encoding="utf-8"))["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Declined(
                f"{path} cannot be read ({type(error).__name__}), and {self.title} needs it"
            ) from error

    def offsets(self, batch: int) -> tuple[str, ...]:
        """Return the positions of the sources, as text, in their order. Raises Declined."""
        return tuple(self._entry(batch)[_HEAD_LINES:])

    def head(self, batch: int) -> Sequence[str]:
        """Return the lines of the entry before the positions."""
        return self._entry(batch)[:_HEAD_LINES]

    def _entry(self, batch: int) -> list[str]:
        path = self.directory / "offsets" / str(batch)
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise Declined(
                f"{path} cannot be read ({type(error).__name__}), and {self.title} needs it"
            ) from error
        if lines[0] != "v1":
            raise Declined(
                f"{path} has format {lines[0][:20]!r}, in which sources have names: v1 is known here"
            )
        return lines


class ReadTable(Protocol):
    """A table of the project as Spark has left it, to the flows that read it."""

    @property
    def is_empty(self) -> bool:
        """True where it has no rows."""

    def refuse_unread(self, reader: FlowCheckpoint, source: PlannedSource, text: str) -> None:
        """Raise InvalidRequest where a flow that stands at ``text`` has not read exactly this table."""


def checkpoint_root(storage: str, *, below: Path) -> Path:
    """Return the folder of a project's checkpoints, a relative one below ``below``. Raises InvalidRequest, NotFound."""
    folder = local_path(storage)
    if folder is None:
        raise InvalidRequest(
            f"the project's storage {storage} is no local folder: copy it to one, whole, and name that (checkpoints)"
        )
    root = below / folder
    if not (root / "_checkpoints").is_dir():
        raise NotFound(
            f"{root} holds no _checkpoints, as spark-pipelines run leaves them: name the folder that does "
            "(checkpoints), or leave the checkpoints out, and everything is read from the sources"
        )
    return root / "_checkpoints"


def find_checkpoint(root: Path, flow: FlowNode) -> FlowCheckpoint:
    """Return a flow's newest checkpoint. Raises NotFound, InvalidRequest for one that is not at rest."""
    parts = parts_of(flow.name) or (flow.name,)
    folder = root.joinpath(*flow.target.split("."), parts[-1])
    versions = [int(path.name) for path in _below(folder) if path.name.isdecimal()]
    if not versions:
        raise NotFound(
            f"flow {flow.name!r} of {flow.target!r} ({flow.where}) has no checkpoint in {folder}: "
            f"Spark has not run it. {AGAIN}"
        )
    directory = folder / str(max(versions))
    found = FlowCheckpoint(flow=flow, directory=directory, batch=latest_committed_batch(directory))
    begun = [int(path.name) for path in _below(directory / "offsets") if path.name.isdecimal()]
    if max(begun, default=-1) != (-1 if found.batch is None else found.batch):
        raise InvalidRequest(
            f"{found.title} has begun batch {max(begun, default=-1)} and not committed it: "
            f"whether its rows are in the table is not known. {AGAIN}"
        )
    return found


def flows_with_batches(root: Path, target: str) -> list[str]:
    """Return the flows of a table that have ever committed a batch, also flows that the project no longer has."""
    folder = root.joinpath(*target.split("."))
    return sorted(flow.name for flow in _below(folder) if any(flow.glob("*/commits/[0-9]*")))


def _below(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


# --- the query as it goes on ------------------------------------------------------------------------------------


def rebuilt_query(
    found: FlowCheckpoint, order: SourceOrder, tables: Mapping[str, ReadTable], query: Path
) -> None:
    """Make the directory of a flow's query: Spark's files, with positions for the sources of our plan.

    ``tables``: each table of the project. Raises InvalidRequest for what is not proven, Declined.
    """
    if found.batch is None:
        read = (source.stands_for for source in order.sparks if source.stands_for)
        behind = next((name for name in read if not tables[name].is_empty), None)
        if behind is not None:
            raise InvalidRequest(f"{found.title} has not read table {behind!r} yet. {AGAIN}")
        return
    _refuse_unproven(found, order, tables)
    query.mkdir(parents=True)
    for name in ("metadata", "commits", "state"):
        if (found.directory / name).exists():
            (query / name).symlink_to(found.directory / name)
    (query / "offsets").mkdir()
    for batch in (found.batch, found.batch - 1):
        if batch >= 0:
            lines = [*found.head(batch), *_positions(order, found.offsets(batch))]
            (query / "offsets" / str(batch)).write_text("\n".join(lines), encoding="utf-8")
    for before, now in _numbers(order).items():
        source = found.directory / "sources" / str(before)
        if source.is_dir():
            (query / "sources").mkdir(exist_ok=True)
            (query / "sources" / str(now)).symlink_to(source)


def _numbers(order: SourceOrder) -> dict[int, int]:
    """Return the numbers of the sources outside of the project, in Spark's plan and in ours."""
    sparks, ours = (
        [*dict.fromkeys(s.number for s in one if not s.stands_for)] for one in (order.sparks, order.ours)
    )
    return dict(zip(sparks, ours, strict=True))


def _positions(order: SourceOrder, offsets: Sequence[str]) -> list[str]:
    outside = {source.number: text for source, text in zip(order.sparks, offsets, strict=True)}
    before = {now: number for number, now in _numbers(order).items()}
    return [
        json.dumps({"channel": source.stands_for, "pos": 0})
        if source.stands_for
        else outside[before[source.number]]
        for source in order.ours
    ]


# --- what is proven ---------------------------------------------------------------------------------------------


def _refuse_unproven(found: FlowCheckpoint, order: SourceOrder, tables: Mapping[str, ReadTable]) -> None:
    assert found.batch is not None
    offsets = found.offsets(found.batch)
    if len(offsets) != len(order.sparks):
        raise InvalidRequest(
            f"{found.title} has positions in {len(offsets)} sources, and its function reads {len(order.sparks)}: "
            f"it was changed since Spark ran it. {AGAIN}"
        )
    nameless: list[PlannedSource] = []
    for source, text in zip(order.sparks, offsets, strict=True):
        if source.stands_for:
            tables[source.stands_for].refuse_unread(found, source, text)
        elif source.name.startswith("FileSource["):
            _refuse_other_files(found, source, text)
        elif source.topics:
            _refuse_other_topics(found, source, text)
        else:
            nameless.append(source)
    if len({source.number for source in nameless}) > 1:
        raise InvalidRequest(
            f"{found.title} reads {' and '.join(source.name for source in nameless)}, "
            "and nothing in its checkpoint says which position is whose: it cannot be adopted"
        )


def files_read(found: FlowCheckpoint, source: PlannedSource, text: str) -> frozenset[str]:
    """Return the files that a file source has read. Raises InvalidRequest for a position of another one, Declined."""
    if text in NOWHERE:
        return frozenset()
    value = parsed_position(text)
    if "logOffset" not in value:
        raise InvalidRequest(
            f"{found.title}: source {source.number} is {source.stands_for or source.name} now, and its position is "
            f"{text[:80]}, none of a file source: the function was changed since Spark ran it. {AGAIN}"
        )
    return read_file_log(
        found.directory / "sources" / str(source.number), through=int(value["logOffset"])
    ).files


def _refuse_other_files(found: FlowCheckpoint, source: PlannedSource, text: str) -> None:
    path = local_part(source.name.removeprefix("FileSource[").removesuffix("]"))
    other = min((file for file in files_read(found, source, text) if not _is_below(file, path)), default=None)
    if other is not None:
        raise InvalidRequest(
            f"{found.title}: source {source.number} reads {path} now, and has read {other}: the function was changed "
            f"since Spark ran it. {AGAIN}"
        )


def _is_below(file: str, path: str) -> bool:
    plain = re.split(r"[*?\[{]", path, maxsplit=1)[0]
    if not path.startswith("/") and "://" not in path:  # relative to where Spark ran
        return f"/{plain.removeprefix('./').rstrip('/')}" in file
    return file.startswith(plain) if plain != path else f"{file}/".startswith(f"{path.rstrip('/')}/")


def _refuse_other_topics(found: FlowCheckpoint, source: PlannedSource, text: str) -> None:
    wanted = {topic.strip() for topic in source.topics.split(",")}
    other = sorted(set(parsed_position(text)) - wanted)
    if other:
        raise InvalidRequest(
            f"{found.title}: source {source.number} reads topics {source.topics} now, and stands in {other[0]!r}: the "
            f"function was changed since Spark ran it. {AGAIN}"
        )
