"""Directories and sinks of an attached program put back from a snapshot, while the program does not run.

Everything is built and checked aside first. Then the coordinator is told that things change, directories are exchanged
by renaming, and sinks go back. A restore that was killed in between is done again when the program starts: the record
says that it was begun, and not that it has ended.
"""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.core.restore.choice import Restore
from dagster_ckpt.core.restore.facts import DirectoryState, RestorePurpose
from dagster_ckpt.core.restore.matching import StageMatch
from dagster_ckpt.core.restore_point import At
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.ext.attach.cuts import ProgramCuts
from dagster_ckpt.ext.attach.fork import bring
from dagster_ckpt.ext.attach.owner import ProgramOwner
from dagster_ckpt.ext.attach.program import AttachedProgram, AttachedStage, ProgramDirectory
from dagster_ckpt.ext.attach.sinks import (
    Return,
    goes_back,
    line_of,
    may_remember,
    planned_return,
    skips_replayed,
)
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.runtime.record_store import NOBODY, Operator, RecordStore
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot

log = logging.getLogger("dagster_ckpt.attach")

SPARKS_OWN = frozenset({"metadata", "offsets", "commits", "sources", "state"})
"""Names that Spark has in a query's directory."""


def was_interrupted(record: CoordinatorRecord | None) -> bool:
    """Tell whether a restore has begun to change things, and has not ended."""
    if record is None or record.line is None or record.before_restore is not None:
        return False
    return record.status_epoch < record.line.since


@dataclass(frozen=True, slots=True)
class _Plan:
    """A restore that is built and checked."""

    stages: Mapping[StageUid, StageMatch]
    returns: tuple[Return, ...]
    snapshot: str


@dataclass(frozen=True, kw_only=True)
class ProgramRestore:
    """Restore of one attached program."""

    deployment: Deployment
    pipeline: PipelineId
    directory: ProgramDirectory
    options: RestoreOptions
    config: CheckpointConfig
    root: str = ""
    """Name under which a restore is not made twice; empty: it is."""
    operator: Operator = NOBODY
    owner: ProgramOwner | None = None
    """Process that restores; None: this one, for itself."""
    tell: Callable[[str], None] = log.info

    def run(self) -> None:
        """Put everything back.

        Raises NotFound, InvalidRequest, Corrupt, Unavailable: nothing was changed, unless it says so; Fenced where the
        program is alive.
        """
        program = self.directory.load()
        if not program.stages:
            raise NotFound(
                f"no program was ever attached as {self.pipeline!r} in {self.directory.root.parent}"
            )
        coordinator = self._claimed(program)
        try:
            plan = self._planned(program, coordinator)
        except BaseException:
            coordinator.close(RunStatus.FAILED, clean=False)  # the next claim finds the record as it was
            raise
        try:
            self._carry_out(program, coordinator, plan)
        except BaseException:
            coordinator.pass_on(
                time.time()
            )  # begun and not ended: the next start of the program does it again
            raise
        coordinator.close(RunStatus.SUSPENDED, clean=True)

    def _claimed(self, program: AttachedProgram) -> CheckpointCoordinator:
        owner = self.owner or ProgramOwner.here(self.directory.owner)
        owner.wait(lambda: RecordStore(self.deployment.store).record(self.pipeline))
        setup = owner.setup(
            self.deployment,
            config=self.config,
            # A name of its own: a restore that was refused, or killed while it was built, is none that was made.
            root=f"{self.root}-restore" if self.root else owner.name,
            restore=self.options,
            purpose=self._purpose(program),
            operator=self.operator,
            graph=program.graph(self.pipeline),
            gateway=ProgramCuts(program=program, directory=self.directory),
            directory_state=lambda *_: (
                DirectoryState.MISSING
            ),  # `latest` is the checkpoint, not what is there
        )
        return CheckpointCoordinator.open(setup)

    def _purpose(self, program: AttachedProgram) -> RestorePurpose:
        """Return the purpose: what a fork begins with is a snapshot of another pipeline."""
        match self.options.restore_from:
            case At(uri) if program.begins_with and same_place(uri, program.begins_with):
                return RestorePurpose.FORK
        return RestorePurpose.IN_PLACE

    def _planned(self, program: AttachedProgram, coordinator: CheckpointCoordinator) -> _Plan:
        """Build every directory aside, and look whether the sinks can go back: nothing is changed."""
        decision = coordinator.restored
        if not isinstance(decision, Restore):
            raise NotFound(f"pipeline {self.pipeline!r} has no checkpoint to restore: {decision.reason}")
        source = StoredSnapshot(
            storage=self.deployment.open_storage(decision.location.base_uri),
            folder=decision.location.folder,
            metadata=decision.metadata,
        )
        matches = {match.uid: match for match in decision.stages.matches}
        _refuse_new_readers(program, set(matches), decision)
        shutil.rmtree(self.directory.building, ignore_errors=True)
        self.directory.building.mkdir(parents=True)
        returns: list[Return] = []
        for uid, match in matches.items():
            stage = program.stage(uid)
            assert stage is not None, "the graph is made of these"
            keeps = not self.options.roll_back_tables or uid in self.options.keep_rows_of
            built = self._built(source, match, stage, keeps=keeps)
            if program.tables and not keeps:
                bring(stage, built, program.copied)
            readers = program.readers_of(stage)
            back = None if keeps else planned_return(stage, match.snapshot, built, readers)
            returns += [] if back is None else [back]
        return _Plan(matches, tuple(returns), decision.describe())

    def _carry_out(self, program: AttachedProgram, coordinator: CheckpointCoordinator, plan: _Plan) -> None:
        coordinator.tables_change()
        for uid in plan.stages:
            self._exchange(program, uid)
        for back in plan.returns:
            self.tell(back.carry_out())
        self._tell_others(program, plan.stages)
        coordinator.started(str(self.directory.root))
        shutil.rmtree(self.directory.building, ignore_errors=True)
        shutil.rmtree(self.directory.replaced, ignore_errors=True)
        self.tell(f"{self.pipeline} is as it was at {plan.snapshot}")

    def _built(self, source: StoredSnapshot, match: StageMatch, stage: AttachedStage, *, keeps: bool) -> Path:
        """Build the stage's directory aside, under the path that Spark's own files are to name."""
        stays = keeps or not goes_back(stage)
        if stays and skips_replayed(stage):
            way = (
                "Copy the table elsewhere first, and let it go back"
                if goes_back(stage)
                else f"{stage.writes or 'Its table'} is on no local disk and cannot go back: start the program once "
                "with another folder for it, then restore"
            )
            raise InvalidRequest(
                f"the rows of stage {stage.uid} cannot be kept: the log of its files would make Spark skip batches "
                f"that are read again. {way}"
            )
        target = self.directory.building / stage.uid
        new_id = str(uuid.uuid4()) if stays and may_remember(stage) else None
        build_stage_directory(
            source,
            match.snapshot,
            target_dir=target,
            new_query_id=new_id,
            named_as=self.directory.stage(stage.uid).root,
        )
        return target

    def _exchange(self, program: AttachedProgram, uid: str) -> None:
        """Put the query's restored directory in the place of the one there is, which is kept until all is done."""
        stage = program.stage(uid)
        assert stage is not None, "the graph is made of these"
        place, kept = Path(stage.checkpoint_location).resolve(), self.directory.replaced / uid
        built = StageDirectory(self.directory.building / uid).query
        beside = place.with_name(f".{place.name}.restoring")
        shutil.rmtree(beside, ignore_errors=True)
        _move_others(kept, place)  # of an exchange that was killed
        place.parent.mkdir(parents=True, exist_ok=True)
        if built.is_dir():
            shutil.move(built, beside)  # a copy where the query's directory is on another disk
        if place.exists():
            shutil.rmtree(kept, ignore_errors=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(place, kept)
        if beside.is_dir():
            beside.replace(place)
        _move_others(kept, place)
        self.directory.link(stage)

    def _tell_others(self, program: AttachedProgram, restored: Mapping[StageUid, StageMatch]) -> None:
        for stage in program.stages:
            if StageUid(stage.uid) not in restored:
                self.tell(f"stage {stage.uid} came later and reads no other: it stays as it is")
            elif not goes_back(stage) or stage.passing:
                self.tell(f"stage {stage.uid}: {line_of(stage)}")


def _move_others(kept: Path, place: Path) -> None:
    """Leave in a query's directory what is not Spark's: a table, or the directory of another query."""
    for one in kept.glob("*"):
        if one.name not in SPARKS_OWN and not one.name.endswith(".crc"):
            place.mkdir(parents=True, exist_ok=True)
            shutil.move(one, place / one.name)


def _refuse_new_readers(program: AttachedProgram, restored: set[str], decision: Restore) -> None:
    """Raise InvalidRequest where a later stage has read rows that the restore takes back."""
    for stage in program.stages:
        readers = [one.uid for one in program.readers_of(stage) if one.uid not in restored]
        if stage.uid in restored and readers:
            raise InvalidRequest(
                f"stage {readers[0]} has read from {stage.uid}, and the snapshot {decision.metadata.checkpoint_id} is "
                "older than it: restore from a later snapshot"
            )
