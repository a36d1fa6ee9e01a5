"""A restore tried out: built in a scratch directory, every state read, every query started, into a null sink.

Nothing of the pipeline is touched: the queries get new ids, tables are not opened, the coordinator is not asked.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.pipeline import run_as
from dagster_ckpt.core.chains import kept_chains, with_kept_chains
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.restore.choice import FromSnapshot, Restore
from dagster_ckpt.core.restore.facts import Origin, RestoreFacts, RestorePurpose
from dagster_ckpt.core.restore.from_snapshot import restore_of
from dagster_ckpt.core.restore_point import At
from dagster_ckpt.dagster.names import SPARK_KEY
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, Unavailable, first_line
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot
from dagster_ckpt.operations.snapshots.inspect import open_state, state_tables
from dagster_ckpt.spark.attempt.own_objects import StageArguments
from dagster_ckpt.spark.attempt.stage_query import StageQuery
from dagster_ckpt.spark.channel.in_flight import restore_logs
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.cluster.probe import prove_executors
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.exchange.mounts import begin, discard
from dagster_ckpt.spark.snapshot.restore import build_stage_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource

_POLL = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTrial:
    """Trial of one stage."""

    uid: StageUid
    state_rows: int
    """Rows of state read back by Spark."""
    batches: int
    """Micro-batches it ran on what has arrived since; 0: nothing has."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RestoreTrial:
    """Tries the restore of one snapshot in ``scratch``, a folder that does not exist yet or is empty."""

    found: FoundSnapshot
    pipeline: CheckpointedPipeline
    config: CheckpointConfig
    session: SparkSession
    scratch: Path
    arguments: Mapping[StageUid, StageArguments]
    seconds_per_stage: float = 60.0
    """After so long a query that still has input has shown enough, and is stopped."""

    def run(self) -> tuple[StageTrial, ...]:
        """Try every stage in graph order. Raises Corrupt, InvalidRequest, Unavailable: why it cannot be restored."""
        named = replace(self.pipeline, name=PipelineId(f"{self.pipeline.name}.dry-run"))
        trial = run_as(named, kept_chains(self.pipeline.graph, self.found.stored.metadata.chains))
        decision = self._decision()
        attempt = AttemptDirectory(self.scratch / "attempt-1")
        begin(attempt.root, "dry-run")
        for match in decision.stages.matches:
            build_stage_directory(
                self.found.stored,
                match.snapshot,
                target_dir=attempt.stage(match.uid).root,
                new_query_id=str(uuid.uuid4()),
                part=match.part,
                joined=match.joined,
            )
        restore_logs(attempt, decision)
        for uid in decision.stages.new:
            ChannelLog.create(attempt.stage(uid).log)
        taken = self.found.stored.metadata  # a part of a query is no stage of it
        matches = (one for one in decision.stages.matches if not one.has_new_query)
        saved = {one.uid: one.snapshot.uid for one in matches if taken.stage(one.snapshot.uid) is not None}
        return tuple(
            self._try_stage(trial, attempt, stage.uid, saved.get(stage.uid))
            for stage in trial.graph.topological
        )

    def _decision(self) -> Restore:
        load = FromSnapshot(
            location=self.found.location, origin=Origin.OUTSIDE, known=None, reason="tried out by a check"
        )
        facts = RestoreFacts(pipeline=self.pipeline.name)
        return restore_of(
            load,
            self.found.stored.metadata,
            options=RestoreOptions(restore_from=At(self.found.location.uri), fork=True),
            facts=facts,
            graph=with_kept_chains(self.pipeline.graph, self.found.stored.metadata.chains),
            config=self.config,
            purpose=RestorePurpose.FORK,
        )

    def _try_stage(
        self,
        pipeline: CheckpointedPipeline,
        attempt: AttemptDirectory,
        uid: StageUid,
        saved_uid: str | None,
    ) -> StageTrial:
        began = time.monotonic()
        rows = 0 if saved_uid is None else self._read_state(saved_uid)
        query = StageQuery(
            pipeline=pipeline,
            uid=uid,
            attempt=attempt,
            table_writer=lambda *_: _to_nowhere,
            arguments=self.arguments.get(uid, StageArguments()),
            members=self.arguments,
        )
        batches = self._run(query)
        return StageTrial(uid=uid, state_rows=rows, batches=batches, seconds=time.monotonic() - began)

    def _read_state(self, saved_uid: str) -> int:
        """Have Spark read all state of a stage: a query that finds no new input would not look at it."""
        from pyspark.errors import PySparkException

        if not state_tables(self.found.stored, saved_uid):
            return 0
        try:
            with open_state(self.session, self.found.stored, saved_uid, scratch=self.scratch) as state:
                return sum(state.frame(table.name).count() for table in state.tables)
        except PySparkException as error:
            raise Corrupt(
                f"Spark cannot read the state of stage {saved_uid!r}: {first_line(error)}"
            ) from error

    def _run(self, query: StageQuery) -> int:
        from pyspark.errors import PySparkException

        running: StreamingQuery | None = None
        try:
            running = query.start(self.session, available_now=True)
            until = time.monotonic() + self.seconds_per_stage
            while not running.awaitTermination(_POLL) and time.monotonic() < until:
                pass
            return len({progress["batchId"] for progress in running.recentProgress})
        except CheckpointError:
            raise
        except PySparkException as error:
            told = query.understood(error)
            if told is not None:
                raise told from error
            raise Corrupt(f"stage {query.uid!r} does not start from it: {first_line(error)}") from error
        finally:
            if running is not None:
                running.stop()


def _to_nowhere(batch: DataFrame, _batch_id: int) -> None:
    batch.write.format("noop").mode("overwrite").save()


def try_restore(
    resources: Any,
    pipeline: CheckpointedPipeline,
    coordinator: CheckpointCoordinatorResource,
    found: FoundSnapshot,
) -> tuple[StageTrial, ...]:
    """Try the restore of a snapshot in a scratch directory, which is removed. Raises CheckpointError: it fails.

    Unavailable where executors could not try it: that says nothing of the snapshot.
    """
    session = getattr(resources, SPARK_KEY).session
    try:
        prove_executors(session, {"work_dir": coordinator.resolved_work_dir})
    except InvalidRequest as error:
        raise Unavailable(f"the restore was not tried: {error}") from error
    # Beside the working directories: hard links then reach checkpoints on the same file system.
    coordinator.resolved_work_dir.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="dry-run-", dir=coordinator.resolved_work_dir))
    try:
        return RestoreTrial(
            found=found,
            pipeline=pipeline,
            config=coordinator.checkpoint_config(pipeline),
            session=session,
            scratch=scratch,
            arguments={uid: StageArguments(resources=resources) for uid in pipeline.stages},
        ).run()
    finally:
        discard(scratch / "attempt-1")
        shutil.rmtree(scratch, ignore_errors=True)
