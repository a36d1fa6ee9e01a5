"""A query as a stage: its name, its place, its sink and what it reads, from what its writer was told."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dagster_ckpt.core.ids import stage_uid
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.attach.program import AttachedProgram, AttachedStage
from dagster_ckpt.ext.attach.writers import CHECKPOINT_LOCATION, WriterNotes
from dagster_ckpt.spark.java.plans import analyzed_plan, streams_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SESSION_LOCATION = "spark.sql.streaming.checkpointLocation"
WITHOUT_PLACE = frozenset({"console", "foreach", "foreachBatch", "noop", "memory"})
"""Sinks for which Spark takes a temporary directory where no ``checkpointLocation`` is given."""
NO_PART = "it takes no part in checkpoints"
ROWS_GO = "a restore goes on with new rows"
_IDS = re.compile(r"#\d+L?|@[0-9a-f]+")
"""Numbers in a plan's text that are others with each start."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_NO_REPLAY = {"socket": "a socket", "rate": "the rate source", "rate-micro-batch": "the rate source"}


@dataclass(frozen=True, slots=True)
class Found:
    """Query that is about to start, as a stage."""

    stage: AttachedStage | None
    """None: it takes no part in checkpoints."""
    lines: tuple[str, ...] = ()
    """What people should know of it."""
    gives_location: bool = False
    """It has no ``checkpointLocation`` of its own: the stage's is to be given to it."""


@dataclass(frozen=True, slots=True)
class AtStart:
    """A query's sink, and what there is already when it starts."""

    sink: str
    program: AttachedProgram
    running: Collection[str]


@dataclass
class Queries:
    """Queries of one process, as they become stages; ``lasting``: folder for the directories that we give."""

    lasting: Path
    _claimed: dict[str, object] = field(default_factory=dict)
    """Functions of nameless queries, by their stages: another function is another query."""

    def described(
        self, frame: DataFrame, told: WriterNotes, *, program: AttachedProgram, running: Collection[str]
    ) -> Found:
        """Return the query as a stage. ``running``: stages whose queries run.

        Raises InvalidRequest for a name that another running query has.
        """
        spark = frame.sparkSession
        sink = told.format or str(spark.conf.get("spark.sql.sources.default", "parquet"))
        named = told.query_name or told.path or told.table or "a query"
        if sink == "memory" and told.output_mode.lower() != "complete":
            return Found(None, (f"{named}: the memory sink begins empty with every start: {NO_PART}",))
        whole = str(spark.conf.get(SESSION_LOCATION, "") or "")
        given = told.option(CHECKPOINT_LOCATION) or (
            f"{whole}/{told.query_name}" if whole and told.query_name else ""
        )
        location = local_place(given) if given else ""
        if location is None:
            return Found(None, (f"{named}: its checkpointLocation is on no local disk: {NO_PART}",))
        if not location and not whole and sink not in WITHOUT_PLACE:
            return Found(None)  # Spark refuses it itself, and says what it needs
        return self._as_stage(frame, told, location, AtStart(sink, program, running))

    def _as_stage(self, frame: DataFrame, told: WriterNotes, location: str, now: AtStart) -> Found:
        reads = streams_read(frame)
        likeness = "" if location or told.query_name else _likeness(frame, told, now.sink)
        uid, why = self._place(told, likeness, now) if likeness else _name(told, location, now)
        known = now.program.stage(uid)
        place = location or (known.checkpoint_location if known is not None else str(self.lasting / uid))
        kinds = dict.fromkeys(_short(kind) for kind, _ in reads)
        lines = [
            f"stage {uid}{why}",
            *([] if location else [f"stage {uid} has no checkpointLocation: it gets {place}, which lasts"]),
            *(
                f"stage {uid} reads {_NO_REPLAY[kind]}, which cannot be read again: {ROWS_GO}"
                for kind in kinds
                if kind in _NO_REPLAY
            ),
        ]
        stage = AttachedStage(
            uid=uid,
            checkpoint_location=place,
            sink=now.sink,
            writes=_written(told, now.sink),
            reads=tuple(
                dict.fromkeys(one for kind, options in reads for one in _read(_short(kind), options))
            ),
            likeness=likeness,
        )
        return Found(stage, tuple(lines), gives_location=not location)

    def _place(self, told: WriterNotes, likeness: str, now: AtStart) -> tuple[str, str]:
        """Return the stage of a nameless query: the one that is like it, else the next number."""
        code = getattr(told.function, "__code__", None)
        for stage in now.program.stages:
            is_other = self._claimed.get(stage.uid, code) is not code
            if stage.likeness == likeness and stage.uid not in now.running and not is_other:
                uid = stage.uid
                break
        else:
            number = 1
            while now.program.stage(f"query-{number}") is not None:
                number += 1
            uid = f"query-{number}"
        self._claimed[uid] = code
        return (
            uid,
            ", after its place in the program: give it a queryName, and it is known when it is changed",
        )


def local_place(text: str) -> str | None:
    """Return a path or ``file:`` URI as an absolute path; None: it is no local one."""
    parts = urlsplit(text)
    if parts.scheme == "file":
        return str(Path(unquote(parts.path)).absolute())
    if parts.scheme and "/" in text.partition(":")[2]:
        return None
    return str(Path(text).absolute())


def _name(told: WriterNotes, location: str, now: AtStart) -> tuple[str, str]:
    """Return the stage's name, and how it came to that one.

    Raises InvalidRequest where a name is given twice: their states would be taken for each other's.
    """
    known = now.program.at(location) if location else None
    if known is not None and (not told.query_name or known.uid == _as_name(told.query_name)):
        return known.uid, ""
    if told.query_name:
        uid = _as_name(told.query_name)
        if uid in now.running and known is None:
            raise InvalidRequest(f"two running queries are named {uid!r}: give each a queryName of its own")
        return uid, ""
    parts = [_as_name(part) for part in Path(location).parts[1:]]
    taken = {stage.uid for stage in now.program.stages}
    names = ("-".join(parts[-length:]) for length in range(1, len(parts) + 1))
    uid = next((name for name in names if name not in taken), f"query-{len(taken) + 1}")
    return uid, ", after its checkpointLocation (it has no queryName)"


def _likeness(frame: DataFrame, told: WriterNotes, sink: str) -> str:
    """Return a digest of what the query reads and computes, and where it writes."""
    plan = _IDS.sub("", str(analyzed_plan(frame)))
    function = getattr(told.function, "__qualname__", "")
    text = "\n".join((plan, sink, told.output_mode, told.path, told.table, function))
    return digest_bytes(text.encode()).checksum


def _as_name(text: str) -> str:
    return stage_uid(_NO_NAME.sub("-", text).strip("-.") or "query")


# --- what it reads and writes ----------------------------------------------------------------------------------


def _written(told: WriterNotes, sink: str) -> str:
    if told.path:
        return local_place(told.path) or told.path.rstrip("/")
    if sink == "kafka":
        return f"kafka:{told.option('topic')}"
    return ""


def _short(kind: str) -> str:
    """Return the name by which people know a source: Spark spells some by the class that provides it."""
    last = kind.rpartition(".")[2]
    return {"TextSocketSourceProvider": "socket", "RateStreamProvider": "rate"}.get(last, last)


def _read(kind: str, options: dict[str, str]) -> list[str]:
    found = {name.lower(): value for name, value in options.items()}
    if kind == "kafka":
        return [f"kafka:{topic.strip()}" for topic in found.get("subscribe", "").split(",") if topic.strip()]
    path = found.get("path", "")
    return [local_place(path) or path.rstrip("/")] if path else []


def table_location(spark: SparkSession, table: str) -> tuple[str, str]:
    """Return provider and place of a table that a query writes; empty: the catalog says none."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    found = {row["col_name"]: row["data_type"] for row in rows}
    place = str(found.get("Location", ""))
    return str(found.get("Provider", "")), local_place(place) or place
