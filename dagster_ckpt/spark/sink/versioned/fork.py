"""A table that begins with exactly the rows of a cut of another one, which is only read."""

from __future__ import annotations

from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.sink.port import AttemptId, SinkCut
from dagster_ckpt.spark.sink.positions import SEED
from dagster_ckpt.spark.sink.versioned.backend import Backend, Change, OriginState, Raced, V
from dagster_ckpt.spark.sink.versioned.engine import Engine
from dagster_ckpt.spark.sink.versioned.marks import refuse_other_key
from dagster_ckpt.spark.sink.versioned.roll_back import RollBackPath, go, shown_state, way_to_state
from dagster_ckpt.spark.sink.versioned.version import State


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
    if found is None:
        raise Corrupt(
            f"table {place} has no state that shows checkpoint {cut.snapshot.head}: choose a later restore point"
        )
    return found


def _add_prepared(
    engine: Engine[V], version: V, attempt: AttemptId, cut: SinkCut, source: Backend[V]
) -> None:
    files = [file for batch in cut.batches for file in batch.files]
    for file in files:
        engine.staged.copy_from(source.staged, file)
    engine.staged.flush(files)
    engine.add(version, attempt, cut.batches, SEED)
