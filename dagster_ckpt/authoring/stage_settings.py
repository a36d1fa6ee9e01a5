"""Settings of stages as their decorators take them, typed, so that an editor completes them; participants they open.

A participant is data, as a sink's target is: it is opened for each attempt by the class it names. It sees a stage's
micro-batches on their way to the channel log, or publishes. Settings of ``@spark_stage`` that make one belong to the
extension of that name (entry points ``dagster_ckpt.participants``).
Derived tables are no part of a checkpoint, because they are a function of tables that are: a restore makes them again.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from itertools import pairwise
from typing import Any, ClassVar, Literal, Protocol, TypedDict, get_args

from dagster_ckpt.authoring.targets import SinkTarget, SourceOrigin, TableMode, TableTarget, table_in_folder
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.extensions import PARTICIPANTS, extension

QUARANTINE_SETTINGS = frozenset(
    {"expect", "at_most", "beyond", "late", "on_error", "quarantine", "quarantine_days"}
)
"""Settings of a decorator that are the participant's."""


class StageParticipant:
    """Base of participants; a frozen dataclass, so that definitions can be compared and printed."""

    opened_by: ClassVar[str] = ""
    """``module:class`` of what writes the batches; called with the participant and a ``ParticipantContext``."""

    @property
    def judges(self) -> Sequence[str]:
        """Conditions that it asks of rows, as its counts name them."""
        return ()

    @property
    def limit(self) -> str:
        """Rows of one checkpoint that may break each, ``1 %`` or a number; empty: any."""
        return ""

    @property
    def fails(self) -> bool:
        """True where a checkpoint with more of them fails."""
        return False

    @property
    def table(self) -> str:
        """Table for the rows it keeps, named as a sink's is; empty: it keeps none."""
        return ""

    @property
    def key(self) -> tuple[str, ...]:
        """Columns of that table whose values a newer row replaces an older one by."""
        return ()

    @property
    def days(self) -> int:
        """Days after which rows leave that table; 0: they stay."""
        return 0

    @property
    def target(self) -> TableTarget | None:
        """Table for the rows it keeps, as a stage's definition has it; None: it keeps none."""
        mode = TableMode.UPSERT if self.key else TableMode.APPEND
        return (
            TableTarget(name=self.table, mode=mode, key=self.key, keep_days=self.days) if self.table else None
        )

    @property
    def rereads(self) -> bool:
        """True where it reads the stage's input a second time, which has to be in a channel then."""
        return False

    def of_stage(self, uid: str, former: Sequence[str]) -> StageParticipant:
        """Return the same participant for a stage of this uid, and of these former ones, the newest first."""
        raise NotImplementedError

    def open(self, context: Any) -> Any:
        """Return the writer of the stage's batches. Nothing outside is changed by opening it."""
        module, _, name = self.opened_by.partition(":")
        return getattr(import_module(module), name)(self, context)


def take_participant(fn: Callable[..., Any], uid: str, settings: dict[str, Any]) -> StageParticipant | None:
    """Take a participant's settings out of a stage's, and return it; None: none is asked for.

    Raises InvalidRequest for impossible ones.
    """
    given = {name: settings.pop(name) for name in sorted(QUARANTINE_SETTINGS & settings.keys())}
    if given.get("on_error") == "fail":  # as without it
        del given["on_error"]
    if not given:
        return None
    make = extension(PARTICIPANTS, "quarantine")
    made: StageParticipant = make(fn, uid, settings.get("output_mode", "append"), given)
    return made.of_stage(uid, settings.get("previous_uids", ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTable:
    """A table whose rows are replaced whole, in one commit."""

    uid: StageUid
    reads: tuple[StageUid, ...]
    """Sinks, and derived tables before it."""
    description: str = ""


class PublishParticipant(Protocol):
    """Participant in publishes: it makes what follows from tables that have changed. An extension's."""

    @property
    def is_forked(self) -> bool:
        """Whether a fork of the pipeline has it too."""

    def open(self, tables: Any) -> Any:
        """Return, for one attempt, a function ``(checkpoint, reporter, *, only_existing)`` called after each publish.

        ``tables`` are the attempt's (``spark.attempt.sinks.PipelineSinks``); ``only_existing``: nothing begins with it.
        """


def derived_target() -> SinkTarget:
    """Return the target of derived tables, in folders of their uids.

    Rows of before are kept for readers that are at work, and no restore needs them.
    """
    return table_in_folder(properties={"delta.deletedFileRetentionDuration": "interval 1 hour"})


OutputMode = Literal["append", "update", "complete"]


class Boundedness(StrEnum):
    """Boundedness of a source: whether its data ends (Flink: Boundedness)."""

    UNBOUNDED = "unbounded"
    """There may always be more."""
    BOUNDED = "bounded"
    """What is there when the run starts is all: a streaming run ends when such sources are exhausted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBatch:
    """A micro-batch of a source that is written; the next has not begun."""

    batch_id: int
    offsets: dict[str, Any]
    """End offset per Spark source (its number, or its name), parsed from Spark's JSON."""
    files: tuple[str, ...] = ()
    """Paths a file source has read in this batch, in the order of its log; empty for other sources."""


class _ForAll(TypedDict, total=False):
    """Settings of every stage."""

    previous_uids: Sequence[str]
    partitions: int
    chain: bool
    tags: Mapping[str, str]
    state: type
    config_schema: Any
    required_resource_keys: Iterable[str]


class _Judged(_ForAll, total=False):
    """Settings of what judges rows."""

    expect: Mapping[str, Literal["warn", "drop", "quarantine", "fail"]]
    at_most: str | int
    beyond: Literal["warn", "fail"]
    late: Literal["count", "keep"]
    on_error: Literal["fail", "quarantine"]
    quarantine: str
    quarantine_days: int


class StageSettings(_Judged, total=False):
    """Further settings of ``@spark_stage``."""

    max_entries_per_trigger: int


class SinkSettings(_Judged, total=False):
    """Further settings of ``@spark_sink``."""

    max_entries_per_trigger: int
    asset: str


class SourceSettings(_Judged, total=False):
    """Settings of ``@spark_source``."""

    output_mode: OutputMode
    boundedness: Literal["bounded", "unbounded"]
    barrier_after: Callable[[SourceBatch], bool]
    is_backlog: Callable[[SourceBatch], bool]
    asset: str
    reads: SourceOrigin


def check_values(fn: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an output mode or a number that cannot be, and a function that returns nothing."""
    _refuse_no_return(fn)
    mode, modes = settings.get("output_mode", "append"), get_args(OutputMode)
    if mode not in modes:
        raise InvalidRequest(
            f"{fn.__name__!r} has output_mode={mode!r}: give {', '.join(modes[:-1])} or {modes[-1]}"
        )
    for name, least in (("partitions", 1), ("max_entries_per_trigger", 0), ("quarantine_days", 1)):
        value = settings.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise InvalidRequest(f"{fn.__name__!r} has {name}={value!r}: give a number, at least {least}")


def _refuse_no_return(fn: Callable[..., Any]) -> None:
    """Raise InvalidRequest for a function that does something and returns nothing: its rows would go nowhere."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return
    steps = list(dis.get_instructions(code))
    returns = [(before, step) for before, step in pairwise(steps) if "RETURN" in step.opname]
    of_nothing = [
        step
        for before, step in returns
        if (step.opname == "RETURN_CONST" and step.argval is None)
        or (step.opname == "RETURN_VALUE" and before.opname == "LOAD_CONST" and before.argval is None)
    ]
    is_work = any(step.opname.startswith("CALL") for step in steps)  # a stub calls nothing
    returned = [step for _, step in returns if not step.opname.startswith("RETURN_GENERATOR")]
    if is_work and returned and len(of_nothing) == len(returned):
        raise InvalidRequest(
            f"{fn.__name__!r} returns nothing: end it with `return` and the DataFrame that it has made"
        )
