"""Bringing a table to the rows of a cut: an older state shown again, what the cut had prepared on top of it.

Later rows leave the newest state only: they can be read at the one they were last in, for as long as that is kept.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from dagster_ckpt.core.units import counted
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest
from dagster_ckpt.ext.tables.engine import Backend, Change, Engine, Halfway, OriginState, Raced, V
from dagster_ckpt.ext.tables.marks import NOTHING_SHOWN, Mark, refuse_other_key
from dagster_ckpt.ext.tables.version import State, Version
from dagster_ckpt.spark.sink.committables import PreparedBatch, batches_with_rows
from dagster_ckpt.spark.sink.port import AttemptId, LaterRows, RolledBack, SinkCut
from dagster_ckpt.spark.sink.positions import SEED, last_shown, why_another_history, why_left


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


def why_not_exchanged(engine: Engine[V]) -> str:
    """Return why not all rows of a table may leave: some are of before the sink's, or of somebody else; empty: they
    may.
    """
    version = engine.backend.load()
    if version is None:
        return ""
    base = version.number if version.mark is None else version.mark.base
    before = None if base is None else version.state(base)
    theirs = version.others_over(before)
    if theirs is None and base is not None and not _is_empty(version, before):
        theirs = base, "rows that were there before"
    if theirs is None:
        return ""
    number, did = theirs
    return f"{version.word} {number} ({did}) is not of this sink, and its rows would leave as well"


def _is_empty(version: V, state: State | None) -> bool:
    with contextlib.suppress(Corrupt):
        return state is not None and version.rows_at(state.number) == 0
    return False


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


def refuse_fork(engine: Engine[V], cut: SinkCut) -> None:
    """Raise InvalidRequest where the table cannot begin with the rows of a cut, Corrupt where those are gone."""
    _, origin, _, _ = _begins_with(engine, cut)
    version = engine.backend.load()
    if version is not None:
        _refuse_taken(version, engine.place, origin)


def fork(engine: Engine[V], attempt: AttemptId, cut: SinkCut) -> str:
    """Give the table the rows of a cut; repeating it finishes it, or goes back to them."""
    source, origin, theirs, seed = _begins_with(engine, cut)
    copied = None if seed is None else OriginState(source=source, version=theirs, number=seed.number)

    def step() -> None:
        version = engine.own(attempt)
        if version is None:
            what = copied or [batch.row_schema for batch in cut.batches]
            if what:
                engine.backend.create(engine.backend.columns(what), engine.first_mark(attempt))
                raise Raced
            return
        _refuse_taken(version, engine.place, origin)
        mark = version.mark
        has_begun = mark is not None and mark.origin == origin
        if mark is not None and has_begun and mark.head == SEED:
            engine.fence(version, attempt)
        elif mark is not None and has_begun and mark.head is None:
            _add_prepared(engine, version, attempt, cut, source)
        elif version.showing(SEED) is not None and _origin(version.showing(SEED)) == origin:
            way: RollBackPath = way_to_state(engine, version, shown_state(version, SEED))
            go(engine, version, attempt, way, SEED)
        else:
            # Where batches follow, the fork has not begun before they are added.
            head = None if cut.batches else SEED
            said = {name: getattr(seed.mark, name) for name in ("through_batch", "key")} if seed else {}
            begun = version.next_mark(attempt, origin=origin, head=head, **said)
            engine.backend.commit(version, Change(mark=begun, copied=copied))
            raise Raced

    engine.repeat(step)
    return f"table {engine.place} begins with the rows of {origin}"


def _begins_with(engine: Engine[V], cut: SinkCut) -> tuple[Backend[V], str, V | None, State | None]:
    """Return the table of a cut, the cut's name, that table as it is now, and its state with the cut's head."""
    source = engine.backend.elsewhere(cut.snapshot.uri)
    if source.place == engine.place:
        raise InvalidRequest(
            f"the fork would write to {engine.place} as its origin does: give it another table"
        )
    theirs = source.load()
    seed = None if cut.snapshot.head is None else _seed(source.place, theirs, cut)
    if seed is not None:
        refuse_other_key(seed.mark, engine.backend.key, source.place)
    return source, f"{source.place} at checkpoint {cut.checkpoint_id}", theirs, seed


def _refuse_taken(version: V, place: str, origin: str) -> None:
    """Raise InvalidRequest for a table with rows, unless it has begun with those of this very cut."""
    mark = version.mark
    is_beginning = mark is not None and mark.origin == origin and mark.head in (None, SEED)
    if is_beginning or _origin(version.showing(SEED)) == origin:
        return
    if version.has_rows() or (mark is not None and mark.head is not None):
        raise InvalidRequest(f"table {place} has rows already: give the fork a table of its own")


def _origin(state: State | None) -> str:
    return state.mark.origin if state is not None and state.mark is not None else ""


def _seed(place: str, theirs: V | None, cut: SinkCut) -> State:
    """Return the state of the origin that shows the cut's head: of its history, or whoever wrote it where the table is
    one pipeline's. Of two that share a table each has checkpoints of these numbers.
    """
    history = theirs.history if theirs is not None else ()
    marks = [(state, state.mark) for state in history if state.mark is not None]
    shown = [(state, mark) for state, mark in marks if mark.head == cut.snapshot.head]
    mine = [state for state, mark in shown if mark.lineage in cut.lineages]
    is_shared = bool(cut.lineages) and len({mark.pipeline for _, mark in marks}) > 1
    found = next(iter(mine or ([] if is_shared else [state for state, _ in shown])), None)
    if theirs is None or found is None or found.mark is None:
        raise Corrupt(
            f"table {place} has no state that shows checkpoint {cut.snapshot.head}: choose a later restore point"
        )
    owner = found.mark.owned_by
    return theirs.as_published(found, lambda one: one.mark is not None and one.mark.owned_by == owner)


def _add_prepared(
    engine: Engine[V], version: V, attempt: AttemptId, cut: SinkCut, source: Backend[V]
) -> None:
    files = [file for batch in cut.batches for file in batch.files]
    for file in files:
        engine.staged.copy_from(source.staged, file)
    engine.staged.flush(files)
    engine.add(version, attempt, cut.batches, SEED)
