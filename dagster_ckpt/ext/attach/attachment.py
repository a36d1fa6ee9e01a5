"""``attach``: an untouched program's streaming queries become stages, with checkpoints over all of them.

The attempt begins with the program's first query and ends with the process. Its coordinator lives in threads of the
program; what it has to say goes to the logger ``dagster_ckpt.attach``.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.ids import PipelineId, StageUid, pipeline_id
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.core.restore_point import Latest, Nothing
from dagster_ckpt.core.supervision.approval import refuse_outdated
from dagster_ckpt.errors import Declined, InvalidRequest, untraced
from dagster_ckpt.ext.attach.attempt import ProgramAttempt
from dagster_ckpt.ext.attach.cuts import LOOK_EVERY
from dagster_ckpt.ext.attach.fork import ForkBeginning
from dagster_ckpt.ext.attach.idle import DEFAULTS, program_deployment
from dagster_ckpt.ext.attach.owner import ProgramOwner
from dagster_ckpt.ext.attach.program import AttachedStage, ProgramDirectory
from dagster_ckpt.ext.attach.queries import NO_PART, Queries, local_place, may_drop_rows, table_location
from dagster_ckpt.ext.attach.restore import ProgramRestore, was_interrupted
from dagster_ckpt.ext.attach.sinks import line_of
from dagster_ckpt.ext.attach.writers import WriterNotes, WriterPatch, refuse_connect, speak
from dagster_ckpt.runtime.record_store import NOBODY, RecordStore
from dagster_ckpt.spark.java.sessions import log_each_error_once, progress_since
from dagster_ckpt.spark.snapshot.batch_notes import note_late
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch, latest_planned_batch
from dagster_ckpt.spark.stage_report import BatchMeter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

    from dagster_ckpt.pipes import LaunchingRun

log = logging.getLogger("dagster_ckpt.attach")

PIPES = "DAGSTER_PIPES_CONTEXT"
"""Variable of the environment of a process that a run of Dagster's has launched."""
ENDS_WITHIN = 5.0
"""Seconds in which a program that was stopped ends by itself, before it gets SIGINT."""


def attach(
    pipeline: str,
    *,
    base_dir: str,
    restore_from: str = "",
    fork_of: str = "",
    keep_rows_of: Sequence[str] = (),
    **settings: Any,
) -> Attachment:
    """Make a stage of every streaming query that this program starts from now on, and checkpoint them together.

    Call it once, before the program's first query. The program's queries, plans and triggers stay as they are.

    Args:
        pipeline: name under which checkpoints, savepoints and the page are found.
        base_dir: folder that keeps them, on a local disk; the command line's ``--base``.
        restore_from: ``latest``, ``savepoint-3`` or a snapshot's folder: put back once, before the first query starts.
            Empty: queries go on in their own directories, as without ``attach``.
        fork_of: the name under which the original of a fork is attached, in this ``base_dir``. The fork begins with its
            snapshot ``restore_from`` (empty: the latest), with directories and tables of its own; later starts go on.
        keep_rows_of: stages of a fork that may write where the program's text says.
        settings: how checkpoints are taken, as in ``CheckpointConfig`` (``interval="1 min"``).

    Raises:
        InvalidRequest: a name or setting that cannot be, a second call, Spark Connect.
        Fenced: another copy of the program is alive.
        NotFound, Corrupt: the snapshot is not there, or damaged; nothing was changed.
    """
    name = pipeline_id(pipeline)
    if Attachment._current is not None:
        raise InvalidRequest(
            f"this program is attached to {Attachment._current.pipeline!r} already: attach once, or detach() first"
        )
    launching = _launching_run(name)
    try:
        attachment = Attachment(name, base_dir=base_dir, settings=settings, launching=launching)
        attachment.begin(restore_from, fork_of=fork_of, keeps=tuple(keep_rows_of))
    except BaseException as error:
        if launching is not None:
            launching.failed(error)
            launching.ended()
        raise untraced(error) from error.__cause__
    return attachment


def _launching_run(pipeline: PipelineId) -> LaunchingRun | None:
    if not os.environ.get(PIPES):
        return None
    from dagster_ckpt.pipes import LaunchingRun  # Dagster is not imported but for its runs

    return LaunchingRun.of_process(pipeline)


class Attachment:
    """A program that is attached, from ``attach`` to ``detach`` or the end of the process."""

    _current: Attachment | None = None

    def __init__(
        self,
        pipeline: PipelineId,
        *,
        base_dir: str,
        settings: Mapping[str, Any],
        launching: LaunchingRun | None = None,
    ) -> None:
        refuse_connect()
        self.pipeline = pipeline
        self._deployment, programs = program_deployment(base_dir)
        savepoints = {"savepoint_dir": self._deployment.savepoint_dir}
        self._launching = launching
        order = None if launching is None else launching.order
        ordered = {} if order is None else order.settings
        self._config = CheckpointConfig.layered(DEFAULTS, savepoints, settings, ordered).of_stream
        self._directory = ProgramDirectory(programs / pipeline)
        self._program = self._directory.load()
        self._owner = ProgramOwner.here(self._directory.owner, run_id="" if order is None else order.run_id)
        self._attempt = ProgramAttempt(
            deployment=self._deployment,
            pipeline=pipeline,
            directory=self._directory,
            config=self._config,
            owner=self._owner,
            root=self._owner.name if order is None else order.root,
            is_running=self._is_running,
            count_late=self._count_late,
            stop_queries=self._stop_queries,
            listeners=() if launching is None else (launching.events,),
            began=(lambda _attempt: None) if launching is None else launching.follow,
            ended=self._ended,
        )
        self._lock = threading.RLock()
        self._queries: dict[StageUid, StreamingQuery] = {}
        self._meters: dict[StageUid, BatchMeter] = {}
        self._counting = threading.Lock()  # snapshots of two checkpoints count the batches of one query
        self._starts: set[StageUid] = set()
        self._described = Queries(lasting=self._directory.queries)
        self._told: set[str] = set()
        self._were_there: set[str] = set()
        """Stages whose directories were there at a time in this process: who removes one is the program itself."""
        self._process = os.getpid()
        self._patch = WriterPatch(self._starting)
        self._is_over = False
        self.is_quiet = False
        """How the program ends is told in a sentence, and Java's pages of it are left out."""

    # --- begin and end ----------------------------------------------------------------------------------------

    def begin(self, restore_from: str, *, fork_of: str = "", keeps: tuple[str, ...] = ()) -> None:
        """Put back what is to be put back, and hear of queries from now on. Raises as ``attach`` does."""
        speak()
        self._owner.wait(self._record)
        record = self._record()
        beginning = ForkBeginning(self._deployment, self._directory, record)
        restore_from = beginning.restored_first(restore_from, fork_of=fork_of, keeps=keeps)
        self._program = self._directory.load()
        self._put_back(record, restore_from)
        self._were_there.update(stage.uid for stage in self._program.stages if stage.has_directory)
        self._owner.name_to_java()
        self._patch.install()
        if self._program.tables:
            self._patch.send_readers(
                lambda path: self._program.moved.get(local_place(path, os.getcwd()) or path, path)
            )
        Attachment._current = self
        atexit.register(self.detach)

    def _record(self) -> CoordinatorRecord | None:
        return RecordStore(self._deployment.store).record(self.pipeline)

    def _put_back(self, record: CoordinatorRecord | None, restore_from: str) -> None:
        options = None if self._launching is None else self._launching.restore
        if options is None or options.restore_from == Latest():  # of a run: queries go on where they are
            options = RestoreOptions.of(restore_from=restore_from) if restore_from else None
            root = f"attach-{restore_from}" if restore_from else ""
        else:
            root = self._attempt.root
            self._refuse_outdated(record, options)
        if options is not None and options.restore_from == Nothing():
            raise InvalidRequest(
                "restore_from 'none' would leave the queries' directories as they are: to begin from nothing, give the "
                "queries other directories and attach under another name"
            )
        interrupted = was_interrupted(record)
        if root:
            self._attempt.root = root
        if not interrupted and (not root or (record is not None and record.root == root)):
            return
        if interrupted:
            log.warning("the restore of %s was interrupted: it is done again", self.pipeline)
        ProgramRestore(
            deployment=self._deployment,
            pipeline=self.pipeline,
            directory=self._directory,
            options=options or RestoreOptions(),
            config=self._config,
            root=root,
            owner=self._owner,
            operator=NOBODY if self._launching is None else self._launching.operator,
        ).run()

    def _refuse_outdated(self, record: CoordinatorRecord | None, options: RestoreOptions) -> None:
        approved = "" if self._launching is None else self._launching.order.approved
        if approved:
            seen = record or CoordinatorRecord(pipeline=self.pipeline)
            refuse_outdated(approved, seen, options, root=self._attempt.root)

    def failed(self, error: BaseException) -> None:
        """Note how the program ends, for the run of Dagster's that launched it."""
        if self._launching is not None:
            self._launching.failed(error)

    def detach(self) -> None:
        """Take a last checkpoint where something is new, end the attempt, and give PySpark its methods back."""
        if os.getpid() != self._process:
            return  # a fork of the program ends, which has a copy of this and none of its threads
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            self._patch.remove()
            if Attachment._current is self:
                Attachment._current = None
            atexit.unregister(self.detach)
        self._attempt.close()
        if self._launching is not None:
            self._launching.ended()
        getattr(self._deployment.store, "close")()  # noqa: B009 - of SQL stores

    # --- queries ----------------------------------------------------------------------------------------------

    @property
    def stages(self) -> tuple[AttachedStage, ...]:
        """Stages of the program, those of earlier runs too."""
        return self._program.stages

    def _starting(
        self, frame: DataFrame, told: WriterNotes
    ) -> tuple[dict[str, str], Callable[[StreamingQuery | None], None]]:
        """Make a stage of a query that is about to start."""
        with self._lock:
            running = {uid for uid in (*self._queries, *self._starts) if self._is_running(uid)}
            found = self._described.described(frame, told, program=self._program, running=running)
            self._say(found.lines)
            if found.stage is None:
                return {}, lambda _query: None
            stage = self._with_known_place(found.stage, told)
            before = self._program.stage(stage.uid)
            self._starts.add(StageUid(stage.uid))
            try:
                self._take_in(stage)
            except BaseException:
                self._starts.discard(StageUid(stage.uid))
                raise
        given = dict(found.given)

        def heard(query: StreamingQuery | None) -> None:
            with self._lock:
                self._starts.discard(StageUid(stage.uid))
                if query is None:
                    self._keep(before, in_place_of=stage.uid)
                else:
                    self._started(frame, told, stage, query)

        return given, heard

    def _with_known_place(self, stage: AttachedStage, told: WriterNotes) -> AttachedStage:
        known = self._program.stage(stage.uid)
        if told.table and known is not None and not stage.writes:
            return stage.model_copy(update={"sink": known.sink, "writes": known.writes})
        return stage

    def _take_in(self, stage: AttachedStage) -> None:
        """Keep the stage, and let the attempt have it. Raises InvalidRequest where its directory was lost."""
        known = self._program.stage(stage.uid)
        if known is not None and known.checkpoint_location == stage.checkpoint_location:
            self._refuse_lost(stage)
        self._keep(stage, in_place_of=stage.uid)

    def _keep(self, stage: AttachedStage | None, *, in_place_of: str) -> None:
        if self._program.stage(in_place_of) != stage:
            known = self._program
            self._program = known.without(in_place_of) if stage is None else known.with_stage(stage)
            self._directory.save(self._program)
        self._attempt.change(self._program)

    def _refuse_lost(self, stage: AttachedStage) -> None:
        if stage.has_directory or not self._directory.has_begun(stage.uid):
            return
        if stage.uid in self._were_there:
            self._say((f"stage {stage.uid}: the program has removed its directory, and begins from nothing",))
        else:
            raise InvalidRequest(
                f"the directory {stage.checkpoint_location} of stage {stage.uid} is gone, and everything would be read "
                f"again: put it back (dagster-ckpt restore latest -p {self.pipeline}), or give the query another "
                "checkpointLocation and queryName to begin from nothing"
            )

    def _started(
        self, frame: DataFrame, told: WriterNotes, stage: AttachedStage, query: StreamingQuery
    ) -> None:
        if not stage.has_directory:
            self._say((f"stage {stage.uid}: its checkpointLocation is on no local disk: {NO_PART}",))
            self._keep(None, in_place_of=stage.uid)
            return
        if self.is_quiet and not self._queries:
            log_each_error_once(frame.sparkSession)
        self._queries[StageUid(stage.uid)] = query
        self._meters.pop(StageUid(stage.uid), None)
        if may_drop_rows(frame):  # else asking Spark how many takes a tenth of a checkpoint
            self._meters[StageUid(stage.uid)] = BatchMeter()
        self._were_there.add(stage.uid)
        self._directory.note_begun(stage.uid)
        if told.table and not stage.writes:
            with suppress(Exception):  # of a catalog, of whatever kind: the query runs, the program goes on
                provider, place = table_location(frame.sparkSession, told.table)
                stage = stage.model_copy(update={"sink": provider or stage.sink, "writes": place})
            self._keep(stage, in_place_of=stage.uid)
        self._say((f"stage {stage.uid}: {line_of(stage)}",))

    def _is_running(self, uid: StageUid) -> bool:
        if uid in self._starts:
            return True
        query = self._queries.get(uid)
        return query is not None and bool(query.isActive)

    def _count_late(self, uid: StageUid) -> None:
        query, meter = self._queries.get(uid), self._meters.get(uid)
        with suppress(Exception), self._counting:  # of whatever kind: no checkpoint fails for a count
            if query is not None and meter is not None:
                note_late(self._directory.stage(uid), meter.take(progress_since(query, meter.last_batch)))

    def _say(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            if line not in self._told:
                self._told.add(line)
                log.info(line)

    def _stop_queries(self, within: float) -> None:
        """Stop all, readers first, each between two batches where it is so within these seconds."""
        for stage in self._in_order():
            query = self._queries.get(StageUid(stage.uid))
            if query is None:
                continue
            until = time.monotonic() + within
            while self._is_in_batch(stage) and time.monotonic() < until:
                time.sleep(LOOK_EVERY)
            with suppress(Exception):  # of Spark's, of whatever kind: the next is stopped all the same
                query.stop()

    def _in_order(self) -> list[AttachedStage]:
        try:
            return self._program.readers_first()
        except Declined:  # they read each other's rows
            return list(self._program.stages)

    def _is_in_batch(self, stage: AttachedStage) -> bool:
        place = Path(stage.checkpoint_location)
        return latest_planned_batch(place) != latest_committed_batch(place)

    @property
    def was_stopped(self) -> bool:
        """True where somebody has stopped the program with a savepoint."""
        return bool(self._attempt.stopped_with)

    def _ended(self) -> None:
        """Have the program end, which may wait for something else than its queries."""
        main = threading.main_thread()
        main.join(ENDS_WITHIN)
        if main.is_alive() and not self._is_over:
            log.info("%s does not end by itself: it gets SIGINT", self.pipeline)
            os.kill(os.getpid(), signal.SIGINT)

    # --- requests ---------------------------------------------------------------------------------------------

    def savepoint(self, name: str = "", *, target: str = "") -> str:
        """Take a savepoint of all queries now, and return its URI. Raises Declined where it failed."""
        request = CheckpointRequest(kind=CheckpointKind.SAVEPOINT, name=name, target=target)
        return self._attempt.confirmed(request).location.uri

    def checkpoint(self) -> str:
        """Take a checkpoint of all queries now, and return its URI. Raises Declined where it failed."""
        return self._attempt.confirmed(CheckpointRequest()).location.uri
