"""Drawn pipelines and their stories: a seed makes a graph, its sinks, types, settings and what happens to it.

Operators are drawn only where Spark's answer does not depend on batches; a ``Shape`` of each stream says where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Any

from tests.attack.outsides import Kind
from tests.fuzz.values import IN_FOLDERS, KEY_TYPES, VALUE_TYPES, fits


class Op(StrEnum):
    """Operator of a stage."""

    SOURCE = "source"
    MAP = "map"
    FILTER = "filter"
    SUM = "sum"
    """The sum for each key so far, in update mode."""
    WINDOW = "window"
    """The sum for each window and key so far, in update mode."""
    CLOSED = "closed"
    """The same once the watermark has closed the window, in append mode."""
    DEDUP = "dedup"
    DISTINCT = "distinct"
    JOIN = "join"
    UNION = "union"


@dataclass(frozen=True)
class Shape:
    """Shape of a stream: what may be asked of it, whatever the batches are."""

    keyed: tuple[str, ...] = ()
    """Its rows replace one another by these columns; empty: they are added."""
    unique: bool = True
    """No two rows have the same ``n``."""
    pure: bool = True
    """Its rows are a source's, unchanged: rows of one ``n`` are equal."""
    ordered: bool = True
    """It has the rows of one source in their order, so that none is late."""
    joined: bool = False
    sources: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Judges:
    """What a stage or sink asks of its rows."""

    expect: tuple[tuple[str, str], ...] = ()
    """Conditions of ``CONDITIONS``, with what becomes of a row that breaks one."""
    on_error: bool = False
    name: str = ""
    """Of its quarantine; empty: that of its first uid."""

    @property
    def keeps(self) -> bool:
        """It has a quarantine."""
        return self.on_error or any(action == "quarantine" for _, action in self.expect)


NO_JUDGES = Judges()


@dataclass(frozen=True)
class Stage:
    """A stage, or a source."""

    uid: str
    op: Op
    inputs: tuple[str, ...] = ()
    number: int = 1
    """Of a map what it adds, of a filter whose multiples go; it may change."""
    chain: bool = True
    at_once: int = 0
    """Files or entries of a micro-batch; 0: all there are."""
    partitions: int | None = None
    previous: tuple[str, ...] = ()
    judges: Judges = NO_JUDGES


@dataclass(frozen=True)
class Output:
    """A sink."""

    uid: str
    kind: Kind
    input: str
    key: tuple[str, ...] = ()
    sums: str = ""
    """Output mode of an aggregation by ``k`` in the sink's own query; empty: there is none."""
    place: str = ""
    partition_by: tuple[str, ...] = ()
    previous: tuple[str, ...] = ()
    judges: Judges = NO_JUDGES
    is_gone: bool = False
    """Its author has taken it out: its table is nobody's."""


class What(StrEnum):
    """Kind of a step."""

    EPOCH = "epoch"
    CRASH = "crash"
    SAVEPOINT = "savepoint"
    RESTORE = "restore"
    CRASHED_RESTORE = "crashed restore"
    FORK = "fork"
    RENAME = "rename"
    CHANGE = "change"
    PARTITIONS = "partitions"
    SETTING = "setting"
    OTHERS = "others"
    JUDGE = "judge"
    """Conditions are taken up, given up, or others."""
    REQUEUE = "requeue"
    LAYOUT = "layout"
    """A stage gets a query of its own, or may go with its reader."""
    SINK = "sink"
    """A sink is added, taken out, or has another target."""
    STREAM = "stream"
    CRASHED_STREAM = "crashed stream"
    FULL_DISK = "full disk"
    CLOCK = "clock"
    """A run on a machine whose clock is an hour ahead or behind."""


@dataclass(frozen=True)
class Step:
    """One step of a story; what it draws when it is played comes of its salt alone."""

    what: What
    salt: int


@dataclass(frozen=True)
class Drawn:
    """Everything that a seed says."""

    seed: int
    stages: tuple[Stage, ...]
    outputs: tuple[Output, ...]
    key_type: str
    value_type: str
    settings: Mapping[str, object]
    conf: Mapping[str, str]
    steps: tuple[Step, ...] = ()
    names: tuple[str, ...] = ("drawn",)
    """Of the pipeline, its own first and then those it had."""
    shapes: Mapping[str, Shape] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: k {self.key_type}, x {self.value_type}, {dict(self.settings)}, {dict(self.conf)}"
        ]
        lines += [f"    {one}" for one in (*self.stages, *self.outputs)]
        return "\n".join([*lines, "    " + ", ".join(f"{one.what}:{one.salt}" for one in self.steps)])

    def without(self, *steps: Step) -> Drawn:
        """Return the same without some of its steps."""
        return replace(self, steps=tuple(one for one in self.steps if one not in steps))

    @property
    def sinks(self) -> list[tuple[int, Output]]:
        """The sinks that there are, with the number of their tables."""
        return [(number, one) for number, one in enumerate(self.outputs) if not one.is_gone]

    def with_stage(self, uid: str, /, **changes: object) -> Drawn:
        """Return the same with one stage changed; of a new ``uid`` its readers know."""
        new = str(changes.get("uid", uid))
        stages = tuple(
            replace(
                replace(one, **changes) if one.uid == uid else one,  # type: ignore[arg-type]
                inputs=tuple(new if name == uid else name for name in one.inputs),
            )
            for one in self.stages
        )
        outputs = tuple(replace(one, input=new) if one.input == uid else one for one in self.outputs)
        shapes = {new if name == uid else name: shape for name, shape in self.shapes.items()}
        return replace(self, stages=stages, outputs=outputs, shapes=shapes)


SHUFFLES = ("1", "2", "3", "5")
CONF = {
    "spark.sql.shuffle.partitions": SHUFFLES,
    "spark.sql.parquet.outputTimestampType": ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"),
    "spark.sql.parquet.writeLegacyFormat": ("true", "false"),
    "spark.sql.files.maxRecordsPerFile": ("0", "1", "2"),
    "spark.sql.files.maxPartitionBytes": ("128MB", "64"),
    "spark.sql.ansi.enabled": ("true", "false"),
    "spark.sql.caseSensitive": ("true", "false"),
    "spark.sql.codegen.wholeStage": ("true", "false"),
    "spark.sql.execution.arrow.maxRecordsPerBatch": ("10000", "1"),
    "spark.sql.session.timeZone": ("UTC", "America/New_York", "Asia/Kathmandu"),
    "spark.sql.parquet.compression.codec": ("snappy", "none", "gzip"),
    "spark.sql.timestampType": ("TIMESTAMP_LTZ", "TIMESTAMP_NTZ"),
    "spark.sql.optimizer.excludedRules": ("", "org.apache.spark.sql.catalyst.optimizer.ColumnPruning"),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": ("true", "false"),
}
"""Settings of a session that an author may have, and must not change a row."""


CONDITIONS: dict[str, Callable[[tuple[Any, ...]], bool]] = {
    "pmod(n, 3) <> 0": lambda row: row[0] % 3 != 0,
    "v > -20": lambda row: row[2] > -20,
    "k IS NOT NULL": lambda row: row[1] is not None,
    "pmod(v, 4) <> 1 OR k IS NULL": lambda row: row[2] % 4 != 1 or row[1] is None,
    "n >= 0": lambda row: row[0] >= 0,
}
"""Conditions in SQL, and in Python, of a row."""
ACTIONS = ("warn", "drop", "quarantine", "quarantine")
FAILS_AT = 5
"""A map that keeps what fails fails for every such ``n``."""


def judges(dice: Random, *, may_fail: bool) -> Judges:
    """Draw what is asked of rows; ``may_fail``: rows are processed one by one."""
    names = dice.sample(sorted(CONDITIONS), k=dice.randint(0, 2))
    expect = tuple((name, dice.choice(ACTIONS)) for name in names)
    return Judges(expect, on_error=may_fail and dice.random() < 0.4)


def may_judge(drawn: Drawn, one: Stage | Output) -> bool:
    """Tell whether the answer is one: its rows are added, and none of them comes again with another value."""
    if isinstance(one, Output):
        return not one.sums and not drawn.shapes[one.input].keyed
    return not drawn.shapes[one.uid].keyed


def may_fail(one: Stage | Output) -> bool:
    """Tell whether rows that fail can be told one by one."""
    return isinstance(one, Output) or one.op in (Op.MAP, Op.FILTER)


def draw(seed: int) -> Drawn:
    """Return what a seed says."""
    dice = Random(f"fuzz {seed}")
    stages, shapes = _stages(dice)
    kinds = dice.choices(
        (Kind.OWN, Kind.ICEBERG, Kind.SQL, Kind.FUNCTION), (5, 2, 2, 1), k=dice.randint(1, 3)
    )
    key_type = dice.choice([one for one in KEY_TYPES if all(fits(one, kind) for kind in kinds)])
    outputs = _outputs(dice, stages, shapes, kinds, ("v", "k") if key_type in IN_FOLDERS else ("v",))
    drawn = Drawn(
        seed=seed,
        stages=_read_by(outputs, stages),
        outputs=outputs,
        key_type=key_type,
        value_type=dice.choice(VALUE_TYPES),
        settings=_settings(dice),
        conf={name: dice.choice(CONF[name]) for name in dice.sample(sorted(CONF), k=dice.randint(0, 3))},
        steps=_story(dice),
        shapes=shapes,
    )
    return _judging(drawn, dice) if dice.random() < 0.6 else drawn


def _judging(drawn: Drawn, dice: Random) -> Drawn:
    def judging(one: Any) -> Any:
        if dice.random() < 0.3 and may_judge(drawn, one):
            return replace(one, judges=judges(dice, may_fail=may_fail(one)))
        return one

    return replace(
        drawn, stages=tuple(map(judging, drawn.stages)), outputs=tuple(map(judging, drawn.outputs))
    )


def _stages(dice: Random) -> tuple[list[Stage], dict[str, Shape]]:
    stages = [
        Stage(f"source_{i}", Op.SOURCE, at_once=dice.choice((0, 1, 2))) for i in range(dice.choice((1, 1, 2)))
    ]
    shapes = {one.uid: Shape(sources=frozenset({one.uid})) for one in stages}
    wanted = len(stages) + max(dice.randint(0, 8 - len(stages)) for _ in range(2))
    while len(stages) < wanted:
        op = dice.choice([one for one in Op if one is not Op.SOURCE])
        among = [
            one.uid for one in (*stages[-4:], *[stages[-1]] * 4)
        ]  # most read the newest: graphs grow deep
        given = tuple(dice.choice(among) for _ in range(2 if op in (Op.JOIN, Op.UNION) else 1))
        if op is Op.UNION and len(set(given)) == 1:
            continue
        shape = shape_behind(op, [shapes[uid] for uid in given])
        if shape is None:
            continue
        one = Stage(
            f"{op}_{len(stages)}",
            op,
            given,
            number=dice.randint(2, 5),
            chain=dice.random() < 0.7,
            at_once=dice.choice((0, 0, 0, 1, 2)),
            partitions=dice.choice((None, None, 1, 3)) if op in STATEFUL else None,
        )
        stages.append(one)
        shapes[one.uid] = shape
    return stages, shapes


STATEFUL = (Op.SUM, Op.WINDOW, Op.CLOSED, Op.DEDUP, Op.DISTINCT, Op.JOIN)


def shape_behind(op: Op, inputs: Sequence[Shape]) -> Shape | None:  # noqa: PLR0911 - a flat table
    """Return the shape of what an operator makes of its inputs; None where that would depend on batches."""
    first, joined = inputs[0], any(one.joined for one in inputs)
    sources = frozenset[str]().union(*(one.sources for one in inputs))
    if op is Op.MAP:
        return replace(first, pure=False)
    if any(one.keyed for one in inputs):
        return None
    match op:
        case Op.FILTER:
            return first
        case Op.SUM:
            return Shape(
                keyed=("k",), unique=False, pure=False, ordered=False, joined=joined, sources=sources
            )
        case Op.WINDOW:
            return Shape(
                keyed=("n", "k"), unique=False, pure=False, ordered=False, joined=joined, sources=sources
            )
        case Op.CLOSED if first.ordered:
            return Shape(unique=False, pure=False, ordered=False, joined=joined, sources=sources)
        case Op.DEDUP if first.pure:
            return replace(first, unique=True)
        case Op.DISTINCT:
            return Shape(unique=False, pure=False, ordered=False, joined=joined, sources=sources)
        case Op.JOIN if not joined:
            unique = all(one.unique for one in inputs)
            return Shape(unique=unique, pure=False, ordered=False, joined=True, sources=sources)
        case Op.UNION:
            apart = len(sources) == sum(len(one.sources) for one in inputs)
            return Shape(
                unique=apart and all(one.unique for one in inputs),
                pure=all(one.pure for one in inputs),
                ordered=False,
                joined=joined,
                sources=sources,
            )
        case _:
            return None


def _outputs(
    dice: Random,
    stages: Sequence[Stage],
    shapes: Mapping[str, Shape],
    kinds: Sequence[Kind],
    folders: Sequence[str],
) -> tuple[Output, ...]:
    """Draw sinks; the first reads the last stage, and what nobody reads is left out."""
    made = []
    read = {uid for stage in stages for uid in stage.inputs}
    ends = [stage for stage in stages[:-1] if stage.uid not in read] or stages
    for i, drawn in enumerate(kinds):
        stage = stages[-1] if i == 0 else dice.choice([*ends, *stages])
        shape, kind, uid = shapes[stage.uid], drawn, f"sink_{i}"
        key, sums = shape.keyed, ""
        if not shape.keyed:
            way = dice.choice(("rows", "rows", "by n", "update", "complete"))
            if way == "by n" and shape.unique:
                key = ("n",)
            elif way in ("update", "complete"):
                key, sums = ("k",), way
        if key and kind is Kind.FUNCTION:
            kind = Kind.OWN
        is_lake = kind in (Kind.OWN, Kind.ICEBERG)
        partition_by = (dice.choice(folders),) if is_lake and not key and dice.random() < 0.25 else ()
        made.append(Output(uid, kind, stage.uid, key, sums, f"table_{i}", partition_by))
    return tuple(made)


def _read_by(outputs: Sequence[Output], stages: Sequence[Stage]) -> tuple[Stage, ...]:
    wanted = {one.input for one in outputs}
    kept: list[Stage] = []
    for one in reversed(stages):
        if one.uid in wanted:
            kept.insert(0, one)
            wanted.update(one.inputs)
    return tuple(kept)


def _settings(dice: Random) -> dict[str, object]:
    return {
        "operator_chaining": dice.random() < 0.7,
        "num_retained": dice.randint(1, 4),
        "incremental": dice.random() < 0.7,
        "local_backup": dice.random() < 0.2,
        "checkpoint_storage": dice.choice(("filesystem", "filesystem", "filesystem", "store")),
    }


def _story(dice: Random) -> tuple[Step, ...]:
    weights = {
        What.EPOCH: 4,
        What.CRASH: 4,
        What.SAVEPOINT: 2,
        What.RESTORE: 4,
        What.CRASHED_RESTORE: 1,
        What.FORK: 1,
        What.RENAME: 1,
        What.CHANGE: 2,
        What.PARTITIONS: 1,
        What.SETTING: 2,
        What.OTHERS: 2,
        What.JUDGE: 5,
        What.REQUEUE: 2,
        What.LAYOUT: 2,
        What.SINK: 2,
        What.STREAM: 2,
        What.CRASHED_STREAM: 2,
        What.FULL_DISK: 2,
        What.CLOCK: 2,
    }
    between = dice.choices(list(weights), list(weights.values()), k=dice.randint(2, 5))
    return tuple(Step(what, dice.randrange(1, 10**6)) for what in (What.EPOCH, *between, What.EPOCH))
