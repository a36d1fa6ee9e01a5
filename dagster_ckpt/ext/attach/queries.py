"""A query as a stage: its name, its place, its sink and what it reads, from what its writer was told."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dagster_ckpt.core.ids import LONGEST_NAME, stage_uid
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.attach.fork import in_fork, refuse_reader
from dagster_ckpt.ext.attach.program import AttachedProgram, AttachedStage
from dagster_ckpt.ext.attach.steps import bound_values, is_bound_alike, lasting_values
from dagster_ckpt.ext.attach.writers import CHECKPOINT_LOCATION, WriterNotes
from dagster_ckpt.spark.java.plans import analyzed_plan, has_watermark, streams_read, working_folder
from dagster_ckpt.spark.plan.sources import CLEANS, LEAVES_THEM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SESSION_LOCATION = "spark.sql.streaming.checkpointLocation"
WITHOUT_PLACE = frozenset({"console", "foreach", "foreachBatch", "noop", "memory"})
"""Sinks for which Spark takes a temporary directory where no ``checkpointLocation`` is given."""
NO_PART = "it takes no part in checkpoints"
FORMER = 16
"""Starts with other values that are remembered."""
_IDS = re.compile(r"#\d+L?|@[0-9a-f]+")
"""Numbers in a plan's text that are others with each start."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_SOCKET = "socket"
NO_REPLAY = {_SOCKET: "a socket", "rate": "the rate source", "rate-micro-batch": "the rate source"}
_CLEANED = "files that cleanSource takes away"


@dataclass(frozen=True, slots=True)
class Found:
    """Query that is about to start, as a stage."""

    stage: AttachedStage | None
    """None: it takes no part in checkpoints."""
    lines: tuple[str, ...] = ()
    """What people should know of it."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Options to start it with: its ``checkpointLocation`` where it has none, and a fork's places."""


@dataclass(frozen=True, slots=True)
class AtStart:
    """A query's sink, and what there is already when it starts."""

    sink: str
    program: AttachedProgram
    running: Collection[str]
    folder: str
    """Where paths that are not absolute begin."""
    reads: list[tuple[str, dict[str, str]]]
    """Kind and options of each stream it reads."""

    @property
    def places_read(self) -> tuple[str, ...]:
        """Paths and topics it reads."""
        return tuple(dict.fromkeys(one for kind, options in self.reads for one in _read(kind, options, self)))


@dataclass
class Queries:
    """Queries of one process, as they become stages; ``lasting``: folder for the directories that we give."""

    lasting: Path
    _claimed: dict[str, tuple[object, list[object]]] = field(default_factory=dict)
    """Code and bound values of the functions of queries without a place, by their stages: others are another query."""

    def described(
        self, frame: DataFrame, told: WriterNotes, *, program: AttachedProgram, running: Collection[str]
    ) -> Found:
        """Return the query as a stage. ``running``: stages whose queries run."""
        spark = frame.sparkSession
        sink = told.format or str(spark.conf.get("spark.sql.sources.default", "parquet"))
        named = told.query_name or told.path or told.table or "a query"
        if sink == "memory" and told.output_mode.lower() != "complete":
            return Found(None, (f"{named}: the memory sink begins empty with every start: {NO_PART}",))
        whole = str(spark.conf.get(SESSION_LOCATION, "") or "")
        given = told.option(CHECKPOINT_LOCATION) or (
            f"{whole}/{told.query_name}" if whole and told.query_name else ""
        )
        folder = working_folder(spark)
        location = local_place(given, folder) if given else ""
        if location is None:
            return Found(None, (f"{named}: its checkpointLocation is on no local disk: {NO_PART}",))
        if not location and not whole and sink not in WITHOUT_PLACE:
            return Found(None)  # Spark refuses it itself, and says what it needs
        reads = streams_read(frame)
        if not location and any(_short(kind) == _SOCKET for kind, _ in reads):
            # Spark cannot go on from a socket: in a directory that lasts, every later start would fail.
            return Found(None, (f"{named}: it reads a socket, and begins empty with every start: {NO_PART}",))
        return self._as_stage(frame, told, location, AtStart(sink, program, running, folder, reads))

    def _as_stage(self, frame: DataFrame, told: WriterNotes, location: str, now: AtStart) -> Found:
        likeness = "" if location else _likeness(frame, told, now)
        uid, why = self._place(told, likeness, now) if likeness else _name(told, location, now)
        known = now.program.stage(uid)
        place = location or (known.checkpoint_location if known is not None else str(self.lasting / uid))
        lines = [
            f"stage {uid}{why}",
            *([] if location else [f"stage {uid} has no checkpointLocation: it gets {place}, which lasts"]),
        ]
        stage = AttachedStage(
            uid=uid,
            checkpoint_location=place,
            sink=now.sink,
            writes=_written(told, now),
            reads=now.places_read,
            passing=tuple(
                dict.fromkeys(one for kind, options in now.reads if (one := _passing(kind, options)))
            ),
            likeness=likeness,
            formerly=() if known is None else _former(known, likeness),
            copied_from="" if known is None else known.copied_from,
        )
        if now.program.tables:
            stage = in_fork(stage, now.program, self.lasting, location)
            refuse_reader(stage, now.program)
            return Found(stage, tuple(lines), _places_of(stage))
        return Found(stage, tuple(lines), {} if location else _places_of(stage))

    def _place(self, told: WriterNotes, likeness: str, now: AtStart) -> tuple[str, str]:
        """Return the stage of a query without a place: the one that is like it, else its name or the next number."""
        bound = (getattr(told.function, "__code__", None), bound_values(told.function))
        free = [one for one in now.program.stages if one.uid not in now.running]
        same = (
            one for one in free if likeness in (one.likeness, *one.formerly) and self._may_be(one.uid, bound)
        )
        name = _as_name(told.query_name, is_exact=True) if told.query_name else ""
        stage = next(same, None)
        changed = None if stage is not None else self._with_other_values(name, likeness, free, now)
        found = stage or changed
        if found is None:
            _refuse_taken(name, likeness, now.program)
        uid = _free_name(name, now.program) if found is None else found.uid
        self._claimed[uid] = bound
        if changed is not None and changed.likeness:
            return uid, " goes on, though it reads, writes or is bound to other than at its last start"
        if uid == name:
            return uid, ""
        if name:
            return uid, f", since the stage {name} writes elsewhere: give each a queryName of its own"
        return (
            uid,
            ", after its place in the program: give it a queryName, and it is known when it is changed",
        )

    def _may_be(self, uid: str, bound: tuple[object, list[object]]) -> bool:
        code, values = self._claimed.get(uid, bound)
        return code is bound[0] and is_bound_alike(values, bound[1])

    def _with_other_values(
        self, name: str, likeness: str, free: Sequence[AttachedStage], now: AtStart
    ) -> AttachedStage | None:
        """Return the stage of a query that is bound to other values than at its last start: a date, a number of a run.

        A query without a name that reads elsewhere is another one: there is nothing there that it has read.
        Raises InvalidRequest where it may be one of several: the directory of another would be taken for its own.
        """
        known_by = likeness.partition(" ")[0]
        alike = [
            one
            for one in free
            if one.uid not in self._claimed
            and (name or one.reads == now.places_read)
            and (one.likeness.partition(" ")[0] == known_by or (one.uid == name and self._is_ours(one)))
        ]
        if len(alike) > 1:
            places = ", ".join(f"{one.checkpoint_location} of stage {one.uid}" for one in alike)
            raise InvalidRequest(
                f"{name or 'a query without a queryName'} is like several queries of before, and none of them had its "
                f"values: give it a checkpointLocation, one of theirs ({places}) to go on there, or another to begin"
            )
        return alike[0] if alike else None

    def _is_ours(self, stage: AttachedStage) -> bool:
        """Tell whether a named query's place was given to it when likenesses of such ones were not kept."""
        return not stage.likeness and Path(stage.checkpoint_location).parent == self.lasting


def _places_of(stage: AttachedStage) -> dict[str, str]:
    path = {"path": stage.writes} if stage.came_from else {}
    return {CHECKPOINT_LOCATION: stage.checkpoint_location, **path}


def _former(stage: AttachedStage, likeness: str) -> tuple[str, ...]:
    """Return the likenesses of earlier starts, the newest ones, of a stage that starts with one."""
    return tuple(one for one in (*stage.formerly, stage.likeness) if one not in ("", likeness))[-FORMER:]


def _refuse_taken(name: str, likeness: str, program: AttachedProgram) -> None:
    """Raise InvalidRequest where the directory of a query has gone to another one, which came before it."""
    for one in program.stages:
        if likeness in one.formerly:
            raise InvalidRequest(
                f"{name or 'a query without a queryName'} was stage {one.uid} of before, and another query, which "
                f"starts ahead of it, has taken {one.checkpoint_location} for its own: stop, put it back (dagster-ckpt "
                f"restore latest), give this query the checkpointLocation {one.checkpoint_location}, and the other one "
                "another"
            )


def _free_name(name: str, program: AttachedProgram) -> str:
    """Return a stage's name for a query that is like none there is; ``name``: its own, or empty."""
    if name and program.stage(name) is None:
        return name
    number = 2 if name else 1
    while program.stage(f"{name or 'query'}-{number}") is not None:
        number += 1
    return f"{name or 'query'}-{number}"


def local_place(text: str, folder: str) -> str | None:
    """Return a path or ``file:`` URI as the absolute path that Spark makes of it; None: it is no local one.

    ``folder``: where a relative path begins. Spark takes ``%20`` and ``#`` as they stand, in URIs too.
    """
    scheme, colon, rest = text.partition(":")
    if colon and "/" not in scheme and rest.startswith("/"):
        if scheme != "file":
            return None
        text = "/" + rest.partition("//")[2].partition("/")[2] if rest.startswith("//") else rest
    return os.path.normpath(Path(folder, text))


def _name(told: WriterNotes, location: str, now: AtStart) -> tuple[str, str]:
    """Return the stage's name, and how it came to that one; a directory is one stage, whatever its query is called."""
    known = now.program.at(location) if location else None
    if known is not None:
        return known.uid, ""
    name = _as_name(told.query_name, is_exact=True) if told.query_name else ""
    there = now.program.stage(name) if name else None
    if name and (there is None or not (there.has_directory or name in now.running)):
        return name, ""
    parts = [_as_name(part) for part in Path(location).parts[1:]]
    taken = {stage.uid for stage in now.program.stages}
    first = [name] if name else []
    names = (_as_name("-".join([*first, *parts[-length:]])) for length in range(1, len(parts) + 1))
    uid = next((one for one in names if one not in taken), f"query-{len(taken) + 1}")
    if there is not None:
        return uid, f", since the stage {name} keeps its own in {there.checkpoint_location}"
    return uid, ", after its checkpointLocation (it has no queryName)"


def _likeness(frame: DataFrame, told: WriterNotes, now: AtStart) -> str:
    """Return two digests of a query: of what it is whatever its values are, and of these.

    What it is: its name; without one its plan and sink. Values: of its function, and where it reads and writes.
    """
    known_by = [told.query_name]
    if not told.query_name:
        plan = _IDS.sub("", str(analyzed_plan(frame)))
        function = str(getattr(told.function, "__qualname__", ""))
        known_by = [plan, now.sink, told.output_mode, told.path, told.table, function]
    reads = (one for kind, options in now.reads for one in _read(kind, options, now))
    values = [now.sink, told.path, told.table, *lasting_values(told.function), *reads]
    return " ".join(digest_bytes("\n".join(text).encode()).checksum for text in (known_by, values))


def _as_name(text: str, *, is_exact: bool = False) -> str:
    """Return a stage's name for whatever a program calls its query or directory: ``_checkpoints``, ``shared``.

    ``is_exact``: names that differ stay different, such as two in Greek.
    """
    name = _NO_NAME.sub("-", text).lstrip("-._").rstrip("-.") or "query"
    if len(name) > LONGEST_NAME or (is_exact and name != text):
        mark = digest_bytes((text if is_exact else name).encode()).checksum[-8:]
        name = f"{name[: LONGEST_NAME - 9]}-{mark}"
    return stage_uid("query-shared" if name == "shared" else name)


# --- what it reads and writes ----------------------------------------------------------------------------------


def _written(told: WriterNotes, now: AtStart) -> str:
    if told.path:
        return local_place(told.path, now.folder) or told.path.rstrip("/")
    if now.sink == "kafka":
        return f"kafka:{told.option('topic')}"
    return ""


def _short(kind: str) -> str:
    """Return the name by which people know a source: Spark spells some by the class that provides it."""
    last = kind.rpartition(".")[2]
    return {"TextSocketSourceProvider": _SOCKET, "RateStreamProvider": "rate"}.get(last, last)


def _read(kind: str, options: dict[str, str], now: AtStart) -> list[str]:
    found = {name.lower(): value for name, value in options.items()}
    if _short(kind) == "kafka":
        return [f"kafka:{topic.strip()}" for topic in found.get("subscribe", "").split(",") if topic.strip()]
    path = found.get("path", "")
    return [local_place(path, now.folder) or path.rstrip("/")] if path else []


def _passing(kind: str, options: dict[str, str]) -> str:
    """Return the part of a source that cannot be read again; empty: it has none."""
    cleans = any(n.lower() == CLEANS and v.strip().lower() != LEAVES_THEM for n, v in options.items())
    return _CLEANED if cleans else NO_REPLAY.get(_short(kind), "")


def table_location(spark: SparkSession, table: str) -> tuple[str, str]:
    """Return provider and place of a table that a query writes; empty: the catalog says none."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    found = {row["col_name"]: row["data_type"] for row in rows}
    place = str(found.get("Location", ""))
    local = local_place(place, working_folder(spark)) if place else None
    if local is not None and not Path(local).exists() and Path(unquote(local)).exists():
        local = unquote(local)  # catalogs write it as a URI
    return str(found.get("Provider", "")), local or place


def may_drop_rows(frame: DataFrame) -> bool:
    """Tell whether a query may drop rows that come too late; true as well where its plan cannot be read."""
    try:
        return has_watermark(frame)
    except Exception:  # of whatever kind: the query runs, the program goes on
        return True
