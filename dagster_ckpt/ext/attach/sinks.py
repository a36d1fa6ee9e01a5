"""Sinks of attached queries: what a restore means for each, and those that go back, Spark's file sink and Delta.

A file sink's own log names the files that are the table. It is part of the checkpoint, and put back with the state:
else Spark would skip every replayed batch that the log has already, without a word, whatever its rows are now. Files
that the log no longer names are set aside and not deleted, since a later savepoint may name them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import FileKind, Record, StageSnapshot
from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import Corrupt, InvalidRequest, printable
from dagster_ckpt.ext.attach.program import AttachedStage
from dagster_ckpt.spark.directories import SINK_FOLDER
from dagster_ckpt.spark.snapshot.capture import PlannedFile, log_up_to
from dagster_ckpt.spark.snapshot.checkpoint_files import Unreadable, read_query_id
from dagster_ckpt.spark.snapshot.state_files import Vanished

FILE_FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "avro"})
SINK_LOG = "_spark_metadata"
POSITION = "version.json"
SET_ASIDE = "_dagster_ckpt_set_aside"
"""Folder in the table, which readers pass over as they do every name that begins with an underscore."""

_AS_EXACT_AS_SPARK = {
    "console": "rows are printed again",
    "noop": "it keeps nothing",
    "memory": "the table is made of the state that is restored",
    "kafka": "messages after the cut stay in the topic, and are written again",
    "foreachBatch": "the function is called again for batches after the cut, under the same numbers",
    "foreach": "rows after the cut are handed to the function again",
}


@dataclass(frozen=True, slots=True)
class OwnSinkCut:
    """A sink's part of a stage's cut."""

    line: str
    """What a restore does to it."""
    files: tuple[PlannedFile, ...] = ()


def line_of(stage: AttachedStage) -> str:
    """Return the sentence about a restore and the stage's sink, and its sources where they cannot be read again."""
    gone = "".join(f"; {one} cannot be read again: a restore goes on with new rows" for one in stage.passing)
    if goes_back(stage):
        return f"{stage.sink} at {stage.writes} goes back with a restore{gone}"
    if skips_replayed(stage):
        return f"{stage.sink} at {stage.writes} is on no local disk, and cannot go back: a restore is refused{gone}"
    known = _AS_EXACT_AS_SPARK.get(stage.sink, "rows after the cut stay, and are written again")
    return f"{stage.sink} is as exact as Spark: after a restore {known}{gone}"


def goes_back(stage: AttachedStage) -> bool:
    """Tell whether a restore takes rows back from the stage's sink."""
    return stage.sink in (*FILE_FORMATS, "delta") and stage.writes.startswith("/")


def skips_replayed(stage: AttachedStage) -> bool:
    """Tell whether the sink has a log by which Spark skips batches of any query that come again."""
    return stage.sink in FILE_FORMATS


def may_remember(stage: AttachedStage) -> bool:
    """Tell whether a sink may remember the batches of a query by its id, as those of tables do.

    It would skip them in silence when they come again; they may have other rows then.
    """
    return stage.sink not in (*FILE_FORMATS, *_AS_EXACT_AS_SPARK)


def may_show(stage: AttachedStage, batch: BatchId | None) -> bool:
    """Tell whether a reader may keep rows of a batch in which its query was stopped.

    Where a sink is as exact as Spark the batch is written again: a reader has its rows twice, here as without us.
    """
    if stage.sink in _AS_EXACT_AS_SPARK:
        return False
    if stage.sink in FILE_FORMATS and goes_back(stage):
        return batch is not None and _has(Path(stage.writes) / SINK_LOG, batch)
    return True


def sink_cut(stage: AttachedStage, batch: BatchId | None, *, query: Path, note: Path) -> OwnSinkCut:
    """Return the sink's part of a cut behind a committed batch; ``note``: a file that what is written down goes to.

    ``query``: the directory of the stage's query.

    Raises Vanished where the sink's log changes meanwhile.
    """
    if not goes_back(stage):
        return OwnSinkCut(line_of(stage))
    if stage.sink == "delta":
        try:
            query_id = read_query_id(query / "metadata")
        except (FileNotFoundError, Unreadable):
            query_id = ""  # what is wrong with it, the capture says
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(DeltaPosition.now(Path(stage.writes), query_id, batch).model_dump_json())
        return OwnSinkCut(line_of(stage), (_planned(note, name=POSITION),))
    log = Path(stage.writes) / SINK_LOG
    if batch is not None and not _has(log, batch):
        return OwnSinkCut(
            f"{SINK_LOG} of {stage.writes} has no entry of batch {batch}: the table stays as it is"
        )
    names = [] if batch is None else log_up_to(_entries(log), int(batch))
    return OwnSinkCut(line_of(stage), tuple(_planned(log / name) for name in names))


def _entries(log: Path) -> list[str]:
    return [name for name in os.listdir(log) if not name.startswith(".")] if log.is_dir() else []


def _has(log: Path, batch: BatchId) -> bool:
    return (log / str(batch)).exists() or (log / f"{batch}.compact").exists()


def _planned(path: Path, *, name: str = "") -> PlannedFile:
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise Vanished(f"{path} is gone") from error
    return PlannedFile(
        path=f"{SINK_FOLDER}/{name or path.name}", size=size, kind=FileKind.COMMITTABLE, source=str(path)
    )


# --- going back --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesReturn:
    """The way back of a table of files, checked: every file that its log will name is there."""

    table: Path
    log: Path
    """The log as it was at the cut."""
    entries: tuple[str, ...]
    moved_in: tuple[Path, ...]
    """Files of the cut that an earlier restore has set aside."""
    moved_out: tuple[Path, ...]
    """Files that only the log of now names."""

    @classmethod
    def planned(cls, stage: AttachedStage, log: Path) -> FilesReturn:
        """Plan it. Raises Corrupt where a file of the cut is gone: nothing was changed."""
        table = Path(stage.writes)
        wanted = named_files(log, table)
        moved_in = []
        for file in wanted:
            if file.exists():
                continue
            if not _aside(table, file).exists():
                raise Corrupt(
                    f"{file} belonged to the table at the cut and is gone: put it back, or restore a later snapshot"
                )
            moved_in.append(file)
        out = sorted(set(named_files(table / SINK_LOG, table)) - set(wanted))
        return cls(
            table=table,
            log=log,
            entries=tuple(_entries(log)),
            moved_in=tuple(moved_in),
            moved_out=tuple(file for file in out if file.exists()),
        )

    def carry_out(self) -> str:
        """Put the table back, and return what was done. Done again after it was killed, it does the rest."""
        folder = self.table / SINK_LOG
        if not self.entries and not folder.exists():
            return f"{self.table} had no rows, and has none"
        for file in self.moved_in:
            _aside(self.table, file).replace(file)
        building = self.table / f"{SINK_LOG}.restoring"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        for name in self.entries:
            shutil.copy2(self.log / name, building / name)
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
        for file in self.moved_out:
            aside = _aside(self.table, file)
            aside.parent.mkdir(parents=True, exist_ok=True)
            file.replace(aside)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        return f"{self.table} is back: {counted(len(self.moved_out), 'file')} of later batches moved to {SET_ASIDE}"


def _aside(table: Path, file: Path) -> Path:
    return table / SET_ASIDE / file.relative_to(table)


def named_files(log: Path, table: Path) -> list[Path]:
    """Return the files of a table that a file sink's log names: the newest compaction, and the single entries after it.

    Raises Corrupt where one is elsewhere: a log comes from a snapshot too, and files are moved by what it names.
    """
    try:
        return _named_files(log, table)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Corrupt(f"{log} is no log of a file sink: restore from another snapshot") from error


def _named_files(log: Path, table: Path) -> list[Path]:
    entries = _entries(log)
    compacted = max(
        (int(n.removesuffix(".compact")) for n in entries if n.endswith(".compact")), default=None
    )
    after = sorted(int(n) for n in entries if n.isdecimal() and (compacted is None or int(n) > compacted))
    names = ([f"{compacted}.compact"] if compacted is not None else []) + [str(number) for number in after]
    found: dict[Path, None] = {}
    for name in names:
        for line in (log / name).read_text(encoding="utf-8").split("\n")[1:]:
            if not line:
                continue
            entry = parse_json(line)
            path = _in_table(unquote(urlsplit(entry["path"]).path), table, log)
            if entry.get("action", "add") == "add":
                found[path] = None
            else:
                found.pop(path, None)
    return list(found)


def _in_table(named: str, table: Path, log: Path) -> Path:
    """Return a path that a log names, as one below the table's folder, through no link that leads out of it."""
    for folder in (table, table.resolve()):
        path = Path(os.path.normpath(named))
        if folder in path.parents and table.resolve() in path.resolve().parents:
            return table / path.relative_to(folder)
    raise Corrupt(
        f"{log} names {printable(named)!r}, which is not in the folder of its table, {table}: nothing was changed. "
        "Restore from another snapshot, or put the table back where it was"
    )


class DeltaPosition(Record):
    """Position of a Delta table at a cut, among the stage's files."""

    version: int
    """The version that the cut's batch has made; -1: there was no table yet."""

    @classmethod
    def now(cls, table: Path, query_id: str, batch: BatchId | None) -> DeltaPosition:
        """Return the version that shows the query's batches up to one, and no later one."""
        commits = delta_commits(table)
        later = [
            number
            for number, txns in commits.items()
            if any(app == query_id and (batch is None or txn > batch) for app, txn in txns)
        ]
        newest = max(commits, default=-1)
        # A restore has lowered the number that the table remembers: what is later than that counts.
        shown = [
            n
            for n, txns in commits.items()
            if any(a == query_id and batch is not None and t <= batch for a, t in txns)
        ]
        since = max(shown, default=-1)
        first_later = min((number for number in later if number > since), default=newest + 1)
        return cls(version=since if since >= 0 else first_later - 1)

    @classmethod
    def at_cut(cls, built: Path) -> DeltaPosition:
        """Return the position among a restored stage's files. Raises Corrupt."""
        path = built / SINK_FOLDER / POSITION
        try:
            return cls.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError) as error:
            raise Corrupt(
                f"{path} does not say where the Delta table was: restore from another snapshot"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaReturn:
    """The way back of a Delta table, checked: to the version of the cut."""

    table: Path
    version: int
    query_id: str
    batch: int
    """-1: the query had committed none."""
    has_later_rows: bool

    @classmethod
    def planned(
        cls, stage: AttachedStage, snapshot: StageSnapshot, built: Path, readers: Sequence[AttachedStage] = ()
    ) -> DeltaReturn:
        """Plan it.

        Raises InvalidRequest where others have committed since, the log no longer reaches the cut, or a query reads it.
        """
        table = Path(stage.writes)
        version = DeltaPosition.at_cut(built).version
        commits = delta_commits(table)
        query_id = snapshot.query_id or ""
        keep = f"write its rows again beside those there are, with --keep-rows-of {stage.uid}"
        later = [number for number in commits if number > version]
        mine = [number for number in later if any(app == query_id for app, _ in commits[number])]
        others = sorted(set(later) - set(mine))
        if mine and (version not in commits):
            why = (
                "did not exist at the cut"
                if version < 0
                else f"no longer has version {version}, that of the cut"
            )
            raise InvalidRequest(f"Delta table {table} {why}: {keep}")
        if mine and others:
            raise InvalidRequest(
                f"version {others[0]} of Delta table {table} was not written by stage {stage.uid}, and would be taken "
                f"back with its rows: {keep}"
            )
        if mine and readers:
            raise InvalidRequest(
                f"stage {readers[0].uid} reads Delta table {table} as a stream, and Spark's Delta source cannot pass a "
                f"version that takes rows back, as a restore makes one: {keep}"
            )
        batch = -1 if snapshot.batch_id is None else snapshot.batch_id
        return cls(table=table, version=version, query_id=query_id, batch=batch, has_later_rows=bool(mine))

    def carry_out(self) -> str:
        """Put the table back, and return what was done."""
        if not self.has_later_rows:
            return f"{self.table} has no later rows"
        from deltalake import CommitProperties, DeltaTable, Transaction

        # Spark skips a batch whose number the table remembers: the same commit takes the memory back.
        seen = CommitProperties(app_transactions=[Transaction(self.query_id, self.batch)])
        DeltaTable(str(self.table)).restore(self.version, commit_properties=seen)
        return f"{self.table} is back at version {self.version}"


def delta_commits(table: Path) -> dict[int, list[tuple[str, int]]]:
    """Return the versions in a Delta table's log, with the transactions that each names."""
    log = table / "_delta_log"
    found: dict[int, list[tuple[str, int]]] = {}
    for path in sorted(log.glob("*.json")):
        if not path.stem.isdecimal():
            continue
        actions = [parse_json(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        found[int(path.stem)] = [(a["txn"]["appId"], int(a["txn"]["version"])) for a in actions if "txn" in a]
    return found


Return = FilesReturn | DeltaReturn


def planned_return(
    stage: AttachedStage, snapshot: StageSnapshot, built: Path, readers: Sequence[AttachedStage] = ()
) -> Return | None:
    """Return the way back of a stage's sink, checked; None: it stays as it is.

    ``built``: the restored directory; ``readers``: stages that read the sink as a stream.

    Raises Corrupt, InvalidRequest: nothing was changed.
    """
    if not goes_back(stage):
        return None
    if stage.sink == "delta":
        return DeltaReturn.planned(stage, snapshot, built, readers)
    if snapshot.batch_id is not None and not _entries(built / SINK_FOLDER):
        return None
    return FilesReturn.planned(stage, built / SINK_FOLDER)
