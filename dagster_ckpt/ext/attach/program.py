"""Stages of an attached program as kept between its runs: where each has its directory, and who reads whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from dagster_ckpt.core.graph import PipelineGraph, StageSpec
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.model import FileName, Record
from dagster_ckpt.errors import Corrupt, Declined
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import replace_whole


class AttachedStage(Record):
    """Stage of an attached program: one streaming query."""

    uid: FileName
    checkpoint_location: str
    """Spark's directory of the query, an absolute path."""
    origin: str = ""
    """Of a fork's: the one that the program's text gives the query; empty: it gives none, or this is no fork."""
    came_from: str = ""
    """Of a fork's: the table in the program's text; ``writes`` is the fork's own."""
    copied_from: str = ""
    """Of a fork's: the table of the program that the fork was made of."""
    sink: str
    """The writer's format, or ``foreachBatch``, ``foreach``."""
    writes: str = ""
    """What a reader would name: a path, ``kafka:topic``; empty: it cannot be told."""
    reads: tuple[str, ...] = ()
    """The same of each stream it reads."""
    passing: tuple[str, ...] = ()
    """Of these, what cannot be read again, in people's words."""
    likeness: str = ""
    """Digests by which a query without a place is known again: of what it is, and of the values it is bound to."""
    formerly: tuple[str, ...] = ()
    """The same of its last starts with other values."""

    @property
    def has_directory(self) -> bool:
        """Spark has begun its query there."""
        return (Path(self.checkpoint_location) / "metadata").exists()


class AttachedProgram(Record):
    """``attached.json``: every stage the program has ever had, in the order they came."""

    format_version: Literal[1] = 1
    stages: tuple[AttachedStage, ...] = ()
    tables: str = ""
    """Folder of a fork's tables; empty: this is no fork."""
    keeps: tuple[str, ...] = ()
    """Stages of a fork that may write where their own code says."""
    fork_of: str = ""
    """Name of the program that a fork was made of."""
    begins_with: str = ""
    """URI of the snapshot that a fork has begun with."""

    @property
    def moved(self) -> dict[str, str]:
        """Tables of a fork by the places they have in the program's text."""
        return {stage.came_from: stage.writes for stage in self.stages if stage.came_from}

    @property
    def copied(self) -> dict[str, str]:
        """The same by the places of the program that the fork was made of, which its snapshots name."""
        return {stage.copied_from: stage.writes for stage in self.stages if stage.copied_from}

    def stage(self, uid: str) -> AttachedStage | None:
        """Return a stage, or None."""
        return next((stage for stage in self.stages if stage.uid == uid), None)

    def at(self, location: str) -> AttachedStage | None:
        """Return the stage whose directory is at a path, or None."""
        return next((one for one in self.stages if location in (one.checkpoint_location, one.origin)), None)

    def with_stage(self, stage: AttachedStage) -> AttachedProgram:
        """Return the program with a stage added, or in the place of the one of its name."""
        if self.stage(stage.uid) is None:
            return self.model_copy(update={"stages": (*self.stages, stage)})
        changed = tuple(stage if one.uid == stage.uid else one for one in self.stages)
        return self.model_copy(update={"stages": changed})

    def without(self, uid: str) -> AttachedProgram:
        """Return the program without one stage."""
        return self.model_copy(update={"stages": tuple(one for one in self.stages if one.uid != uid)})

    def graph(self, pipeline: PipelineId) -> PipelineGraph:
        """Return the stages as the coordinator sees them: each by itself, since Spark holds the queries apart."""
        specs = tuple(StageSpec(uid=StageUid(stage.uid)) for stage in self.stages)
        return PipelineGraph(pipeline=pipeline, stages=specs)

    def readers_of(self, stage: AttachedStage) -> list[AttachedStage]:
        """Return the stages that read what a stage writes."""
        return [one for one in self.stages if one is not stage and meet(stage.writes, one.reads)]

    def may_be_read(self, stage: AttachedStage) -> bool:
        """Tell whether a query may see rows of this one: by its plan, or since nobody knows where it writes."""
        is_unknown = not stage.writes and stage.sink in ("foreachBatch", "foreach")
        return (is_unknown and len(self.stages) > 1) or bool(self.readers_of(stage))

    def readers_first(self) -> list[AttachedStage]:
        """Return the stages so that each comes after all that read it; unknown writers as late as may be.

        Raises Declined where queries read each other's rows in a ring: no cut of one could hold for the others.
        """
        readers = {stage.uid: {one.uid for one in self.readers_of(stage)} for stage in self.stages}
        unknown = {stage.uid for stage in self.stages if not stage.writes and self.may_be_read(stage)}
        placed: dict[str, AttachedStage] = {}
        while len(placed) < len(self.stages):
            waiting = [stage for stage in self.stages if stage.uid not in placed]
            ready = [stage for stage in waiting if readers[stage.uid] <= placed.keys()]
            if not ready:
                ring = ", ".join(sorted(stage.uid for stage in waiting))
                raise Declined(f"the queries {ring} read each other's rows: they have no common cut")
            stage = min(ready, key=lambda s: s.uid in unknown)
            placed[stage.uid] = stage
        return list(placed.values())


def meet(written: str, read: Iterable[str]) -> bool:
    """Tell whether a stream may read what is written: the place, a folder of it, or one it lies in."""
    return bool(written) and any(
        one == written or one.startswith(f"{written}/") or written.startswith(f"{one}/") for one in read
    )


@dataclass(frozen=True, slots=True)
class ProgramDirectory:
    """Folder that keeps what is known of an attached program; its queries' directories are elsewhere."""

    root: Path

    @property
    def record(self) -> Path:
        """The stages."""
        return self.root / "attached.json"

    @property
    def owner(self) -> Path:
        """Note of the process that runs the program for a run of Dagster's."""
        return self.root / "owner"

    @property
    def building(self) -> Path:
        """Directories that a restore builds, before they are exchanged."""
        return self.root / "restoring"

    @property
    def replaced(self) -> Path:
        """Directories that the latest restore has exchanged."""
        return self.root / "replaced"

    @property
    def queries(self) -> Path:
        """Directories of queries that the program gives none."""
        return self.root / "queries"

    def stage(self, uid: str) -> StageDirectory:
        """Return the stage's directory, as captures take it."""
        return StageDirectory(self.root / uid)

    def has_begun(self, uid: str) -> bool:
        """Tell whether the stage's query was ever started."""
        return (self.root / uid / "begun").exists()

    def note_begun(self, uid: str) -> None:
        """Note that the stage's query was started."""
        (self.root / uid / "begun").touch()

    def load(self) -> AttachedProgram:
        """Return the program; one without stages where none was ever attached. Raises Corrupt."""
        try:
            return AttachedProgram.model_validate_json(self.record.read_bytes())
        except FileNotFoundError:
            return AttachedProgram()
        except ValidationError as error:
            raise Corrupt(
                f"{self.record} is damaged: put it back from a backup, or attach the program under another name"
            ) from error

    def save(self, program: AttachedProgram) -> None:
        """Keep the program, and link each stage to its query's directory."""
        self.root.mkdir(parents=True, exist_ok=True)
        replace_whole(self.record, program.model_dump_json(indent=1).encode())
        for stage in program.stages:
            self.link(stage)

    def link(self, stage: AttachedStage) -> None:
        """Let the stage's directory lead to where its query keeps its own."""
        query = self.stage(stage.uid).query
        query.parent.mkdir(parents=True, exist_ok=True)
        if query.is_symlink() and str(query.readlink()) == stage.checkpoint_location:
            return
        query.unlink(missing_ok=True)
        query.symlink_to(stage.checkpoint_location)
