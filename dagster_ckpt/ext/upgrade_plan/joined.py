"""A savepoint of a pipeline in which the stages of a branch are the branch's, put together without a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core import paths
from dagster_ckpt.core.ids import CheckpointId, StageUid
from dagster_ckpt.core.metadata_text import encode_metadata
from dagster_ckpt.core.model import (
    CheckpointKind,
    CheckpointMetadata,
    FileEntry,
    FileKind,
    StageSnapshot,
    TableSnapshot,
)
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.upgrade_plan.branch import Branch
from dagster_ckpt.operations.readers.load_table import cut_of
from dagster_ckpt.operations.snapshots.export import SnapshotCopy
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.spark.directories import PREPARED, SINK_FOLDER
from dagster_ckpt.spark.sink.committables import PreparedBatch, committable_paths, read_committables
from dagster_ckpt.spark.sink.phases import preparing
from dagster_ckpt.spark.sink.port import Sink, SinkCut
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

REBUILT_LABEL = "dagster_ckpt/rebuilt"
"""Label of a savepoint in which a stage was rebuilt: that stage."""


@dataclass(kw_only=True)
class JoinedSavepoint:
    """Savepoint of a pipeline in which the stages of a branch are the branch's."""

    pipeline: CheckpointedPipeline
    """As its code is now."""
    branch: Branch
    sink: Sink
    """The pipeline's, whose rows are exchanged: opened as one that each batch replaces whole."""
    own: Sink
    """The branch's, which has them."""
    spark: SparkSession
    opened: Callable[[StageUid], Sink]
    """Returns a sink of the pipeline."""
    step: Callable[[str], None]
    old: StoredSnapshot
    new: StoredSnapshot
    number: CheckpointId
    folder: str
    target: CheckpointStorage
    _written: list[str] = field(default_factory=list)

    @property
    def uri(self) -> str:
        """Its folder."""
        return f"{self.target.base_uri}/{self.folder}"

    def remove(self) -> None:
        """Remove its files."""
        self.target.delete(self._written)

    def write(self, scratch: Path) -> None:
        """Write the files, and the metadata last."""
        replaced = self._replaced()
        kept = [stage for stage in self.old.metadata.stages if stage.uid not in replaced]
        rebuilt, staged = self._rebuilt(scratch)
        self.step("copying the others' state")
        stages: list[StageSnapshot] = []
        for source, given in ((self.old, map(self._as_shown, kept)), (self.new, rebuilt)):
            copy = SnapshotCopy(source=source, target=self.target, folder=self.folder, parallelism=8)
            copy.written = self._written
            for stage, entries in given:
                mine = staged if stage.uid == self.branch.uid else {}
                new = [self._added(copy, path, file) for path, file in mine.items()]
                stages.append(copy.stage(stage, entries, new))
        metadata = self._metadata(tuple(stages), replaced)
        self.step("completing the savepoint")
        copy.create(paths.metadata(self.folder), encode_metadata(metadata))

    def _replaced(self) -> frozenset[str]:
        """Return the queries of the old snapshot in whose place the branch's are.

        Raises InvalidRequest where one of them was also a stage's that stays.
        """
        pipeline, members = self.pipeline.authored, self.branch.members
        names = {str(name) for uid in members for name in pipeline.stages[uid].names}
        stay = {
            str(name): uid for uid, one in pipeline.stages.items() if uid not in members for name in one.names
        }
        metadata = self.old.metadata
        ran = {stage.uid: (stage.uid,) for stage in metadata.stages} | {
            chain.uid: chain.stages for chain in metadata.chains
        }
        replaced = {uid for uid, stages in ran.items() if names.intersection(stages)}
        for uid in sorted(replaced):
            for one in (one for one in ran[uid] if one in stay and one not in names):
                raise InvalidRequest(
                    f"{uid!r} ran as one query with {one!r}, whose state is to stay: run the pipeline once with "
                    f"chain=False for {one!r}, and rebuild then"
                )
        return frozenset(replaced)

    def _as_shown(self, stage: StageSnapshot) -> tuple[StageSnapshot, list[FileEntry]]:
        """Return a stage that stays: what its table shows of the newest checkpoint waits for nobody any more."""
        entries = self.old.entries(stage)
        if stage.table is None or not stage.table.prepared:
            return stage, entries
        with_table = {uid: one for uid, one in self.pipeline.authored.stages.items() if one.table is not None}
        uid = next((uid for uid, one in with_table.items() if stage.uid in one.names), None)
        head = None if uid is None else _shown(self.opened(uid))
        if head is None or head != self.old.metadata.number_at_sinks:
            return stage, entries
        shown = stage.table.model_copy(update={"head": head, "prepared": ()})
        return stage.model_copy(update={"table": shown}), _without(entries, f"{PREPARED}/")

    def _rebuilt(
        self, scratch: Path
    ) -> tuple[Sequence[tuple[StageSnapshot, list[FileEntry]]], dict[str, Path]]:
        """Return the branch's stages, and the files with the sink's rows by their path in the stage's directory."""
        uid, sink = self.branch.uid, self.sink
        last = self.new.metadata.stage(uid)
        assert last is not None
        batches = self._staged(last, scratch)
        numbers = tuple(batch.batch_id for batch in batches)
        table = TableSnapshot(
            uri=sink.place, head=_shown(sink) if batches else None, prepared=numbers, sink=sink.kind
        )
        self._refuse_impossible(sink, table, batches)
        stages = []
        for stage in self.new.metadata.stages:
            update = {"table": table} if stage.uid == uid else {}
            stages.append((stage.model_copy(update=update), _without(self.new.entries(stage), "sink/")))
        staged = {str(path.relative_to(scratch)): path for path in committable_paths(scratch, numbers)}
        return stages, staged | {
            f"{SINK_FOLDER}/{name}": file for name, file in sink.only_here(batches).items()
        }

    def _added(self, copy: SnapshotCopy, path: str, file: Path) -> FileEntry:
        """Store a file that neither snapshot has."""
        key = paths.exclusive_file(self.folder, self.branch.uid, path)
        digest = copy.create(key, file)
        return FileEntry(
            path=path,
            size=digest.size,
            checksum=digest.checksum,
            kind=FileKind.COMMITTABLE if path.startswith(PREPARED) else FileKind.STAGED_ROWS,
            first_checkpoint=self.number,
            key=key.removeprefix(f"{self.folder}/"),
        )

    def _staged(self, last: StageSnapshot, scratch: Path) -> list[PreparedBatch]:
        """Stage the branch's rows for the pipeline's table, as one batch that nobody sees and that replaces all."""
        if last.batch_id is None or last.table is None:
            return []
        if last.table.set_aside:
            again = f"begin {self.branch.uid!r} again"
            raise InvalidRequest(f"the table of the branch could not show all rows: {again}")
        cut = cut_of(self.new, last, last.table)
        if cut.snapshot.head is not None or cut.batches:
            rows = self.own.rows(cut).to_spark(self.spark)
        elif _shown(self.sink) is not None:
            rows = self.sink.rows().to_spark(self.spark).limit(0)
        else:
            return []
        preparing(self.sink, scratch)(rows, last.batch_id)
        batches = read_committables(scratch, [last.batch_id])
        self.sink.flush(batches)
        return batches

    def _refuse_impossible(self, sink: Sink, table: TableSnapshot, batches: Sequence[PreparedBatch]) -> None:
        metadata = self.old.metadata
        cut = SinkCut(
            snapshot=table,
            batches=tuple(batches),
            checkpoint_id=self.number,
            lineages=frozenset((metadata.lineage, *metadata.lineages)) - {""},
        )
        if batches:
            sink.refuse_unfit(batches)
        if why := sink.cannot_roll_back(cut):
            raise InvalidRequest(f"{sink.place} cannot show the rebuilt rows: {why}. Nothing was changed")

    def _metadata(self, stages: tuple[StageSnapshot, ...], replaced: frozenset[str]) -> CheckpointMetadata:
        old, new = self.old.metadata, self.new.metadata
        edges = (edge for edge in old.edges if not replaced.intersection(edge))
        chains = (chain for chain in old.chains if chain.uid not in replaced)
        return old.model_copy(
            update={
                "checkpoint_id": self.number,
                "first_number": None,
                "kind": CheckpointKind.SAVEPOINT,
                "stages": stages,
                "edges": (*edges, *new.edges),
                "chains": (*chains, *new.chains),
                "labels": {**old.labels, REBUILT_LABEL: str(self.branch.uid)},
            }
        )


def _shown(sink: Sink) -> CheckpointId | None:
    """Return the checkpoint whose rows a sink shows."""
    position = sink.position()
    return None if position is None or position.head is None else CheckpointId(position.head)


def _without(entries: Sequence[FileEntry], folder: str) -> list[FileEntry]:
    return [entry for entry in entries if not entry.path.startswith(folder)]
