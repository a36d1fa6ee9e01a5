"""Fork of an attached program: the same text, from a snapshot of the original, with directories and tables of its own.

The text names the original's places. In a fork each is another one: a query's ``checkpointLocation``, the folder that a
file sink or Delta writes, and that folder where another query of the program reads it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.ext.attach.program import AttachedProgram, AttachedStage, ProgramDirectory, meet
from dagster_ckpt.ext.attach.sinks import SET_ASIDE, DeltaPosition, delta_commits, goes_back, named_files
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.spark.directories import SINK_FOLDER
from dagster_ckpt.spark.files import link_or_copy

_WITHOUT_TARGET = frozenset({"console", "memory", "noop"})
_FILE = re.compile(r"(file:/*?)(/[^/].*)")
_LEGAL = "/%!$&'()*+,;=:@-._~"
_VERSION = re.compile(r"(\d{20})\.")


@dataclass(frozen=True, slots=True)
class ForkBeginning:
    """Snapshot that a fork begins with, put back before its first query starts."""

    deployment: Deployment
    directory: ProgramDirectory
    record: CoordinatorRecord | None

    def restored_first(self, restore_from: str, *, fork_of: str, keeps: tuple[str, ...]) -> str:
        """Return the snapshot to be put back; empty: none. A fork that has not begun has its program by then.

        Raises InvalidRequest, and changes nothing then.
        """
        program, name = self.directory.load(), self.directory.root.name
        if not fork_of:
            if keeps:
                raise InvalidRequest(
                    "keep_rows_of is of a fork: say of which program (--fork-of, fork_of=...)"
                )
            return (
                program.begins_with if program.begins_with and not self._has_begun(program) else restore_from
            )
        is_of_another = bool(program.stages or self.record is not None) and program.fork_of != fork_of
        if is_of_another or fork_of == name:
            what = f"is a fork of {program.fork_of}" if program.fork_of else "has a history of its own"
            raise InvalidRequest(f"{name} {what}: give the fork of {fork_of} another name (-p)")
        if self._has_begun(program):
            return ""
        found = find_snapshot(self.deployment, restore_from or "latest", pipeline_id(fork_of))
        if found.pipeline != fork_of:
            raise InvalidRequest(f"{found.location.uri} is a snapshot of {found.pipeline}, not of {fork_of}")
        self._branch_off(program, found, keeps)
        return found.location.uri

    def _has_begun(self, program: AttachedProgram) -> bool:
        """Tell whether it was put back, or has run, of which a store that was lost knows nothing."""
        has_line = self.record is not None and self.record.line is not None
        return has_line or any(self.directory.has_begun(stage.uid) for stage in program.stages)

    def _branch_off(self, before: AttachedProgram, found: FoundSnapshot, keeps: tuple[str, ...]) -> None:
        """Keep the fork's program. What an earlier try has copied goes: it may be of another snapshot."""
        root = self.directory.root
        program = forked(
            ProgramDirectory(root.with_name(found.pipeline)).load(),
            places=self.directory.queries,
            tables=root.parents[1] / "tables" / root.name,
            keeps=keeps,
            begins_with=found.location.uri,
        )
        copied = before.copied.values()
        for table in program.copied.values():
            if table not in copied and Path(table).exists():
                raise InvalidRequest(
                    f"{table} is there, where the fork's table would be: give it another name (-p)"
                )
        for table in copied:
            shutil.rmtree(table, ignore_errors=True)
        self.directory.save(program.model_copy(update={"fork_of": found.pipeline}))


def forked(
    original: AttachedProgram, *, places: Path, tables: Path, keeps: tuple[str, ...], begins_with: str
) -> AttachedProgram:
    """Return the fork's program; ``places``, ``tables``: folders of its queries' directories and of its tables.

    ``begins_with``: URI of the original's snapshot. Raises InvalidRequest where a query would write with the original,
    for those not in ``keeps``, or reads its table as a part of something else.
    """
    if unknown := sorted({*keeps} - {stage.uid for stage in original.stages}):
        raise InvalidRequest(f"keep_rows_of names no stage of the program: {', '.join(unknown)}")
    fork = AttachedProgram(tables=str(tables), keeps=keeps, begins_with=begins_with)
    for stage in original.stages:
        location = stage.checkpoint_location if not original.tables else stage.origin
        made = in_fork(stage, fork, places, location)
        if made.came_from:
            text = stage.came_from or stage.writes
            made = made.model_copy(update={"came_from": text, "copied_from": stage.writes})
        fork = fork.with_stage(made)
    for stage in fork.stages:
        reads = tuple(fork.copied.get(one, one) for one in stage.reads)
        fork = fork.with_stage(stage.model_copy(update={"reads": reads}))
    for stage in fork.stages:
        refuse_reader(stage, fork)
    return fork


def in_fork(stage: AttachedStage, fork: AttachedProgram, places: Path, location: str) -> AttachedStage:
    """Return a stage of the program's text with the fork's places; ``location``: the ``checkpointLocation`` there.

    Raises InvalidRequest where it would write with the original and is not to.
    """
    if not goes_back(stage) and stage.sink not in _WITHOUT_TARGET and stage.uid not in fork.keeps:
        raise InvalidRequest(
            f"stage {stage.uid} of the fork would write where the original does ({stage.sink} {stage.writes}), and "
            "a fork sends folders alone elsewhere: give this copy of the program another target, and say that it has "
            f"one: --keep-rows-of {stage.uid}"
        )
    has_folder = goes_back(stage)
    return stage.model_copy(
        update={
            "checkpoint_location": str(places / stage.uid),
            "origin": location,
            "writes": str(Path(fork.tables) / stage.uid) if has_folder else stage.writes,
            "came_from": stage.writes if has_folder else "",
        }
    )


def refuse_reader(stage: AttachedStage, fork: AttachedProgram) -> None:
    """Raise InvalidRequest where a stage reads the original's table, which the fork's query of it does not write."""
    for place in {**fork.moved, **fork.copied}:
        if meet(place, stage.reads):
            raise InvalidRequest(
                f"stage {stage.uid} of the fork would read the original's {place}: a fork sends those readers "
                "elsewhere that name this folder itself, in load(), parquet(), json(), csv(), orc() or text()"
            )


def bring(stage: AttachedStage, built: Path, copied: Mapping[str, str]) -> None:
    """Have a fork's table hold the files of the cut, and the logs of a built directory name its places.

    ``copied``: its tables by the places that they were copied from.

    Raises Corrupt, InvalidRequest where the original no longer has them: nothing of it was changed.
    """
    for log in (*(built / "query" / "sources").glob("*/*"), *(built / SINK_FOLDER).glob("*")):
        _name_places(log, copied)
    if not stage.copied_from:
        return
    original, table = Path(stage.copied_from), Path(stage.writes)
    if stage.sink == "delta":
        _bring_versions(original, table, DeltaPosition.at_cut(built).version)
        return
    for file in named_files(built / SINK_FOLDER, table):
        name = file.relative_to(table)
        there = [one for one in (original / name, original / SET_ASIDE / name) if one.exists()]
        if file.exists() or (table / SET_ASIDE / name).exists():
            continue
        if not there:
            raise Corrupt(
                f"{original / name} belonged to the table at the cut and is gone: fork a later snapshot"
            )
        link_or_copy(there[0], file)


def _name_places(log: Path, copied: Mapping[str, str]) -> None:
    """Name files of copied folders where they are now, in a log of Spark's with one file a line."""
    lines = log.read_text(encoding="utf-8").split("\n")
    named = [_named(line, copied) for line in lines]
    if named != lines:
        log.unlink()  # it may be a hard link to the snapshot's
        log.write_text("\n".join(named), encoding="utf-8")


def _named(line: str, copied: Mapping[str, str]) -> str:
    entry: dict[str, Any] = parse_json(line) if line.startswith("{") else {}
    found = _FILE.fullmatch(str(entry.get("path", "")))
    if found is None:
        return line
    for before, now in copied.items():
        parts, depth = found[2].split("/"), before.count("/") + 1
        if unquote("/".join(parts[:depth])) == before and len(parts) > depth:
            path = "/".join([_as_java_spells(now), *parts[depth:]])
            entry["path"] = f"{found[1]}{path}"
            return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    return line


def _as_java_spells(path: str) -> str:
    """Return a path in a URI as Hadoop writes it, by which Spark knows a file again: letters of all scripts stay."""
    return "".join(one if ord(one) > 127 else quote(one, safe=_LEGAL.replace("%", "")) for one in path)


def _bring_versions(original: Path, table: Path, version: int) -> None:
    """Make a Delta table of another's files and its log up to a version."""
    if version < 0 or table.exists():
        return
    if version not in delta_commits(original):
        raise InvalidRequest(
            f"Delta table {original} no longer has version {version}, that of the cut: fork a later snapshot"
        )

    def later(folder: str, names: list[str]) -> set[str]:
        numbers = {name: _VERSION.match(name) for name in names if Path(folder).name == "_delta_log"}
        return {n for n, found in numbers.items() if found is None or int(found[1]) > version} - {"_sidecars"}

    def linked(source: str, target: str) -> None:
        link_or_copy(Path(source), Path(target))

    building = table.with_name(f".{table.name}.copying")
    shutil.rmtree(building, ignore_errors=True)
    shutil.copytree(original, building, ignore=later, copy_function=linked)
    building.rename(table)
