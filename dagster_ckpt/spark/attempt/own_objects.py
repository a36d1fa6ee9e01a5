"""Functions of the stages that run in a query, and their objects with a state in each checkpoint (``state=``).

A batch that Spark repeats begins as it did; where its rows are settled, the state of the try that settled them counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.judged_sinks import names_of_function
from dagster_ckpt.authoring.own_objects import OwnState, StageContext
from dagster_ckpt.authoring.stages import StageDefinition
from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.core.metadata_text import decode_state, encode_state
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.plan.errors import row_error
from dagster_ckpt.spark.session import session_settings
from dagster_ckpt.spark.snapshot.batch_notes import OwnStatesNote, note_states, path_through, read_states
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

_SUBTASK = "_dagster_ckpt_subtask"
_LET_GO = "; for the state to go, let its snapshot_state return None for a run"


@dataclass
class OwnObjects:
    """The objects of the stages that run in a query; empty where none declares any."""

    uid: StageUid
    directory: StageDirectory
    _stages: Mapping[StageUid, StageDefinition]
    """Stages that declare some."""
    _names: Mapping[StageUid, Sequence[str]]
    """Names by which a state is a stage's."""
    _first: OwnStatesNote = field(default_factory=OwnStatesNote)
    """States with which the query began."""
    _at: Path | None = None
    """Note whose state the objects have; None: they began without."""
    _is_settled: bool = False
    """The batch in hand was written before: its rows are not written again."""
    _seen: BatchId | None = None
    """Newest batch whose rows the objects have seen."""

    def __post_init__(self) -> None:
        """Make the objects."""
        self.declared = {
            uid: OwnState(stage.state, stage.partitions or 1)
            for uid, stage in self._stages.items()
            if stage.state is not None
        }
        self.objects = {uid: one.new() for uid, one in self.declared.items()}

    @classmethod
    def of(cls, pipeline: CheckpointedPipeline, uid: StageUid, directory: StageDirectory) -> OwnObjects:
        """Return the objects, each with its state behind the last committed batch.

        Raises InvalidRequest for a saved state whose stage declares none any more, or that its class refuses; Corrupt.
        """
        stages = pipeline.authored.stages
        members = {one: stages[one] for one in pipeline.members(uid)}
        names = {one: names_of_function(one, stages) for one in stages}
        at = path_through(directory, latest_committed_batch(directory.query))
        first = read_states(at)
        for name in first.states:
            gone = next((one for one, s in stages.items() if name in names[one] and s.state is None), None)
            if gone is not None:
                raise InvalidRequest(
                    f"stage {gone!r} has a saved state of an object of its own, and declares none (state=): "
                    f"put the class back{_LET_GO}"
                )
        objects = cls(uid, directory, members, names, first)
        objects._begin_at(at)
        return objects

    def of_function(self, uid: StageUid) -> Any:
        """Return a stage's objects as its function sees them; None: it has none."""
        return self.declared[uid].of_function(self.objects[uid]) if uid in self.objects else None

    def again(self, uid: StageUid) -> Any:
        """Return the same of new objects, as they were when the query began: its function is called once more."""
        if uid not in self.objects:
            return None
        made = self.declared[uid].new()
        self._initialize(uid, made, self._first)
        return self.declared[uid].of_function(made)

    def writer(
        self, write: Callable[[DataFrame, int], None], *, is_settled: Callable[[BatchId], bool]
    ) -> Callable[[DataFrame, int], None]:
        """Return ``write``, before which the objects are as a batch begins; it calls ``processed`` and ``note``."""
        if not self.objects:
            return write

        def written(rows: DataFrame, number: int) -> None:
            batch = BatchId(number)
            self._is_settled, self._seen = is_settled(batch), None
            self._go_to(BatchId(number - 1))
            write(rows, number)
            if self._is_settled:
                self.note(batch)
                self._go_to(batch)

        return written

    def note(self, batch: BatchId) -> None:
        """Write the states down, unless the try that wrote the batch's rows has. Raises InvalidRequest for no JSON."""
        if not self.objects or (self._is_settled and self._is_noted(batch)):
            return
        states: dict[StageUid, str] = {}
        for uid, declared in self.declared.items():
            said = [self._call(uid, one, "snapshot_state") for one in self.objects[uid]]
            state = declared.joined(f"stage {uid!r}", said)
            if state is not None:
                states[uid] = encode_state(f"stage {uid!r}", state)
        lists: dict[str, dict[str, bool]] = {
            uid: self._lists_of(uid) for uid in states if self.declared[uid].lists
        }
        note_states(
            self.directory,
            batch,
            OwnStatesNote(states={str(uid): text for uid, text in states.items()}, lists=lists),
        )
        self._at = path_through(self.directory, batch)

    @contextmanager
    def processed(self, rows: DataFrame, batch: BatchId) -> Iterator[DataFrame]:
        """Yield rows of a batch as the last stage's objects return them; computed once, however often these look.

        Called again within a batch, the objects begin it as they did.
        """
        if not hasattr(self._stages[self.uid].state, "process") or self._is_settled:
            yield rows
            return
        if self._seen == batch:
            self._begin_at(path_through(self.directory, BatchId(batch - 1)))
        self._seen = batch
        kept, parts = self._parts(rows)
        try:
            made = [
                self._processed(one, part, batch)
                for one, part in zip(self.objects[self.uid], parts, strict=True)
            ]
            self.note(batch)  # before the rows are written: a sink's are settled then
            yield reduce(lambda one, other: one.unionByName(other), made)
        finally:
            kept.unpersist()

    def _parts(self, rows: DataFrame) -> tuple[DataFrame, list[DataFrame]]:
        """Return rows that are computed once, and those of each subtask: Spark's partitions in turn."""
        subtasks = len(self.objects[self.uid])
        if subtasks == 1:
            kept = rows.persist()
            return kept, [kept]
        from pyspark.sql import functions as f

        kept = rows.withColumn(_SUBTASK, f.spark_partition_id() % subtasks).persist()
        return kept, [kept.where(f"{_SUBTASK} = {number}").drop(_SUBTASK) for number in range(subtasks)]

    def _processed(self, one: Any, rows: DataFrame, batch: BatchId) -> DataFrame:
        made = self._call(self.uid, one, "process", rows, batch)
        made = rows if made is None else made
        if columns_of(made) != columns_of(rows):
            raise InvalidRequest(
                f"stage {self.uid!r}: process returned the columns {columns_of(made)}, and the stage has "
                f"{columns_of(rows)}: return these, or None for the rows as they came"
            )
        return made

    def _is_noted(self, batch: BatchId) -> bool:
        path = path_through(self.directory, batch)
        return path is not None and path.stem == str(batch)

    def _go_to(self, batch: BatchId) -> None:
        if path_through(self.directory, batch) != self._at:
            self._begin_at(path_through(self.directory, batch))

    def _begin_at(self, path: Path | None) -> None:
        saved = read_states(path)
        for uid, objects in self.objects.items():
            self._initialize(uid, objects, saved)
        self._at = path

    def _initialize(self, uid: StageUid, objects: tuple[Any, ...], saved: OwnStatesNote) -> None:
        name = next((name for name in self._names[uid] if name in saved.states), None)
        state = None if name is None else decode_state(f"stage {uid!r}", saved.states[name])
        if name is not None:
            self._refuse_other_lists(uid, saved.lists.get(name), state)
        for one, arguments in zip(objects, self.declared[uid].arguments(state), strict=True):
            self._call(uid, one, "initialize_state", *arguments)

    def _lists_of(self, uid: StageUid) -> dict[str, bool]:
        """Return whether each list of a stage is given to everybody."""
        declared = self.declared[uid]
        return {name: name in declared.union for name in declared.lists}

    def _refuse_other_lists(self, uid: StageUid, saved: Mapping[str, bool] | None, state: Any) -> None:
        """Raise InvalidRequest where a saved state has items that would go to nobody, or to others than meant."""
        lists = self._lists_of(uid)
        if saved is None:
            wrong = "of one object, and its class names lists" if lists else ""
        elif not lists:
            wrong = f"of the lists {', '.join(saved)}, and its class names none"
        else:
            kept = [name for name in saved if any(one.get(name) for one in state)]
            other = [name for name in kept if lists.get(name) is not saved[name]]
            wrong = (
                f"with items of {', '.join(other)}, which its class names no more, or for others"
                if other
                else ""
            )
        if wrong:
            raise InvalidRequest(
                f"stage {uid!r} has a saved state {wrong} (list_state, union_list_state): put them back{_LET_GO}"
            )

    def _call(self, uid: StageUid, one: Any, method: str, *args: Any) -> Any:
        try:
            return getattr(one, method)(*args)
        except CheckpointError:
            raise
        except Exception as error:
            if method == "process" and row_error(error) is not None:
                raise
            raise InvalidRequest(
                f"stage {uid!r}: {type(one).__name__}.{method} failed: {type(error).__name__}: {error}"
            ) from error


def columns_of(rows: Any) -> dict[str, str]:
    """Return the columns of rows, and their types."""
    return {one.name: one.dataType.simpleString() for one in rows.schema.fields}


@dataclass(frozen=True, slots=True)
class StageArguments:
    """Arguments of a stage function from Dagster, beside its inputs."""

    config: Mapping[str, Any] = field(default_factory=dict)
    resources: Any = None
    hooks: Mapping[str, Any] = field(default_factory=dict)
    state: Any = None
    """The stage's own object; None: a new one, where it has any."""


def call_function(
    stage: StageDefinition, spark: SparkSession, inputs: Sequence[DataFrame], arguments: StageArguments
) -> DataFrame:
    """Return the frame that a stage's function makes of its inputs, streams or not."""
    given: dict[str, Any] = dict(zip(stage.inputs, inputs, strict=True))
    state = arguments.state
    if state is None and stage.state is not None:
        state = OwnState(stage.state, stage.partitions or 1).begun()
    if stage.takes_spark:
        given["spark"] = spark
    if stage.takes_context:
        given["context"] = StageContext(
            spark=spark,
            uid=stage.uid,
            config=arguments.config,
            resources=arguments.resources,
            hooks=arguments.hooks,
            state=state,
        )
    with session_settings(spark, stage.conf):
        return stage.fn(**given)


def call_stage(
    stage: StageDefinition, spark: SparkSession, inputs: Sequence[DataFrame], arguments: StageArguments
) -> DataFrame:
    """Return the frame a stage's function makes of its inputs. Raises InvalidRequest for no streaming DataFrame."""
    frame = call_function(stage, spark, inputs, arguments)
    if frame is None:
        raise InvalidRequest(f"stage {stage.uid!r} returned nothing: end it with `return` and its DataFrame")
    if not getattr(frame, "isStreaming", False):
        raise InvalidRequest(
            f"stage {stage.uid!r} returned {type(frame).__name__}, not a streaming DataFrame: "
            "use spark.readStream in a source, and only streaming operators on inputs"
        )
    return frame
