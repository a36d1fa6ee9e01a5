"""Objects that are stages' own, of one query: begun with the state before its next batch, asked after each batch.

A batch that Spark repeats begins as it did; where its rows are settled, the state of the try that settled them counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.core.metadata_text import decode_state, encode_state
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.snapshot.batch_notes import note_states, path_through, read_states
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


@dataclass
class OwnObjects:
    """The objects of the stages that run in a query; empty where none declares one."""

    uid: StageUid
    directory: StageDirectory
    objects: dict[StageUid, Any]
    _names: dict[StageUid, tuple[StageUid, ...]]
    _at: Path | None = None
    """Note whose state the objects have; None: they began without."""
    _is_settled: bool = field(default=False)
    """The batch in hand was written before: its rows are not written again."""

    @classmethod
    def of(cls, pipeline: CheckpointedPipeline, uid: StageUid, directory: StageDirectory) -> OwnObjects:
        """Return the objects, each with its state behind the last committed batch.

        Raises InvalidRequest for a saved state whose stage declares none any more, or that its class refuses; Corrupt.
        """
        stages = {one: pipeline.authored.stages[one] for one in pipeline.members(uid)}
        at = path_through(directory, latest_committed_batch(directory.query))
        for name in read_states(at):
            gone = next(
                (s for s in pipeline.authored.stages.values() if name in s.names and s.state is None), None
            )
            if gone is not None:
                raise InvalidRequest(
                    f"stage {gone.uid!r} has a saved state of an object of its own, and declares none (state=): put "
                    "the class back; for the state to go, let its snapshot_state return None for a run"
                )
        made = {one: stage.state() for one, stage in stages.items() if stage.state is not None}
        objects = cls(uid, directory, made, {one: stages[one].names for one in made})
        objects._begin_at(at)
        return objects

    def writer(
        self, write: Callable[[DataFrame, int], None], *, is_settled: Callable[[BatchId], bool]
    ) -> Callable[[DataFrame, int], None]:
        """Return ``write`` with every batch's rows handed to the objects first; ``write`` calls ``note``."""
        if not self.objects:
            return write

        def written(rows: DataFrame, number: int) -> None:
            batch = BatchId(number)
            self._is_settled = is_settled(batch)
            self._go_to(BatchId(number - 1))
            with self._processed(rows, batch) as made:
                write(made, number)
            if self._is_settled:
                self.note(batch)
                self._go_to(batch)

        return written

    def note(self, batch: BatchId) -> None:
        """Write the states down, unless the try that wrote the batch's rows has. Raises InvalidRequest for no JSON."""
        if not self.objects or (self._is_settled and self._is_noted(batch)):
            return
        states: dict[str, str] = {}
        for uid in self.objects:
            state = self._call(uid, "snapshot_state")
            if state is not None:
                states[uid] = encode_state(f"stage {uid!r}", state)
        note_states(self.directory, batch, states)
        self._at = path_through(self.directory, batch)

    def _is_noted(self, batch: BatchId) -> bool:
        path = path_through(self.directory, batch)
        return path is not None and path.stem == str(batch)

    def _go_to(self, batch: BatchId) -> None:
        wanted = path_through(self.directory, batch)
        if wanted != self._at:
            self._begin_at(wanted)

    def _begin_at(self, path: Path | None) -> None:
        saved = read_states(path)
        for uid in self.objects:
            text = next((saved[name] for name in self._names[uid] if name in saved), None)
            self._call(
                uid, "initialize_state", None if text is None else decode_state(f"stage {uid!r}", text)
            )
        self._at = path

    @contextmanager
    def _processed(self, rows: DataFrame, batch: BatchId) -> Iterator[DataFrame]:
        """Yield rows of a batch as the last stage's object returns them; computed once, however often it looks."""
        process = getattr(self.objects.get(self.uid), "process", None)
        if process is None or self._is_settled:
            yield rows
            return
        kept = rows.persist()
        try:
            made = self._call(self.uid, "process", kept, batch)
            made = kept if made is None else made
            if columns_of(made) != columns_of(rows):
                raise InvalidRequest(
                    f"stage {self.uid!r}: process returned the columns {columns_of(made)}, and the stage has "
                    f"{columns_of(rows)}: return these, or None for the rows as they came"
                )
            self.note(batch)  # before the rows are written: a sink's are settled then
            yield made
        finally:
            kept.unpersist()

    def _call(self, uid: StageUid, method: str, *args: Any) -> Any:
        try:
            return getattr(self.objects[uid], method)(*args)
        except CheckpointError:
            raise
        except Exception as error:
            kind = type(self.objects[uid]).__name__
            raise InvalidRequest(
                f"stage {uid!r}: {kind}.{method} failed: {type(error).__name__}: {error}"
            ) from error


def columns_of(rows: Any) -> dict[str, str]:
    """Return the columns of rows, and their types."""
    return {one.name: one.dataType.simpleString() for one in rows.schema.fields}
