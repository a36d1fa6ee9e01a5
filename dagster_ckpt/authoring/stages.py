"""``@spark_source``, ``@spark_stage``, ``@spark_sink``: functions from streaming DataFrames to a streaming DataFrame.

A stage is written once and runs in both kinds of run. Its ``uid`` names its state: keep it when you rename the
function, or list the old one in ``previous_uids``.

Called inside a ``@checkpointed_pipeline`` a stage adds itself to the graph; called with DataFrames (a unit test) it is
the plain function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Unpack

from dagster_ckpt.authoring.own_objects import check_state
from dagster_ckpt.authoring.stage_settings import (
    QUARANTINE_SETTINGS,
    Boundedness,
    OutputMode,
    SinkSettings,
    SourceBatch,
    SourceSettings,
    StageParticipant,
    StageSettings,
    check_values,
    take_participant,
)
from dagster_ckpt.authoring.targets import (
    SinkTarget,
    SourceOrigin,
    TableMode,
    TableTarget,
    listed,
    table_in_folder,
)
from dagster_ckpt.core.config import refuse_unknown
from dagster_ckpt.core.ids import StageUid, stage_uid
from dagster_ckpt.core.paths import local_folder
from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESERVED_NAMES = frozenset({"restore", "complete"})
"""Names of the first and last op of every epoch job."""


class StageRole(StrEnum):
    """Role of a stage in the graph."""

    SOURCE = "source"
    """No input; reads from outside with Spark's own sources."""
    STAGE = "stage"
    """Reads other stages' channel logs and writes its own."""
    SINK = "sink"
    """Reads other stages' channel logs and writes a table."""


@dataclass(frozen=True, slots=True)
class StageOutput:
    """A stage's output while a pipeline is being composed; pass it to the stages that read it."""

    stage: StageDefinition


_composing: ContextVar[dict[StageUid, tuple[StageDefinition, tuple[StageUid, ...]]] | None] = ContextVar(
    "dagster_ckpt_composing", default=None
)


@dataclass(frozen=True, kw_only=True)
class StageDefinition:
    """One stage as its author declared it; made by the three decorators."""

    uid: StageUid
    role: StageRole
    fn: Callable[..., DataFrame]
    inputs: tuple[str, ...] = ()
    """Parameter names that receive upstream DataFrames, in order."""
    takes_spark: bool = False
    takes_context: bool = False
    output_mode: OutputMode = "append"
    table: TableTarget | None = None
    """Of a sink, and of a stage whose participant keeps rows."""
    participant: StageParticipant | None = None
    """Takes the stage's batches on their way to its channel log."""
    to: SinkTarget | None = None
    """Of a sink: where its rows end, as its author says; see ``target``."""
    reads: SourceOrigin | None = None
    """Of a source: where it reads, for questions beside Spark's; None: nobody is asked."""
    partitions: int | None = None
    """Number of state partitions (``spark.sql.shuffle.partitions`` of the query); None: the session's."""
    reads_all: bool = False
    """It must read its inputs from their first row on: as a new stage it is refused behind inputs that go on."""
    title: str = ""
    """How the front end it was made by names it (``flow 'clean' (main.py:7)``); empty: ``stage clean``."""
    no_aggregation: str = ""
    """Sentence of that front end for a query whose changing rows cannot be appended; empty: the library's."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of the session while the query is started; of a chain, those of its last stage."""
    max_entries_per_trigger: int = 0
    """At most this many channel log entries per micro-batch; 0: all that are there."""
    state: type | None = None
    """Class of the object that is the stage's own; None: it has none."""
    chain: bool = True
    """False: the stage is always a query of its own, also with ``operator_chaining`` (Flink: disableChaining)."""
    boundedness: Boundedness = Boundedness.UNBOUNDED
    """Of a source; an epoch run treats both alike."""
    barrier_after: Callable[[SourceBatch], bool] | None = None
    """Of a source: a stream's barriers fall only behind batches for which this is true; None: behind any."""
    is_backlog: Callable[[SourceBatch], bool] | None = None
    """Of a source: true while its newest batch is old data that is caught up with; None: as Spark reports."""
    asset: str = ""
    """Dagster asset that a source reads, or that a sink's table is; empty: none, or ``<pipeline>/<uid>``."""
    made_of: tuple[StageUid, ...] = ()
    """Of a sink: those whose tables its rows come from, for Dagster's lineage."""
    previous_uids: tuple[StageUid, ...] = ()
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    config_schema: Any = None
    required_resource_keys: frozenset[str] = frozenset()

    @property
    def target(self) -> SinkTarget:
        """Where a sink's rows end."""
        return self.to or table_in_folder()

    @property
    def names(self) -> tuple[StageUid, ...]:
        """Uids of the stage, of now first."""
        return (self.uid, *self.previous_uids)

    def with_uid(self, uid: str) -> StageDefinition:
        """Return the same stage under another uid, to use one function twice in a pipeline."""
        name = _checked_uid(uid)
        participant = self.participant and self.participant.of_stage(name, self.previous_uids)
        table = participant.target if participant and self.role is not StageRole.SINK else self.table
        return replace(self, uid=name, participant=participant, table=table)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add the stage to the pipeline being composed, or, given DataFrames, call the function."""
        nodes = _composing.get()
        given = [*args, *kwargs.values()]
        if nodes is not None:
            self._refuse_other_than_outputs(given)
        if nodes is None or any(not isinstance(value, StageOutput) for value in given):
            self._refuse_outputs_outside(given)
            return self.fn(*args, **kwargs)
        return self._compose(nodes, args, kwargs)

    def _refuse_other_than_outputs(self, given: list[Any]) -> None:
        uncalled = next((value.uid for value in given if isinstance(value, StageDefinition)), None)
        if uncalled is not None:
            raise InvalidRequest(
                f"stage {self.uid!r} was given the stage {uncalled!r}, not its output: call it, {uncalled}(...)"
            )
        wrong = [value for value in given if not isinstance(value, StageOutput)]
        if wrong and len(wrong) < len(given):
            raise InvalidRequest(f"stage {self.uid!r} was given {wrong[0]!r}, which is no stage's output")

    def _refuse_outputs_outside(self, given: list[Any]) -> None:
        if any(isinstance(value, StageOutput) for value in given):
            raise InvalidRequest(
                f"stage {self.uid!r} was called with another stage's output outside a @checkpointed_pipeline: "
                "compose stages inside the decorated function"
            )

    def _compose(
        self,
        nodes: dict[StageUid, tuple[StageDefinition, tuple[StageUid, ...]]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> StageOutput:
        if self.uid in nodes:
            raise InvalidRequest(
                f"stage {self.uid!r} is used twice in one pipeline: a uid names the state of one stage. "
                f"Pass its output to several stages, or use {self.uid}.with_uid(...) for a second one"
            )
        given = dict(zip(self.inputs, args, strict=False)) | kwargs
        if len(args) > len(self.inputs) or set(given) != set(self.inputs):
            raise InvalidRequest(
                f"stage {self.uid!r} reads {list(self.inputs) or 'no input'}, but was given "
                f"{len(args)} positional and {sorted(kwargs)} named inputs"
            )
        upstream = tuple(given[name].stage.uid for name in self.inputs)
        if self.role is not StageRole.SOURCE and not upstream:
            raise InvalidRequest(
                f"stage {self.uid!r} has no input: use @spark_source for a stage that reads from outside"
            )
        for value in given.values():
            if value.stage.role is StageRole.SINK:
                raise InvalidRequest(
                    f"stage {self.uid!r} reads the sink {value.stage.uid!r}, which has no output"
                )
        nodes[self.uid] = (self, upstream)
        return StageOutput(self)


def _checked_uid(uid: str) -> StageUid:
    if uid in RESERVED_NAMES:
        raise InvalidRequest(f"{uid!r} names an op of every pipeline's job: give the stage another uid")
    if "." in uid or "-" in uid:
        raise InvalidRequest(f"{uid!r} cannot name a Dagster op: use letters, digits and '_' in a stage uid")
    return stage_uid(uid)


def _boundedness(fn: Callable[..., DataFrame], role: StageRole, value: str) -> Boundedness:
    try:
        chosen = Boundedness(value)
    except ValueError:
        raise InvalidRequest(
            f"source {fn.__name__!r} has boundedness={value!r}: use 'bounded' or 'unbounded'"
        ) from None
    if chosen is Boundedness.BOUNDED and role is not StageRole.SOURCE:
        raise InvalidRequest(f"{fn.__name__!r} is no source: only sources are bounded, stages follow them")
    return chosen


def _target(fn: Callable[..., DataFrame], to: Any) -> SinkTarget | None:
    if to is None or isinstance(to, SinkTarget):
        return to
    raise InvalidRequest(
        f"sink {fn.__name__!r} has to={to!r}: give a target of dagster_ckpt.sinks, such as DeltaTable('orders')"
    )


def _names(fn: Callable[..., DataFrame], setting: str, value: Any) -> tuple[str, ...]:
    return listed(repr(fn.__name__), setting, value)


_FOR_ALL = {
    *("previous_uids", "partitions", "chain", "output_mode", "tags", "config_schema"),
    *("required_resource_keys", "boundedness", "barrier_after", "is_backlog", "state"),
    *QUARANTINE_SETTINGS,
}
_OF_STAGES = {*_FOR_ALL, "max_entries_per_trigger"}
_SETTINGS = {
    StageRole.SOURCE: {*_FOR_ALL, "asset", "reads"},
    StageRole.STAGE: _OF_STAGES,
    StageRole.SINK: {*_OF_STAGES, "table", "key", "to", "asset"},
}
"""What each decorator takes beside ``uid``; where it means nothing it is refused with a sentence of its own."""


def _define(
    fn: Callable[..., DataFrame], role: StageRole, uid: str, settings: dict[str, Any]
) -> StageDefinition:
    refuse_unknown(settings, _SETTINGS[role], of=f"@spark_{role} {fn.__name__!r}")
    names = list(inspect.signature(fn).parameters)
    inputs = tuple(name for name in names if name not in ("spark", "context"))
    if role is StageRole.SOURCE and inputs:
        raise InvalidRequest(
            f"source {fn.__name__!r} takes {list(inputs)}: a source takes only 'spark' and 'context'; "
            "use @spark_stage for a function that reads other stages"
        )
    settings["previous_uids"] = tuple(
        stage_uid(previous) for previous in _names(fn, "previous_uids", settings.get("previous_uids", ()))
    )
    settings["required_resource_keys"] = frozenset(
        _names(fn, "required_resource_keys", settings.get("required_resource_keys", ()))
    )
    check_values(fn, settings)
    if settings.get("state") is not None:
        check_state(fn.__name__, settings["state"])
    if not isinstance(settings.get("chain", True), bool):
        raise InvalidRequest(f"{fn.__name__!r} has chain={settings['chain']!r}: give True or False")
    settings["boundedness"] = _boundedness(fn, role, settings.get("boundedness", Boundedness.UNBOUNDED))
    if not isinstance(settings.get("reads"), SourceOrigin | None):
        raise InvalidRequest(
            f"source {fn.__name__!r} has reads={settings['reads']!r}: give KafkaTopics(...) of dagster_ckpt"
        )
    if settings.get("barrier_after") is not None and role is not StageRole.SOURCE:
        raise InvalidRequest(f"{fn.__name__!r} is no source: only a source decides where barriers fall")
    if settings.get("is_backlog") is not None and role is not StageRole.SOURCE:
        raise InvalidRequest(f"{fn.__name__!r} is no source: only a source has a backlog (`is_backlog`)")
    name = _checked_uid(uid or fn.__name__)
    settings["participant"] = made = take_participant(fn, name, settings)
    if made is not None and role is not StageRole.SINK:
        settings["table"] = made.target
    return StageDefinition(
        uid=name,
        role=role,
        fn=fn,
        inputs=inputs,
        takes_spark="spark" in names,
        takes_context="context" in names,
        description=inspect.getdoc(fn) or "",
        **settings,
    )


def spark_source(
    fn: Callable[..., DataFrame] | None = None, /, *, uid: str = "", **settings: Unpack[SourceSettings]
) -> Any:
    """Make a function ``(spark[, context]) -> streaming DataFrame`` a source.

    Args:
        uid: stable name of its state; default: the function's name.
        settings: ``previous_uids``, ``partitions``, ``tags``, ``config_schema``, ``required_resource_keys``;
            ``state=Class``: objects of the stage's own (docs/how-to/hooks.md);
            ``chain=False``: a query of its own; ``asset="raw/orders"``: the Dagster asset it reads, upstream of
            the tables; ``boundedness="bounded"``: its data ends; ``barrier_after`` (SourceBatch -> bool): where a
            stream's checkpoints fall, which wait for such a batch within their timeout;
            ``is_backlog`` (SourceBatch -> bool): when ``interval_during_backlog`` counts;
            ``reads=KafkaTopics("broker:9092")``: where it reads, so that a snapshot whose records are gone is told;
            ``expect`` and its limits as for ``spark_stage``; ``on_error="quarantine"``: rows that Spark's reader
            cannot parse, told by its column ``_corrupt_record``, go to the quarantine.
    """

    def wrap(function: Callable[..., DataFrame]) -> StageDefinition:
        return _define(function, StageRole.SOURCE, uid, dict(settings))

    return wrap if fn is None else wrap(fn)


def spark_stage(
    fn: Callable[..., DataFrame] | None = None,
    /,
    *,
    uid: str = "",
    output_mode: OutputMode = "append",
    **settings: Unpack[StageSettings],
) -> Any:
    """Make a function ``(input, …[, spark, context]) -> streaming DataFrame`` a stage; parameters name its inputs.

    Args:
        uid: stable name of its state; default: the function's name.
        output_mode: Spark's output mode of the query; ``update`` and ``complete`` pass changed (all) result rows on.
        settings: as for ``spark_source``, and ``max_entries_per_trigger``; ``expect={"amount > 0": "quarantine"}``:
            SQL conditions on the rows the stage returns, each with ``warn``, ``drop``, ``quarantine`` or ``fail``;
            ``at_most="1 %"`` (or a number): rows of one checkpoint that may break one; more turn its asset check red,
            with ``beyond="fail"`` the checkpoint fails; ``late="keep"``: rows that its watermark drops go to its
            quarantine; ``on_error="quarantine"``: so do rows that cannot be processed, or that the tables behind the
            stage cannot hold, and the others go on; ``quarantine="orders"``: the table's name below ``quarantine/``,
            default: its first uid; ``quarantine_days=30``: older rows leave it with a checkpoint that brings some.
    """

    def wrap(function: Callable[..., DataFrame]) -> StageDefinition:
        return _define(function, StageRole.STAGE, uid, dict(settings, output_mode=output_mode))

    return wrap if fn is None else wrap(fn)


def spark_sink(
    fn: Callable[..., DataFrame] | None = None,
    /,
    *,
    uid: str = "",
    table: str = "",
    key: tuple[str, ...] | list[str] = (),
    to: SinkTarget | None = None,
    output_mode: OutputMode | None = None,
    **settings: Unpack[SinkSettings],
) -> Any:
    """Make a function ``(input, …) -> streaming DataFrame`` a sink: its rows become visible with their checkpoint.

    Args:
        uid: stable name of its state; default: the function's name.
        table: folder below the resource's ``table_dir``, or an absolute path; default: the uid.
        key: key columns: the table holds one row per key, the latest (``output_mode`` update by default); without,
            rows are appended. Rows of one key in several files of a micro-batch have no order: aggregate them.
        to: where the rows end: a target of ``dagster_ckpt.sinks``; default: a ``DeltaTable`` in the folder ``table``.
        output_mode: Spark's output mode; default ``append``, with a key ``update``.
        settings: as for ``spark_stage``, and ``asset="lake/orders"``: the table's key in Dagster, by default
            ``<pipeline>/<uid>``. With ``expect``, ``late`` or ``on_error`` a stage ``<uid>_rows`` judges the rows.
    """

    def wrap(function: Callable[..., DataFrame]) -> StageDefinition:
        mode = TableMode.UPSERT if key else TableMode.APPEND
        if mode is TableMode.APPEND and output_mode not in (None, "append"):
            raise InvalidRequest(
                f"sink {function.__name__!r} has output_mode={output_mode!r} but no key: rows that change need "
                "key=[...], so that the table can hold one row per key"
            )
        name = uid or function.__name__
        folder = local_folder(table or name, setting=f"table {table!r} of sink {name!r}")
        target = TableTarget(name=folder, mode=mode, key=_names(function, "key", key))
        chosen = output_mode or ("update" if key else "append")
        given = dict(settings, table=target, to=_target(function, to), output_mode=chosen)
        return _define(function, StageRole.SINK, uid, given)

    return wrap if fn is None else wrap(fn)
