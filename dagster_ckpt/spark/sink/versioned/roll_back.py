"""Bringing a table to the rows of a cut: an older state shown again, what the cut had prepared on top of it.

Later rows leave the newest state only: they can be read at the one they were last in, for as long as that is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, RolledBack, SinkCut
from dagster_ckpt.spark.sink.positions import last_shown, why_another_history, why_left
from dagster_ckpt.spark.sink.versioned.backend import Change, Halfway, V
from dagster_ckpt.spark.sink.versioned.engine import Engine
from dagster_ckpt.spark.sink.versioned.marks import NOTHING_SHOWN, Mark, refuse_other_key
from dagster_ckpt.spark.sink.versioned.version import State, Version


@dataclass(frozen=True)
class RollBackPath:
    """Steps by which a cut is shown."""

    mark: Mark | None
    """What is shown before the batches are added; None: nothing of ours."""
    back_to: int | None = None
    """State to go back to; None: the newest stays."""
    is_emptied: bool = False
    """All rows leave."""
    batches: tuple[PreparedBatch, ...] = ()

    @property
    def goes_back(self) -> bool:
        """True where rows leave, or come back."""
        return self.back_to is not None or self.is_emptied

    @property
    def changes(self) -> dict[str, Any]:
        """Fields of the rows that are shown, as changes of a mark; others' rows stay unless the table goes back."""
        shown = dict(NOTHING_SHOWN) if self.mark is None else self.mark.shown
        return shown if self.goes_back else {name: v for name, v in shown.items() if name != "theirs"}


def why_no_way(engine: Engine[V], cut: SinkCut | None) -> str:
    """Return why the way to a cut cannot be found, in one sentence; empty: it can."""
    try:
        way_to(engine, engine.backend.load(), cut)
    except (Corrupt, InvalidRequest) as error:
        return " ".join(str(error).split())
    return ""


def roll_back(engine: Engine[V], attempt: AttemptId, cut: SinkCut | None, later: LaterRows) -> RolledBack:
    """Show exactly the rows of a cut, or keep what is there, and fence older attempts."""
    done: list[str] = []

    def step() -> None:
        version = engine.own(attempt)
        if later is LaterRows.KEEP:
            through = _through(engine, version, cut)
            if version is not None:
                engine.fence(version, attempt, through_batch=through)
            return
        way = way_to(engine, version, cut)
        if version is not None:
            done.extend(go(engine, version, attempt, way, 0 if cut is None else cut.checkpoint_id))
        elif way.batches:
            engine.created(attempt, way.batches)

    def step_that_tells() -> None:
        try:
            step()
        except Halfway as made:
            done.append(str(made))
            raise

    engine.repeat(step_that_tells)
    return RolledBack(text="; ".join(text for text in done if text))


def go(engine: Engine[V], version: V, attempt: AttemptId, way: RollBackPath, head: int) -> list[str]:
    """Go a way, after which the table shows ``head`` where batches are added; return what was done.

    Raises Raced; Halfway, with what was done, where the way has more steps.
    """
    if not way.goes_back and not way.batches:
        engine.fence(version, attempt, **way.changes)
        return []
    between = version.next_mark(attempt, **way.changes)
    done: list[str] = []
    how: dict[str, Any] = {}
    if way.goes_back:
        aside = version.aside(attempt)
        how = {"back_to": way.back_to, "is_emptied": way.is_emptied, "aside": aside}
        went = (
            "all rows left the table" if way.is_emptied else f"it went back to {version.word} {way.back_to}"
        )
        done.append(f"{went}; later rows can be read at {version.aside_word} {aside}")
    try:
        if not way.batches:
            engine.backend.commit(version, Change(mark=between, **how))
            return done
        added = engine.add(version, attempt, way.batches, head, between=between, **how)
    except Halfway:
        raise Halfway("; ".join(done)) from None
    return [*done, f"{counted(added.rows, 'row was', 'rows were')} added that the restore point had prepared"]


def way_to(engine: Engine[V], version: V | None, cut: SinkCut | None) -> RollBackPath:
    """Return how to show a cut. Raises Corrupt where its rows are gone, InvalidRequest where others' would leave."""
    head = None if cut is None else cut.snapshot.head
    batches = () if cut is None else batches_with_rows(cut.batches)
    files = [file for batch in batches for file in batch.files]
    if version is None:
        if head is not None:
            raise _removed(engine)
        engine.staged.footers(files)
        return RollBackPath(None, batches=batches)
    whole = version.showing(cut.checkpoint_id) if cut is not None and batches else None
    if whole is not None:
        refuse_another_history(version, whole, cut)
        return way_to_state(engine, version, whole)
    engine.staged.footers(files)
    if head is None:
        engine.refuse_foreign(version)
        return _way_to_nothing(engine, version, batches)
    found = shown_state(version, head)
    refuse_another_history(version, found, cut)
    return way_to_state(engine, version, found, batches)


def _removed(engine: Engine[V]) -> Corrupt:
    return Corrupt(
        f"table {engine.place} has lost its rows: it was removed. Bring it back from a backup, or read all data again "
        "(restore_from = 'none')"
    )


def shown_state(version: Version, head: int) -> State:
    """Return the state that shows a checkpoint. Raises Corrupt where it is gone."""
    found = version.showing(head)
    if found is not None:
        return found
    foreign = version.foreign()
    if foreign is not None:
        raise InvalidRequest(version.names.why_foreign(foreign, version.place))
    raise Corrupt(
        f"table {version.place} has no {version.word} that shows checkpoint {head}: it {version.expires}, or the table "
        "is another one. Choose a later checkpoint"
    )


def _way_to_nothing(engine: Engine[V], version: V, batches: tuple[PreparedBatch, ...]) -> RollBackPath:
    mark = version.mark
    if mark is None or (
        mark.head is None and not mark.origin
    ):  # a fork that was not finished has rows already
        return RollBackPath(None, batches=batches)  # not the mark's last batch: batches begin at 0 again
    if mark.base is None:
        _refuse_others(engine, version, None)
        engine.backend.refuse_lost(version, None)
        return RollBackPath(None, is_emptied=True, batches=batches)
    base = version.state(mark.base)
    if base is None:
        raise Corrupt(
            f"table {version.place} no longer has {version.word} {mark.base}, which held the rows that were there "
            "before this pipeline's: choose a later checkpoint, or keep the rows (roll_back_tables: false)"
        )
    _refuse_others(engine, version, base)
    engine.backend.refuse_lost(version, base)
    return RollBackPath(None, back_to=base.number, batches=batches)


def way_to_state(
    engine: Engine[V], version: V, found: State, batches: tuple[PreparedBatch, ...] = ()
) -> RollBackPath:
    """Return how to show a state, with batches on top of it."""
    assert found.mark is not None
    refuse_other_key(found.mark, engine.backend.key, version.place)
    is_shown = version.mark is not None and version.mark.head == found.mark.head
    if is_shown and version.is_untouched(found):
        return RollBackPath(found.mark, batches=batches)
    _refuse_others(engine, version, found)
    engine.backend.refuse_lost(version, found)
    return RollBackPath(found.mark, back_to=found.number, batches=batches)


def refuse_another_history(version: Version, found: State, cut: SinkCut | None) -> None:
    """Raise Corrupt where the state of the cut's number is another deployment's."""
    head = found.mark.head if found.mark is not None else None
    marks = [state.mark for state in version.history if state.mark is not None and version.is_ours(state)]
    shown_by = [mark.lineage for mark in marks if mark.head == head]
    if why := why_another_history(f"table {version.place}", shown_by, cut):
        raise Corrupt(why)


def _refuse_others(engine: Engine[V], version: V, found: State | None) -> None:
    """Raise InvalidRequest where rows of somebody else would leave."""
    theirs = version.others_over(found)
    if theirs is None:
        return
    number, did = theirs
    to = f"{version.word} {found.number}" if found is not None else "no rows"
    raise InvalidRequest(
        f"table {engine.place} cannot go back to {to}: {version.word} {number} ({did}) is not of this pipeline and "
        "would be undone with it; undo it yourself first"
    )


def why_not_kept(engine: Engine[V], cut: SinkCut) -> str:
    """Return why what the table shows cannot stay with a cut's batches on top; empty: it can."""
    try:
        _through(engine, engine.backend.load(), cut)
    except CheckpointError as error:
        return str(error)
    return ""


def _through(engine: Engine[V], version: V | None, cut: SinkCut | None) -> int | None:
    """Return the last batch of the cut that the table shows. Raises where it does not show the rows of the cut."""
    head = None if cut is None else cut.snapshot.head
    if version is None and head is not None:
        raise _removed(engine)
    if version is None or cut is None:
        return None
    marks = [state.mark for state in version.line() if state.mark is not None]
    of_cut = [mark for mark in marks if head is not None and mark.head == head]
    if head is not None and not of_cut:
        if version.showing(head) is not None:
            raise InvalidRequest(why_left(f"table {version.place}", marks[0].head if marks else None, cut))
        raise Corrupt(
            f"no {version.word} of table {version.place} tells which batches checkpoint {head} had published; choose a "
            "later checkpoint, or fork into a table of its own"
        )
    since = list(takewhile(lambda mark: mark not in of_cut, marks))
    shown = last_shown(cut.batches, lambda batch: any(mark.has_shown(batch) for mark in since))
    return of_cut[-1].through_batch if shown is None and of_cut else shown
