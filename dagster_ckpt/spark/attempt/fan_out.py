"""Fan-out of one query: sinks that take its batches from it, in place of queries of their own that read its channel.

One source, a stage that keeps no state and several tables is the commonest shape. With a channel in between every row
is written once more, and read again for each table.

Each sink keeps the files that a query would keep which reads the channel: a position and a commit for each batch. So
every cut, restore and later run goes on from them, whether it takes the batches or reads the channel, and nothing is
ever in flight. A batch's rows are staged by every sink first, as its next batch. Then the batch is committed for all of
them while no checkpoint is cut, so that all are cut behind the same batch. An attempt that ends in between did not end
cleanly, and the next one restores a checkpoint.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.stage_settings import Boundedness
from dagster_ckpt.authoring.stages import StageDefinition, StageRole
from dagster_ckpt.core.ids import BatchId, LogPosition, StageUid
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.positions import CommittedBatches
from dagster_ckpt.spark.channel.sink import run_only
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.exchange.mounts import exchange_of
from dagster_ckpt.spark.files import classified, remove_files, replace_whole
from dagster_ckpt.spark.plan.sources import why_it_leaves_its_reader, why_readers_may_differ
from dagster_ckpt.spark.sink.committables import is_prepared, read_committables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

BatchWriter = Callable[["DataFrame", int], None]

KEPT = 100
"""Batches of which positions and commits are kept, where nothing else is said (``minBatchesToRetain``)."""
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


def may_fan_out(pipeline: CheckpointedPipeline, uid: StageUid, directory: StageDirectory) -> bool:
    """Tell whether a stage's readers are sinks that may take its batches, as far as their definitions say."""
    readers = pipeline.consumers(uid)
    is_local = exchange_of(directory.log) is None  # Spark keeps positions and commits in the directory
    members = (pipeline.authored.stages[one] for one in pipeline.members(uid))
    may = len(readers) > 1 and is_local and all(map(_may_be_taken, members))
    return may and all(_may_take(pipeline, one, uid) for one in readers)


def _may_be_taken(stage: StageDefinition) -> bool:
    return (
        stage.chain
        and stage.role is not StageRole.SINK
        and stage.boundedness is not Boundedness.BOUNDED
        and stage.participant is None
        and stage.table is None
        and stage.state is None
        and stage.barrier_after is None
        and not (stage.conf or stage.reads_all)  # its settings are not those of its readers
    )


def _may_take(pipeline: CheckpointedPipeline, uid: StageUid, upstream: StageUid) -> bool:
    stage = pipeline.stages[uid]
    return (
        stage.chain
        and stage.role is StageRole.SINK
        and pipeline.upstream[uid] == (upstream,)
        and len(stage.inputs) == 1
        and len(pipeline.members(uid)) == 1
        and stage.participant is None
        and stage.state is None
        and stage.partitions is None
        and stage.output_mode != "complete"
        and not (stage.conf or stage.max_entries_per_trigger or stage.reads_all)
        and not (stage.takes_spark or stage.takes_context)
    )


@dataclass(kw_only=True)
class SinkBranch:
    """One sink of a fan-out: what it stages, and the files by which a query of its own could go on."""

    uid: StageUid
    directory: StageDirectory
    log: ChannelLog
    """Its own, with its batches and barriers."""
    read: ChannelLog
    """Log of the query whose rows it takes."""
    names: Mapping[str, StageUid]
    """Which stage a channel name in an offset means, the name of now last."""
    write: BatchWriter
    """Stages a batch, and its committable."""
    kept: int = KEPT
    done: list[dict[str, Any]] = field(default_factory=list)
    """Its batches since they were last asked for, as Spark reports those of a query."""

    def __post_init__(self) -> None:
        (upstream,) = set(self.names.values())
        query = self.directory.query
        found = CommittedBatches(query, inputs=self.names, starts={upstream: self.read.start}).current
        self._batch = -1 if found.batch is None else int(found.batch)
        self._position = found.positions[upstream]

    @property
    def has_backlog(self) -> bool:
        """Tell whether rows wait for it in the channel: these it has to read."""
        return bool(self.read.files_between(self._position, self.read.end))

    def stage(self, rows: DataFrame) -> None:
        """Stage rows as the next batch."""
        self.write(rows, self._batch + 1)

    def commit(self, position: LogPosition, settings: str) -> None:
        """Write down that the next batch is over, which ends at this position of the channel.

        ``settings``: those that the query's batch runs with, as Spark has written them.
        """
        query, batch = self.directory.query, BatchId(self._batch + 1)
        with classified(f"writing down a batch of {self.uid} ({query})"):
            self._write(query, batch, position, settings)
        self._batch, self._position = int(batch), position
        rows = 0
        if is_prepared(self.directory.root, batch):
            (committable,) = read_committables(self.directory.root, [batch])
            rows = sum(file.rows for file in committable.files)
        self.done.append({"batchId": int(batch), "numInputRows": rows, "durationMs": {}})

    def _write(self, query: Path, batch: BatchId, position: LogPosition, settings: str) -> None:
        """Write what Spark would: first the batch's end, then its entry in the log, then its commit."""
        for folder in ("offsets", "commits"):
            (query / folder).mkdir(parents=True, exist_ok=True)
        if not (query / "metadata").exists():
            replace_whole(query / "metadata", json.dumps({"id": str(uuid.uuid4())}).encode(), durably=False)
        offset = json.dumps({"channel": [*self.names][-1], "pos": int(position)})
        text = f"v1\n{settings}\n{offset}"
        replace_whole(query / "offsets" / str(batch), text.encode(), durably=False)
        self.log.append_data(batch, ())
        has_ids = parse_json(settings).get("conf", {}).get(_FORMAT) == "2"
        ending = {"nextBatchWatermarkMs": 0, **({"stateUniqueIds": {}} if has_ids else {})}
        commit = f"v{2 if has_ids else 1}\n{json.dumps(ending)}"
        replace_whole(query / "commits" / str(batch), commit.encode(), durably=False)
        over = batch - self.kept
        remove_files(query / folder / str(over) for folder in ("offsets", "commits") if over >= 0)


def _fails_alone(batch: DataFrame) -> bool:
    """Tell whether a query's rows fail without any sink: they are computed for the first one that stages them."""
    try:
        run_only(batch)
    except Exception:  # whichever: it is told as the sink met it
        return True
    return False


@dataclass(kw_only=True)
class FanOut:
    """A query's batches on their way to the sinks that take them; while there are none, to the query's channel."""

    directory: StageDirectory
    """Of the query."""
    still: AbstractContextManager[Any]
    """Held while a batch is committed, and while a checkpoint is cut: all sinks are cut behind the same batch."""
    branches: Sequence[SinkBranch] = ()
    failing: StageUid | None = None
    """Sink that is staging; where the query fails, it has failed there."""
    frame: DataFrame | None = None
    """Rows of the query, planned."""

    def __post_init__(self) -> None:
        self._log = ChannelLog(self.directory.log)

    def begin(
        self, readers: Sequence[StageUid], branch_of: Callable[[StageUid], SinkBranch | str], kept: int
    ) -> str:
        """Let all readers take the batches, or none; return why none does. Raises what ``branch_of`` raises."""
        assert self.frame is not None, "the query was started"
        if why := why_it_leaves_its_reader(self.frame) or why_readers_may_differ(self.frame):
            return why
        branches = []
        for uid in readers:
            branch = branch_of(uid)
            if isinstance(branch, str):
                return f"{uid} {branch}"
            branches.append(replace(branch, kept=kept))
        self.branches = branches
        return ""

    def instead_of(self, write: BatchWriter, frame: DataFrame) -> BatchWriter:
        """Return the function for ``foreachBatch``; ``write``: where the batches go while no sink takes them."""
        self.frame = frame

        def take(batch: DataFrame, batch_id: int) -> None:
            if self.branches:
                self._take(batch, BatchId(batch_id))
            else:
                write(batch, batch_id)

        return take

    def _take(self, batch: DataFrame, batch_id: BatchId) -> None:
        channel = self._log
        if channel.find_batch(batch_id) is not None:
            return  # the second try of a batch; the query keeps no state
        rows = batch.persist()  # computed once: its functions may be dear
        try:
            for branch in self.branches:
                self.failing = branch.uid
                branch.stage(rows)
            self.failing = None
        except Exception as error:
            if not isinstance(error, CheckpointError) and _fails_alone(batch):
                self.failing = None
            raise
        finally:
            rows.unpersist()
        settings = (self.directory.query / "offsets" / str(batch_id)).read_text().split("\n")[1]
        with self.still:
            appended = channel.append_data(batch_id, ())
            assert appended.position is not None, "it is the last entry"
            for branch in self.branches:
                branch.commit(LogPosition(appended.position + 1), settings)
