"""The only file that spells a path of the working directory.

::

    <work_dir>/<pipeline>/attempt-<epoch>/<uid>/{query, log, sink, released}   one stage
    <work_dir>/<pipeline>/attempt-<epoch>/_runs/<run>/{checkpoint, <uid>}      what an epoch run has done so far
    <work_dir>/<pipeline>/local/<uid>/<checkpoint>/…                           local copies (local_backup)

A local or shared POSIX file system: every process of the attempt sees the same paths.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from dagster_ckpt.core.ids import CoordinatorEpoch, PipelineId, StageUid

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
    def log(self) -> Path:
        """The stage's channel log; a sink's holds barriers only."""
        return self.root / "log"

    @property
    def prepared(self) -> Path:
        """What a two-phase sink has prepared."""
        return self.root / "sink" / "prepared"


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

    def progress(self, run_id: str) -> RunProgress:
        """Return the progress marks of one epoch run."""
        return RunProgress(self.root / "_runs" / run_id)

    def remove_older_siblings(self) -> list[Path]:
        """Delete working directories of earlier attempts of this pipeline; return what was deleted.

        Called once this attempt is restored: nothing reads them any more, and a zombie of an earlier attempt that
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
        temporary = self.root / f".{name}.{os.getpid()}.tmp"
        temporary.write_text(text)
        try:
            os.link(temporary, self.root / name)
        except FileExistsError:
            return (self.root / name).read_text()
        finally:
            temporary.unlink()
        return text

    def read(self, name: str) -> str | None:
        """Return what is recorded under ``name``, or None."""
        try:
            return (self.root / name).read_text()
        except FileNotFoundError:
            return None
