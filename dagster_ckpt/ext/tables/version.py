"""A table as it was read: whose rows it shows, what it has seen of us, what others committed in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, takewhile
from typing import Any, ClassVar

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.tables.marks import NOTHING_SHOWN, Mark, SinkNames
from dagster_ckpt.spark.sink.port import AttemptId, SinkPosition
from dagster_ckpt.spark.sink.rows import PlainFiles

_STEPS = (1, 32, None)
"""So many states are read at first: the newest is ours nearly always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One state of the table that its metadata tells of: a version, a snapshot."""

    number: int
    order: int
    """Grows with each commit."""
    parent: int | None
    """State whose rows it was made of; None: it is the first, or nobody can say."""
    timestamp_ms: int
    did: str
    """What the commit was, for people."""
    changes_rows: bool
    """False where it only arranged the same rows otherwise."""
    keeps_rows: bool
    """Every row of its parent is still there, as it was: rows were added, or arranged otherwise."""
    mark: Mark | None
    """Whoever's; None: the commit was not made by a sink."""
    brings: int | None = None
    """Older state whose rows it brought back, where that is not its parent."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """Findings in the newest states."""

    owners: frozenset[str]
    newest: State | None = None
    """Newest of ours, whether the table shows it or was put back."""
    shown: State | None = None
    """Newest of ours that readers see."""
    theirs: State | None = None
    """Others' newest change of rows above it."""


@dataclass(frozen=True)
class Version(ABC):
    """One state of a table's metadata."""

    place: str
    names: SinkNames

    word: ClassVar[str]
    """What the format calls a state."""
    expires: ClassVar[str]
    """Why a state is there no more, for people."""
    aside_word: ClassVar[str]
    """What rows that left can be read at."""
    is_line: ClassVar[bool]
    """Each state was made on top of the one before it, or says which one it brought back."""

    @property
    @abstractmethod
    def number(self) -> int | None:
        """The state that readers see; None: there is none yet."""

    @abstractmethod
    def states(self, limit: int | None) -> Sequence[State]:
        """Return the newest states, at most ``limit``, newest first."""

    @abstractmethod
    def has_rows(self) -> bool:
        """Tell whether readers find any row."""

    @abstractmethod
    def aside(self, attempt: AttemptId) -> str:
        """Return at what the rows that are shown now can be read once they have left."""

    def rows_at(self, number: int) -> int | None:
        """Return how many rows a state has; None: its metadata does not tell. Raises Corrupt where files are gone."""
        return None

    def files_at(self, number: int) -> PlainFiles | None:
        """Return the Parquet files that are exactly the rows of a state; None: a reader of the format has to tell."""
        return None

    def kept_until(self, state: State) -> float | None:
        """Return when others' clean-up may take a state; None: not, as far as the table says."""
        return None

    def let_go(self) -> None:  # noqa: B027  # a format need not have it
        """Let the next caller who reads on begin here: this one has done."""

    def is_forgotten(self, lineage: str) -> bool:
        """Tell whether a history has published here, though no state that is left says what."""
        return False

    # --- whose rows ---------------------------------------------------------------------------------------------

    @cached_property
    def history(self) -> Sequence[State]:
        """All states that the metadata tells of, newest first."""
        return self.states(None)

    @cached_property
    def _by_number(self) -> dict[int, State]:
        return {state.number: state for state in self.history}

    def state(self, number: int | None) -> State | None:
        """Return a state; None: the metadata does not tell of it."""
        return None if number is None else self._by_number.get(number)

    def ancestors(self, number: int | None) -> Iterator[State]:
        """Yield a state and those it was made of, newest first, as far as the metadata tells."""
        return _chain(self._by_number, number)

    def line(self) -> Iterator[State]:
        """Yield the states of ours that the rows which are shown come from, newest first, without those that left."""
        state = self.shown
        while state is not None:
            if state.mark is not None and self.is_ours(state):
                if state.mark.head is None:
                    return
                yield state
            state = self.state(state.parent if state.brings is None else state.brings)

    def checkpoints_of(self, batches: Iterable[int]) -> dict[int, int]:
        """Return the checkpoint that published each batch's rows; those are left out whose publish is forgotten."""
        line = list(self.line())
        marks = [
            state.mark for state in line if state.mark is not None and state.mark.through_batch is not None
        ]
        below = list(self.ancestors(line[-1].number)) if line else []
        is_whole = any(one.parent is None or (one.mark and one.mark.head is None) for one in below)
        found = {}
        for batch in batches:
            since = list(takewhile(lambda mark: (mark.through_batch or 0) >= batch, marks))  # noqa: B023
            if since and since[-1].head and (is_whole or len(since) < len(marks)):
                found[batch] = since[-1].head
        return found

    def is_ours(self, state: State) -> bool:
        """Tell whether this sink made a state, under whichever name."""
        return _is_ours(state, self._looked.owners, self.names)

    @cached_property
    def _looked(self) -> _Looked:
        for limit in _STEPS:
            states = self.history if limit is None else self.states(limit)
            is_whole = limit is None or len(states) < limit
            found = self._look(states, is_whole=is_whole)
            if is_whole or (found.newest is not None and found.shown is not None):
                return found
        raise AssertionError("the last step reads all")

    def _look(self, states: Sequence[State], *, is_whole: bool) -> _Looked:
        owners = self.names.owners(state.mark for state in states if state.mark is not None)
        newest = next((state for state in states if _is_ours(state, owners, self.names)), None)
        base = newest.mark.base if newest is not None and newest.mark is not None else None
        theirs = oldest = None
        for state in _chain({state.number: state for state in states}, self.number):
            if _is_ours(state, owners, self.names):
                return _Looked(owners, newest, state, theirs)
            if base is not None and state.number == base:
                return _Looked(owners, newest, None, theirs)
            if theirs is None and state.changes_rows:
                theirs = state
            oldest = state
        # Where those in between were expired, one that is kept and older than all that are left is still below them.
        has_gap = is_whole and not self.is_line and oldest is not None and oldest.parent is not None
        if has_gap and newest is not None and oldest is not None and newest.order < oldest.order:
            return _Looked(owners, newest, newest, theirs or oldest)
        return _Looked(owners, newest, None, theirs)

    @cached_property
    def mark(self) -> Mark | None:
        """Newest mark of this sink in the table, and the rows it shows; None: there is none."""
        found = self._looked
        newest = found.newest.mark if found.newest is not None else None
        shown = found.shown.mark if found.shown is not None else None
        if newest is None:
            return None
        return newest.model_copy(update=dict(NOTHING_SHOWN) if shown is None else shown.shown)

    @property
    def shown(self) -> State | None:
        """Newest state of this sink that readers see, whatever others committed since."""
        return self._looked.shown

    @property
    def position(self) -> SinkPosition | None:
        """The same in the port's words."""
        return None if self.mark is None else replace(self.mark.position(), others=self.theirs)

    @property
    def owner(self) -> str:
        """Whose rows the sink's are."""
        return self.names.label if self.mark is None else self.mark.owned_by

    @property
    def theirs(self) -> int | None:
        """The newest state since our first one by which somebody else changed rows."""
        if self.mark is None:
            return None
        above = self._looked.theirs
        return above.number if above is not None else self.mark.theirs

    def why_put_back(self) -> str:
        """Return why what readers see cannot be gone on from; empty: it can.

        Somebody else put the table back to before a restore of ours: since that batches have the numbers of those that
        are shown now, and would pass for them.
        """
        state, shown = self._looked.newest, self._looked.shown
        if state is None or shown is None or shown.mark is None or shown.mark.head is None:
            return ""
        newest, through = state.number, _last_batch(shown.mark)
        while state is not None:
            if state.number == shown.number:
                return ""
            if state.mark is not None and self.is_ours(state) and _last_batch(state.mark) < through:
                break
            below = state.parent if state.brings is None else state.brings
            if below is None:
                break
            state = self.state(below)
        else:
            return ""  # those in between were expired
        return (
            f"table {self.place} was put back by somebody else to {self.word} {shown.number}, of before a restore of "
            f"this pipeline: put it back to {self.word} {newest}, or restore a snapshot (restore_from)"
        )

    def next_mark(self, attempt: AttemptId, **changes: Any) -> Mark:
        """Return the mark of a commit by this attempt on top of this version."""
        said: dict[str, Any] = {"pipeline": self.names.pipeline, "sink": self.names.uid}
        said["lineage"] = attempt.lineage
        mark = (self.mark or Mark(**said, epoch=0, base=self.number)).lasting
        owner = "" if self.owner == self.names.label else self.owner
        mine = {**said, "owner": owner, "epoch": int(attempt.epoch), "theirs": self.theirs}
        return mark.model_copy(update=mine | changes)

    def showing(self, head: int) -> State | None:
        """Return the newest state of ours that shows checkpoint ``head`` as it was published.

        Of those that the table is made of, where one is left; else on whichever branch.
        """
        states = chain(self.ancestors(self.number), self.history)
        newest = next((state for state in states if self._shows(state, head)), None)
        return None if newest is None else self.as_published(newest, self.is_ours)

    def as_published(self, newest: State, is_of_sink: Callable[[State], bool]) -> State:
        """Return a sink's newest state that shows the checkpoint of ``newest`` as it was published.

        Not one above a commit by which somebody else has changed these rows, or has added others that are gone again:
        an attempt that takes over says again what the table shows.
        """
        head = None if newest.mark is None else newest.mark.head
        is_read = any(state.number == newest.number for state in self.ancestors(self.number))
        found, is_touched = newest, False
        for state in self.ancestors(newest.number):
            if state.mark is not None and is_of_sink(state):
                if state.mark.head != head:
                    break
                found, is_touched = (state, False) if is_touched else (found, False)
            elif not state.keeps_rows or (state.changes_rows and not is_read):
                is_touched = True
        return found

    def _shows(self, state: State, head: int) -> bool:
        return state.mark is not None and state.mark.head == head and self.is_ours(state)

    def is_untouched(self, found: State) -> bool:
        """Tell whether readers see the rows of a state of ours as they were, whatever was added to them."""
        for state in self.ancestors(self.number):
            if state.number == found.number:
                return True
            if not (state.keeps_rows or self.is_ours(state)):
                return False
        return not self.is_line  # those in between were expired

    def foreign(self) -> Mark | None:
        """Return the mark of rows that readers see of another sink, where they see none of ours; None: there are none.

        Those of pipelines that share the table are no reason.
        """
        if self.mark is not None and self.mark.head is not None:
            return None
        told: set[str] = set()
        for state in self.ancestors(self.number):
            mark = state.mark
            if mark is None or self.is_ours(state) or mark.owned_by in told:
                continue
            told.add(mark.owned_by)
            if mark.head is not None and mark.pipeline not in self.names.shared_with:
                return mark
        return None

    def others_over(self, found: State | None) -> tuple[int, str] | None:
        """Return the number of a commit by which somebody else changed rows since a state (None: ever), and what it
        was: going back to that state would undo it. None: there is none.
        """
        below = {state.number for state in self.ancestors(found.number)} if found is not None else set()
        over = [s for s in self.ancestors(self.number) if s.number not in below and s.changes_rows]
        theirs = [state for state in over if not self.is_ours(state)]
        if theirs:
            return theirs[-1].number, theirs[-1].did
        known = self.theirs
        at = (
            found.mark.theirs
            if found is not None and found.mark is not None and self.is_ours(found)
            else None
        )
        if known is None or known in below or at == known:
            return None
        state = self.state(known)
        return known, state.did if state is not None else "expired"


def refuse_gone(place: str, added: Iterable[str], had: Collection[str]) -> None:
    """Raise InvalidRequest for a column that the sink's rows in a table had, and which is to be made again."""
    if gone := next((name for name in added if name in had), None):
        raise InvalidRequest(
            f"column {gone!r}, which earlier rows of the sink have, is gone from table {place}: it was renamed or "
            "dropped, and would be made again without their values. Give it its name again, add it, or write to "
            "another table"
        )


def _last_batch(mark: Mark) -> int:
    return -1 if mark.through_batch is None else mark.through_batch


def _chain(states: dict[int, State], number: int | None) -> Iterator[State]:
    while number is not None and (state := states.get(number)) is not None:
        yield state
        number = state.parent


def _is_ours(state: State, owners: frozenset[str], names: SinkNames) -> bool:
    mark = state.mark
    return mark is not None and (mark.label in names.labels or mark.owned_by in owners)
