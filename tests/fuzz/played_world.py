"""World of a drawn pipeline whose queries are played: the same stories and the same model, a second each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from dagster_ckpt import CheckpointedPipeline, CheckpointKind
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.testing.faults import SimulatedCrash
from tests.attack.deployment import RunFailed
from tests.fuzz.drawn import Drawn, Step, What
from tests.fuzz.played import DrawnDeployment
from tests.fuzz.story import Story
from tests.fuzz.world import Finding, World
from tests.records import find_record
from tests.spark.crashing import crash_before_change

LEFT_OUT = {What.SETTING, What.PARTITIONS, What.REQUEUE}
"""Steps that are Spark's."""
SETTINGS = {"externalized_checkpoint_retention": "retain_on_cancellation"}
ENDS = ("clean", "clean", "in flight", "unpublished", "failed")


def as_played(drawn: Drawn) -> Drawn:
    """Return a drawn pipeline of types that a played query writes down, with a longer story."""
    dice = Random(f"played {drawn.seed}")
    steps = [one for one in drawn.steps if one.what not in LEFT_OUT]
    more = [
        What.EPOCH,
        What.CRASH,
        What.RESTORE,
        What.CRASHED_RESTORE,
        What.JUDGE,
        What.LAYOUT,
        What.STREAM,
        What.SINK,
    ]
    more += [
        What.FULL_DISK,
        What.CLOCK,
        What.RENAME,
        What.FORK,
        What.SAVEPOINT,
        What.CRASHED_STREAM,
        What.OTHERS,
    ]
    between = [Step(dice.choice(more), dice.randrange(1, 10**6)) for _ in range(dice.randint(0, 8))]
    return replace(
        drawn,
        key_type=dice.choice(("string", "bigint")),
        value_type="int",
        conf={},
        settings={name: value for name, value in drawn.settings.items() if name != "checkpoint_storage"},
        stages=tuple(replace(one, partitions=None) for one in drawn.stages),
        outputs=tuple(replace(one, sums=one.sums and "update", partition_by=()) for one in drawn.outputs),
        steps=(*steps[:-1], *between, steps[-1]),
    )


@dataclass
class PlayedWorld(Story):
    """A world without Spark."""

    runs: int = 0

    def __post_init__(self) -> None:
        self.spark: Any = SimpleNamespace(
            conf=SimpleNamespace(set=lambda *_: None), streams=SimpleNamespace(active=())
        )

    @property
    def kept_below(self) -> Path:
        """Where the quarantines lie."""
        return self.folder / "tables" / "quarantine"

    def put(self, of: int, number: int, rows: Any) -> None:
        """Files of sources are in memory."""

    def _deployment(self, of: CheckpointedPipeline | None = None, **more: Any) -> DrawnDeployment:
        settings = {**SETTINGS, **self.drawn.settings}
        settings["savepoint_dir"] = str(self.folder / "savepoints")
        chained = bool(settings.pop("operator_chaining"))
        made = of or self.pipeline
        return DrawnDeployment(
            self.folder,
            settings=settings,
            chained=chained,
            drawn=self.drawn,
            made=made,
            files=self.files,
            **more,
        )

    def _owner(self) -> str:
        self.runs += 1
        return f"run-{self.runs}"

    def _run(self, restore: Mapping[str, Any] | None = None, of: CheckpointedPipeline | None = None) -> None:
        with crash_before_change(None, self.folder) as seen:
            self._deployment(of).epoch(self._owner(), 0, **(restore or {}))
        self.changes = len(seen)

    def _dies(self, dice: Random, restore: Mapping[str, Any]) -> None:
        number = dice.randrange(self.changes)
        self.said.append(f"dies before change {number} of about {self.changes}")
        with contextlib.suppress(Exception, SimulatedCrash), crash_before_change(number, self.folder):
            self._deployment().epoch(self._owner(), 0, **restore)

    def savepoint(self, dice: Random) -> None:
        """Take a savepoint of the idle pipeline."""
        request = CheckpointRequest(kind=CheckpointKind.SAVEPOINT)
        self._settled(lambda: self._deployment(request=request).epoch(self._owner(), 0), reads=False)

    def stream(self, dice: Random) -> None:
        """Run a stream of some checkpoints, which ends in one of several ways; then an epoch."""
        self.feed(dice)
        end = dice.choice(ENDS)
        self.said.append(end)
        known = set(self._keys())

        def more() -> None:
            if end in ("in flight", "unpublished"):
                self.feed(dice)

        def run() -> None:
            self._deployment().stream(self._owner(), [0], end=end, between=more)

        self._settled(run)
        self._forget_on_the_way(known)
        if dice.random() < 0.7:
            self._settled(self._run)

    def crashed_stream(self, dice: Random) -> None:
        """Let a stream die before one of its changes of files."""
        self.feed(dice)
        number = dice.randrange(2 * self.changes)
        self.said.append(f"dies before change {number}")
        known = set(self._keys())
        with contextlib.suppress(Exception, SimulatedCrash), crash_before_change(number, self.folder):
            self._deployment().stream(
                self._owner(), [0, 0], end=dice.choice(ENDS), between=lambda: self.feed(dice)
            )
        self._settled(self._run)
        self._forget_on_the_way(known)

    def _refusal(self, run: Callable[[], object]) -> str:
        try:
            return super()._refusal(run)
        except Finding as finding:
            if isinstance(finding.__cause__, RunFailed):
                return f"RunFailed: {finding.__cause__}"
            raise

    def rename(self, dice: Random) -> None:
        """Give a stage, a sink or the pipeline another name."""
        known = sorted(self._known(), key=lambda one: one.checkpoint_id)
        if dice.random() < 0.7 or not known or len(self.may_be) > 1:
            super().rename(dice)
            return
        key, uri = self._keys()[-1], known[-1].location.uri
        if key not in self.snapshots:
            return
        before, old = self.drawn, self.drawn.names
        self.drawn = replace(self.drawn, names=(f"{old[0]}_x", *old))
        self.said.append(f"the pipeline, from {key}")
        had, self.may_be = self.may_be, [self._restored(key)]
        if self._settled(lambda: self._run({**self._options(key), "restore_from": uri})):
            return
        self.drawn, self.may_be = before, had

    def _known(self, name: str = "") -> list[Any]:
        file = self.folder / "store" / "coordinator.db"
        if not file.exists():
            return []
        with closing(SqlCoordinatorStore(f"sqlite:///{file}")) as store:
            record = find_record(store, name or self.pipeline.name)
        return [] if record is None else [*record.completed, *record.savepoints]


def played_without_spark(drawn: Drawn, folder: Path) -> tuple[World, Finding | None]:
    """Play a story in an empty folder; return the world, and what was found."""
    world = PlayedWorld(drawn, None, folder)  # type: ignore[arg-type]
    try:
        world.play()
    except Finding as finding:
        return world, finding
    return world, None
