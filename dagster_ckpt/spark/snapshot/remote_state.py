"""Captures of a query whose state is in an object store: planned on a copy of its list of files, fetched where new.

The plan reads names, sizes, schemas and the small archives that name a snapshot's tables. So a folder beside the query
has them: archives and schemas with their content, all else as holes of the right size. It is no part of the stage's
directory: what is captured of it is fetched first, whole, and a file that is not is missed by the upload.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dagster_ckpt.core.ids import BatchId, CheckpointId
from dagster_ckpt.core.model import FileKind
from dagster_ckpt.core.paths import StoredObject
from dagster_ckpt.errors import Corrupt, Declined
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.exchange.mounts import Exchange
from dagster_ckpt.spark.exchange.task_files import listed
from dagster_ckpt.spark.files import run_in_parallel
from dagster_ckpt.spark.snapshot.capture import CapturePlan, plan_capture
from dagster_ckpt.spark.snapshot.state_files import PlannedFile

LIST = "state_list"
FETCHED = "state_fetched"
"""Both in the stage's directory."""
_READ = re.compile(r".*(\.zip|/_metadata/.*|/_stateSchema/.*)")
_CHANGES = frozenset({FileKind.STATE_SNAPSHOT, FileKind.STATE_DELTA})
_TRANSFERS = 16
TRIES = 3
"""How often the files are listed, when Spark removes some meanwhile."""


@dataclass(frozen=True, slots=True)
class RemoteState:
    """The state of one stage's query, in an object store."""

    stage: StageDirectory
    exchange: Exchange

    def plan(
        self, checkpoint: CheckpointId, batch: BatchId, uploaded: Container[tuple[str, int]]
    ) -> CapturePlan:
        """Plan a capture and fetch what no earlier checkpoint has. Raises Declined; end with ``forget``."""
        for remaining in reversed(range(TRIES)):
            try:
                self._list()
                plan = plan_capture(self._copy.query, batch)
                return replace(plan, files=self._fetched(checkpoint, plan.files, uploaded))
            except (Corrupt, Declined) as error:
                if not remaining:
                    raise Declined(f"the state of batch {batch} could not be captured: {error}") from error
        raise AssertionError("unreachable: the last try raises")

    def forget(self, checkpoint: CheckpointId) -> None:
        """Remove what was fetched for a checkpoint."""
        shutil.rmtree(self._folder(checkpoint), ignore_errors=True)

    @property
    def _copy(self) -> StageDirectory:
        return StageDirectory(self.stage.root / LIST)

    def _folder(self, checkpoint: CheckpointId) -> Path:
        return self.stage.root / FETCHED / str(checkpoint)

    # --- the list -------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        self._link_what_is_here()
        there = listed(self.stage.query, self.exchange)
        state = self._copy.query / "state"
        _remove_other(state, there)
        missing = [path for path in there if not (state / path).exists()]
        for folder in {(state / path).parent for path in missing}:
            folder.mkdir(parents=True, exist_ok=True)
        remote = self.exchange.below(self.stage.query / "state")
        run_in_parallel(
            lambda path: remote.download(path, state / path, size=there[path].size),
            [path for path in missing if _READ.fullmatch(path)],
            parallelism=_TRANSFERS,
        )
        for path in missing:
            if not _READ.fullmatch(path):
                with (state / path).open("wb") as file:
                    file.truncate(there[path].size)

    def _link_what_is_here(self) -> None:
        query = self._copy.query
        query.mkdir(parents=True, exist_ok=True)
        places = {
            self.stage.query / name: query / name for name in ("metadata", "offsets", "commits", "sources")
        }
        for source, link in {**places, self.stage.plan: self._copy.plan}.items():
            if source.exists() and not link.is_symlink():
                link.symlink_to(os.path.relpath(source, link.parent))

    # --- files ----------------------------------------------------------------------------------------------------

    def _fetched(
        self, checkpoint: CheckpointId, files: tuple[PlannedFile, ...], uploaded: Container[tuple[str, int]]
    ) -> tuple[PlannedFile, ...]:
        self.forget(checkpoint)
        folder = self._folder(checkpoint)
        folder.mkdir(parents=True)
        remote = self.exchange.below(self.stage.root)
        wanted = {}
        for number, file in enumerate(files):
            if not file.path.startswith("query/state/"):
                continue
            if file.kind in _CHANGES and not file.content_named:
                raise Declined(
                    f"{file.path} does not say in its name which content it has, and in an object store only that can "
                    "be captured: set spark.sql.streaming.stateStore.checkpointFormatVersion to 2, with the RocksDB "
                    "provider, and begin the stage from nothing"
                )
            if not (file.content_named and (file.path, file.size) in uploaded):
                wanted[number] = folder / str(number)
        run_in_parallel(
            lambda number: remote.download(files[number].path, wanted[number], size=files[number].size),
            list(wanted),
            parallelism=_TRANSFERS,
        )
        return tuple(
            replace(file, source=str(wanted[number])) if number in wanted else file
            for number, file in enumerate(files)
        )


def _remove_other(state: Path, there: Mapping[str, StoredObject]) -> None:
    """Remove what is not in the list, and the folders that are empty then: an empty one passes for a partition."""
    for place in sorted(state.rglob("*"), reverse=True):
        if place.is_dir():
            if not any(place.iterdir()):
                place.rmdir()
            continue
        known = there.get(place.relative_to(state).as_posix())
        if known is None or known.size != place.stat().st_size:
            place.unlink()
