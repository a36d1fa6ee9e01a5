"""The only file that spells a path of the working directory.

::

    <work_dir>/<pipeline>/attempt-<epoch>/<uid>/{query, *.json, log, sink, released, pins, in_flight}          one stage
    <work_dir>/<pipeline>/attempt-<epoch>/_runs/<run>/{_checkpoint, <uid>}     what an epoch run has done so far
    <work_dir>/<pipeline>/attempt-<epoch>/attempt.json                         whose it is, and how it ended
    <work_dir>/<pipeline>/staged/<uid>/…                                       rows of sinks that stage them here
    <work_dir>/<pipeline>/local/<uid>/<checkpoint>/…                           local copies (local_backup)

A local or shared POSIX file system: every process of the attempt sees the same paths.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.spark.files import create_exclusively

PREPARED = "sink/prepared"
"""Relative to the stage's directory, as manifests name it."""
SINK_FOLDER = "sink/folder"
"""The same."""
IN_FLIGHT = "in_flight"
"""The same."""
PLAN = "plan.json"
"""The same."""
_ATTEMPT = re.compile(r"attempt-(\d+)(\.inprogress)?")


@dataclass(frozen=True, slots=True)
class StageDirectory:
    """Paths of one stage."""

    root: Path

    @property
    def query(self) -> Path:
        """Spark's checkpointLocation."""
        return self.root / "query"

    @property
    def plan(self) -> Path:
        """Facts of the query's plan that its state depends on."""
        return self.root / PLAN

    @property
    def topics(self) -> Path:
        """Ids of the topics that the stage reads."""
        return self.root / "topics.json"

    @property
    def log(self) -> Path:
        """The stage's channel log; a sink's holds barriers only."""
        return self.root / "log"

    @property
    def prepared(self) -> Path:
        """Folder of a two-phase sink's committables."""
        return self.root / PREPARED

    @property
    def sink_folder(self) -> Path:
        """Folder of the sink's own files in a restored checkpoint, until they are put back there."""
        return self.root / SINK_FOLDER

    @property
    def published(self) -> Path:
        """The note of what the stage's sink had published when it was last asked."""
        return self.root / "sink" / "published.json"

    @property
    def refused(self) -> Path:
        """The note of why the stage's sink did not show a checkpoint."""
        return self.root / "sink" / "refused.json"

    @property
    def in_flight(self) -> Path:
        """Restored entries of the inputs' logs, until they are put back there."""
        return self.root / IN_FLIGHT

    @property
    def released(self) -> Path:
        """The file that tells readers which barriers they may pass."""
        return self.root / "released"

    @property
    def all_pins(self) -> Path:
        """Hard links that keep captured files alive."""
        return self.root / "pins"

    def pins(self, checkpoint_id: CheckpointId) -> Path:
        """Pins of one checkpoint."""
        return self.all_pins / str(checkpoint_id)


def staged_rows(work_dir: Path, pipeline: PipelineId, uid: StageUid) -> Path:
    """Return where a sink's rows wait that cannot be staged where they end: outlives attempts."""
    return work_dir / pipeline / "staged" / uid


@dataclass(frozen=True, slots=True)
class AttemptDirectory:
    """Paths of one attempt of a pipeline."""

    root: Path

    @classmethod
    def of(cls, work_dir: Path, pipeline: PipelineId, epoch: CoordinatorEpoch) -> AttemptDirectory:
        """Return the directory a new attempt owns."""
        return cls(work_dir / pipeline / f"attempt-{epoch}")

    def local_copies(self, uid: StageUid) -> Path:
        """Return where copies of a stage's latest checkpoint are kept, for every attempt on this machine."""
        return self.root.parent / "local" / uid

    def stage(self, uid: StageUid) -> StageDirectory:
        """Return the directory of one stage."""
        return StageDirectory(self.root / uid)

    @property
    def mark(self) -> Path:
        """The file that says whose directory this is, and how its attempt ended."""
        return self.root / "attempt.json"

    @classmethod
    def all_of(cls, work_dir: Path, pipeline: PipelineId) -> dict[int, AttemptDirectory]:
        """Return the working directories there are of a pipeline, by the attempt that made each."""
        found = {}
        folder = work_dir / pipeline
        for path in folder.iterdir() if folder.is_dir() else ():
            match = _ATTEMPT.fullmatch(path.name)
            if match and not match[2] and path.is_dir():
                found[int(match[1])] = cls(path)
        return found

    def progress(self, run_id: str) -> RunProgress:
        """Return the progress marks of one epoch run."""
        return RunProgress(self.root / "_runs" / run_id)

    def remove_older_siblings(self) -> list[Path]:
        """Delete working directories of earlier attempts of this pipeline; return what was deleted.

        Called once this attempt is restored: nothing reads them any more, and a fenced attempt that
        still writes there harms nobody.
        """
        own = _ATTEMPT.fullmatch(self.root.name)
        if own is None or not self.root.parent.is_dir():
            return []
        removed = []
        for sibling in sorted(self.root.parent.iterdir()):
            match = _ATTEMPT.fullmatch(sibling.name)
            if match and int(match[1]) < int(own[1]) and sibling.is_dir() and not sibling.is_symlink():
                shutil.rmtree(sibling, ignore_errors=True)
                removed.append(sibling)
        return removed


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Marks on disk, so that every op of an epoch run, in whichever process, knows what the others have done."""

    root: Path

    def mark(self, name: str, text: str = "") -> str:
        """Record ``text`` under ``name`` unless something is recorded; return what is recorded."""
        self.root.mkdir(parents=True, exist_ok=True)
        is_first = create_exclusively(self.root / name, text.encode())
        return text if is_first else (self.root / name).read_text()

    def read(self, name: str) -> str | None:
        """Return the record under ``name``, or None."""
        try:
            return (self.root / name).read_text()
        except FileNotFoundError:
            return None
