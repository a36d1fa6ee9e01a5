"""Is every file of a snapshot there, with the bytes that were written? Nothing is restored, nothing is changed."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dagster_ckpt.core.model import FileEntry, StageSnapshot
from dagster_ckpt.errors import Corrupt, NotFound
from dagster_ckpt.operations.deployment import Meter, ProgressCallback, silent
from dagster_ckpt.spark.files import run_in_parallel
from dagster_ckpt.spark.snapshot.stored import MissingFile, StoredSnapshot

NO_CHECKSUM = (
    "its _metadata was written before it carried a checksum: an edit of it that still reads well is not found; "
    "'dagster-ckpt export' makes a copy that has one"
)


class ProblemKind(StrEnum):
    """Problem with a file."""

    MISSING = "missing"
    DAMAGED = "damaged"
    """It is there, with other bytes than were written."""
    UNREADABLE = "unreadable"
    """A stage's file list: nothing can be said about the stage's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """One file that a restore would stumble over."""

    stage: str
    path: str
    """Relative to the stage's working directory; of a file list, its key."""
    problem: ProblemKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Result of a verification."""

    snapshot: str
    uri: str
    stages: int
    files: int
    bytes: int
    problems: tuple[FileProblem, ...]
    remarks: tuple[str, ...] = ()
    """What could not be compared, though nothing is known to be wrong."""

    @property
    def is_intact(self) -> bool:
        """True where every file was read and is as it was written."""
        return not self.problems


def not_opened(name: str, uri: str, error: NotFound | Corrupt) -> Verified:
    """Return the verdict on a listed snapshot that cannot be opened: its ``_metadata`` is gone, or damaged."""
    kind = ProblemKind.MISSING if isinstance(error, NotFound) else ProblemKind.UNREADABLE
    problem = FileProblem(stage="", path="_metadata", problem=kind, message=str(error))
    return Verified(snapshot=name, uri=uri, stages=0, files=0, bytes=0, problems=(problem,))


def verify_snapshot(
    source: StoredSnapshot, *, progress: ProgressCallback = silent, parallelism: int = 8
) -> Verified:
    """Read every file of a snapshot and compare size and checksum; all problems are reported, not only the first.

    Raises Unavailable when the storage cannot be reached: then nothing is known.
    """
    problems: list[FileProblem] = []
    work: list[tuple[StageSnapshot, FileEntry]] = []
    for stage in source.metadata.stages:
        try:
            work += [(stage, entry) for entry in source.entries(stage)]
        except Corrupt as error:
            path = stage.manifest.key if stage.manifest else stage.uid
            problems.append(_problem(stage, path, ProblemKind.UNREADABLE, str(error)))
    meter = Meter(sum(entry.size for _, entry in work), progress)
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-verify-") as folder:

        def check(item: tuple[int, tuple[StageSnapshot, FileEntry]]) -> None:
            stage, entry = item[1]
            found = _check(source, stage, entry, Path(folder) / str(item[0]))
            if found is not None:
                problems.append(found)
            meter.add(entry.size, f"{stage.uid}/{entry.path}")

        run_in_parallel(check, list(enumerate(work)), parallelism=parallelism)
    return Verified(
        snapshot=source.describe(),
        uri=source.uri,
        stages=len(source.metadata.stages),
        files=len(work),
        bytes=sum(entry.size for _, entry in work),
        problems=tuple(sorted(problems, key=lambda p: (p.stage, p.path))),
        remarks=() if source.has_own_checksum else (NO_CHECKSUM,),
    )


def _check(
    source: StoredSnapshot, stage: StageSnapshot, entry: FileEntry, scratch: Path
) -> FileProblem | None:
    try:
        source.fetch(stage, entry, scratch)
    except MissingFile as error:
        return _problem(stage, entry.path, ProblemKind.MISSING, str(error))
    except Corrupt as error:
        return _problem(stage, entry.path, ProblemKind.DAMAGED, str(error))
    scratch.unlink()
    return None


def _problem(stage: StageSnapshot, path: str, kind: ProblemKind, message: str) -> FileProblem:
    return FileProblem(stage=stage.uid, path=path, problem=kind, message=message)
