"""A user's function as a sink: it gets the rows of each completed checkpoint, at least once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dagster_ckpt.authoring.targets import ForEachCheckpoint
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch
from dagster_ckpt.core.model import Record
from dagster_ckpt.errors import CheckpointError, InvalidRequest, OutcomeUnknown
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.sink.committables import PreparedBatch, encoded, read_record
from dagster_ckpt.spark.sink.port import LaterRows, RolledBack, SinkContext, SinkCut, SinkPosition
from dagster_ckpt.spark.sink.positions import PositionRecord, refuse_fenced, refuse_renamed
from dagster_ckpt.spark.sink.staged_rows import StagedRows
from dagster_ckpt.spark.sink.staged_sink import StagedSink, StepTarget

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointToken:
    """Identity of the rows that a function gets: the same token, the same rows in the same order."""

    pipeline: str
    sink: str
    """The sink's uid."""
    lineage: str
    """The pipeline's history."""
    epoch: int
    """Attempt that published them first."""
    checkpoint_id: int
    replaces: bool
    """Output mode *complete*: these rows are all there are."""

    @property
    def idempotency_key(self) -> str:
        """Text that is the same for the same rows, and for no others."""
        return f"{self.pipeline}/{self.sink}/{self.lineage}/{self.checkpoint_id}"


class Begun(Record):
    """A call of the function of which nobody knows yet whether it returned."""

    batches: tuple[PreparedBatch, ...]
    after: PositionRecord
    """Position once it has returned."""


class Noted(Record):
    """``for_each.json`` in the sink's folder: what the function has been called with."""

    format_version: Literal[1] = 1
    place: PositionRecord | None = None
    begun: Begun | None = None


NOTED = "for_each.json"


class FunctionSink(StagedSink):
    """Calls a function; what it was called with is noted in the sink's folder, before the call and after it."""

    kind: ClassVar[str] = "function"
    forgets_calls: ClassVar[bool] = True

    def __init__(self, target: ForEachCheckpoint, context: SinkContext) -> None:
        super().__init__(context)
        self._function: Callable[[pa.RecordBatchReader, CheckpointToken], Any] = target.fn
        self._name = f"{target.fn.__module__}.{getattr(target.fn, '__qualname__', type(target.fn).__name__)}"
        self._called_elsewhere: CheckpointId | None = None
        """Newest checkpoint it may have been called for by an attempt whose note is not here; None: there is none."""

    @property
    def place(self) -> str:
        """The sink and its function."""
        return f"function:{self.context.pipeline}/{self.context.uid}#{self._name}"

    def position(self) -> SinkPosition | None:
        """Return the position that the function has returned for. Raises InvalidRequest under a former name."""
        refuse_renamed(self._root, self.place)
        place = self._noted().place
        return None if place is None else place.position()

    notes: ClassVar[tuple[str, ...]] = (*StagedSink.notes, NOTED)

    def bring_back(self, folder: Path, later: Mapping[CheckpointId, CoordinatorEpoch]) -> None:
        """Leave the note out where newer ones were written: only one of the newest attempt tells of all calls."""
        self._called_elsewhere = None
        if later:
            (folder / NOTED).unlink(missing_ok=True)
            here = self._noted().place
            if here is None or here.epoch < max(later.values()):
                self._called_elsewhere = max(later)
        super().bring_back(folder, later)

    def cannot_roll_back(self, cut: SinkCut | None) -> str:
        """Refuse where nobody knows of all calls: what the function has had would be handed to it again."""
        if self._called_elsewhere is None:
            return super().cannot_roll_back(cut)
        why = (
            f"{self.place} may have been called up to checkpoint {self._called_elsewhere}, and the note of its calls "
            "is lost with another machine's disk, or still there"
        )
        if cut is None:
            return (
                f"{why}: begun without state, it would be called with all rows again. Go on from a checkpoint "
                "(restore_from: latest), or keep the rows and have it called again (roll_back_tables: false)"
            )
        return f"{why}: restore that checkpoint, or keep the rows (roll_back_tables: false)"

    def roll_back(self, cut: SinkCut | None, later: LaterRows) -> RolledBack:
        """Raise InvalidRequest where nobody knows of all calls, unless they are to be repeated."""
        if later is LaterRows.SET_ASIDE and self._called_elsewhere is not None:
            raise InvalidRequest(self.cannot_roll_back(cut))
        return super().roll_back(cut, later)

    def _position_kept(self, kept: SinkPosition) -> SinkPosition:
        """Note what the function may have had elsewhere: a restore that takes no calls back goes on being refused."""
        if self._called_elsewhere is None:
            return kept
        newest = max(self._called_elsewhere, kept.checkpoint_id or 0)
        return replace(kept, checkpoint_id=newest, head=newest)

    def choose_note(self, name: str, restored: Path) -> None:
        """Go on with the restored note where the one here is of an older attempt: others were made elsewhere."""
        if name != NOTED:
            super().choose_note(name, restored)
            return
        here, there = self._noted().place, (read_record(Noted, restored) or Noted()).place
        is_older = here is None or (there is not None and here.epoch < there.epoch)
        if there is not None and is_older and (here is None or here.lineage == there.lineage):
            replace_whole(self._file, restored.read_bytes())

    def commit(self, rows: StagedRows, position: SinkPosition) -> str:
        """Call the function, unless there are no rows."""
        if rows.batches:
            begun = Begun(batches=rows.batches, after=PositionRecord.of(position))
            self._note(self._noted().model_copy(update={"begun": begun}))
            self._call(rows, begun)
        self._note(Noted(place=PositionRecord.of(position)))
        return ""

    @contextmanager
    def exclusively(self) -> Iterator[StepTarget]:
        """Call the function again, with the same token, where nobody knows whether it returned."""
        with super().exclusively() as outside:
            noted = self._noted()
            if noted.begun is not None:
                refuse_fenced(self.place, noted.begun.after.position(), self.context.attempt())
                self._call(StagedRows(self._root, noted.begun.batches), noted.begun)
                self._note(Noted(place=noted.begun.after))
            yield outside

    def _call(self, rows: StagedRows, begun: Begun) -> None:
        after = begun.after
        token = CheckpointToken(
            pipeline=self.context.pipeline,
            sink=self.context.uid,
            lineage=after.lineage,
            epoch=after.epoch,
            checkpoint_id=after.head or 0,
            replaces=rows.replaces,
        )
        try:
            self._function(rows.reader(), token)
        except CheckpointError:
            raise
        except OSError as error:
            raise OutcomeUnknown(
                f"{self._name} failed for checkpoint {token.checkpoint_id} ({error}): it is called again with the same "
                "idempotency key"
            ) from error

    @property
    def _file(self) -> Path:
        return self._root / NOTED

    def _noted(self) -> Noted:
        return read_record(Noted, self._file) or Noted()

    def _note(self, noted: Noted) -> None:
        replace_whole(self._file, encoded(noted))
