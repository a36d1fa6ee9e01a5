"""World of a drawn pipeline: its runs, its snapshots, and its tables, which are compared with the model's."""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from dagster_ckpt import CheckpointCoordinatorResource, run_epoch
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.testing.faults import SimulatedCrash
from tests.attack.judge import Verdict
from tests.attack.outsides import Kind
from tests.fuzz.built import built
from tests.fuzz.drawn import (
    Drawn,
    Op,
    Output,
    Stage,
)
from tests.fuzz.model import Model, quarantine_of
from tests.fuzz.tables import FOREIGN, kept_in, put_file, rows_in
from tests.fuzz.values import Row, rows_of_feed
from tests.records import find_record
from tests.spark.crashing import crash_before_change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_ckpt import CheckpointedPipeline

Tables = dict[int, Counter[Row]]
Kepts = dict[str, Counter[tuple[int, str, str]]]


class Finding(Exception):
    """A step ended as it may not."""

    def __init__(self, verdict: Verdict, said: str) -> None:
        super().__init__(f"{verdict}: {said}")
        self.verdict = verdict


@dataclass
class World:
    """One deployment, as far as its story has come."""

    drawn: Drawn
    spark: SparkSession
    folder: Path
    may_be: list[Model] = field(default_factory=lambda: [Model()])
    """What it holds; several where a crash leaves open which."""
    snapshots: dict[str, Model] = field(default_factory=dict)
    files: dict[int, tuple[int, list[Row]]] = field(default_factory=dict)
    """Every file of the sources, by number: of which source, and its rows."""
    feeds: int = 0
    changes: int = 1
    """Changes of files that the last run made: a crash is drawn among as many."""
    forks: int = 0
    candidates: list[Model] = field(default_factory=list)
    """What may be once the run that is on has ended."""
    taken: dict[int, set[str]] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)
    """Quarantines whose rows go through their stage with its next batch."""
    names: set[str] = field(default_factory=set)
    """Of quarantines that there were."""
    unknown: set[str] = field(default_factory=set)
    """Snapshots that a stream took on its way."""
    said: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    # --- runs and their ends -----------------------------------------------------------------------------------------

    @property
    def pipeline(self) -> CheckpointedPipeline:
        """The pipeline as its author has it now."""
        return built(self.drawn, self.folder)

    @property
    def coordinator(self) -> CheckpointCoordinatorResource:
        """Its places and settings."""
        return CheckpointCoordinatorResource(
            base_dir=str(self.folder / "lab"), snapshot_retry_delay=0.1, **self.drawn.settings
        )

    def feed(self, dice: Random) -> None:
        """Put new files where the sources find them."""
        sources = [one for one in self.drawn.stages if one.op is Op.SOURCE]
        for source in sources:
            of = int(source.uid.split("_")[1])
            for i in range(dice.choice((0, 1, 1, 2, 3) if self.feeds else (1, 2))):
                number = self.feeds * 10 + of * 3 + i
                key_type, value_type = self.drawn.key_type, self.drawn.value_type
                rows = rows_of_feed(dice, number, key_type, value_type, dice.randint(1, 8))
                self.files[number] = (of, rows)
                self.put(of, number, rows)
            (self.folder / "feed" / str(of)).mkdir(parents=True, exist_ok=True)
        self.feeds += 1

    def put(self, of: int, number: int, rows: list[Row]) -> None:
        """Put a file where its source finds it."""
        put_file(self.folder / "feed" / str(of), number, rows, self.drawn.key_type, self.drawn.value_type)

    def _run(self, restore: Mapping[str, Any] | None = None, of: CheckpointedPipeline | None = None) -> None:
        with crash_before_change(None, self.folder) as seen:
            run_epoch(of or self.pipeline, coordinator=self.coordinator, spark=self.spark, restore=restore)
        self.changes = len(seen)

    def _dies(self, dice: Random, restore: Mapping[str, Any]) -> None:
        """Run an epoch that dies before a change of a file, with all that it has begun."""
        number = dice.randrange(self.changes)
        self.said.append(f"dies before change {number} of about {self.changes}")
        dying = crash_before_change(number, self.folder, in_threads=RuntimeError)
        with contextlib.suppress(Exception, SimulatedCrash), dying:
            run_epoch(self.pipeline, coordinator=self.coordinator, spark=self.spark, restore=restore)
        for query in self.spark.streams.active:
            query.stop()

    def _settled(self, run: Callable[[], None], *, reads: bool = True) -> bool:
        """Run, and compare every table; a refused run has changed nothing. Tell whether it was not refused."""
        before, kept = self._tables(), self._quarantines()
        self.candidates = self._read() if reads else self.may_be
        if refusal := self._refusal(run):
            if len(self.may_be) == 1 and (self._tables() != before or self._quarantines() != kept):
                raise Finding(
                    Verdict.CHANGED, f"{refusal}: {self._told(before)} {kept} {self._quarantines()}"
                )
            self._refused(refusal)
            return False
        chosen = self._the_one(self.candidates)
        self.ordered -= self.taken.get(id(chosen), set())
        self.may_be = [chosen]
        if any(
            _of_others(had) != _of_others(now)
            for had, now in ((before.get(i, now), now) for i, now in self._tables().items())
        ):
            raise Finding(Verdict.SILENT, f"rows of others are gone: {self._told(before)}")
        self._note_snapshots()
        return True

    def _read(self) -> list[Model]:
        """Return what may be once all files are read: a stage without rows may have no batch that takes orders."""
        found = []
        names = sorted(self.ordered)
        self.taken = {}
        for model in self.may_be:
            for bits in range(1 << len(names)):
                late = {name for at, name in enumerate(names) if bits >> at & 1}
                took: set[str] = set()

                def again(name: str, has_rows: bool, late: set[str] = late, took: set[str] = took) -> bool:
                    if name in self.ordered and (has_rows or name not in late):
                        took.add(name)
                    return name in took

                after = model.copy()
                after.process(self.drawn, self.files, again)
                self.taken[id(after)] = took
                found.append(after)
        return found

    def _refusal(self, run: Callable[[], object]) -> str:
        """Return why a run was refused; empty: it was not. Raises Finding for an error of another class."""
        try:
            run()
        except CheckpointError as error:
            return f"{type(error).__name__}: {error}"
        except Finding:
            raise
        except Exception as error:
            raise Finding(Verdict.CRASHED, "".join(traceback.format_exception(error)[-25:])) from error
        return ""

    def _refused(self, why: str) -> None:
        self.said.append(f"refused: {why}")
        self.refused.append(why)

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def _snapshot(self, dice: Random) -> str | None:
        keys = sorted(self.snapshots)
        if len(self.may_be) > 1 or not keys:
            return None
        key = dice.choice([*keys, *keys, *keys, "none"])
        self.said.append(key)
        return key

    def _options(self, key: str) -> dict[str, Any]:
        functions = [one.uid for _, one in self.drawn.sinks if one.kind is Kind.FUNCTION]
        gone = any(one.is_gone for one in self.drawn.outputs)
        return {"restore_from": key, "keep_rows_of": functions, "allow_non_restored_state": gone}

    def _restored(self, key: str) -> Model:
        """Return the model as a snapshot has it; what a function was called with stays."""
        restored = Model() if key == "none" else self.snapshots[key].copy()
        for number, output in self.drawn.sinks:
            if output.kind is Kind.FUNCTION:
                restored.tables[number] = list(self.may_be[0].tables.get(number, []))
        return restored

    def _known(self, name: str = "") -> list[Any]:
        with closing(self.coordinator.model_copy().store()) as store:
            record = find_record(store, name or self.pipeline.name)
        return [] if record is None else [*record.completed, *record.savepoints]

    def _note_snapshots(self) -> None:
        """Remember what each new snapshot holds, which is what the tables show; forget those that are gone."""
        self.snapshots = {
            key: self.snapshots.get(key) or self.may_be[0].copy()
            for key in self._keys()
            if key not in self.unknown
        }

    def _keys(self) -> list[str]:
        kinds = {True: "savepoint", False: "chk"}
        known = sorted(self._known(), key=lambda one: one.checkpoint_id)
        return [f"{kinds[one.properties.kind.is_savepoint]}-{one.checkpoint_id}" for one in known]

    # --- tables ------------------------------------------------------------------------------------------------------

    def _tables(self) -> Tables:
        return {i: rows_in(self.drawn, one, self.folder) for i, one in self.drawn.sinks}

    def _quarantines(self) -> Kepts:
        place = self.kept_below
        return {name: kept_in(place / name) for name in map(quarantine_of, keeping(self.drawn))}

    @property
    def kept_below(self) -> Path:
        """Where the quarantines lie."""
        return self.folder / "lab" / "tables" / self.pipeline.name / "quarantine"

    def _the_one(self, among: list[Model]) -> Model:
        """Return the model whose tables readers find. Raises Finding where there is none."""
        found, kept = self._tables(), self._quarantines()
        for last, model in enumerate(among, 1):
            try:
                for number in found:
                    self._compare(number, found[number], model, "")
                compare_kept(kept, model, "")
            except Finding:
                if last == len(among):
                    raise
            else:
                return model
        raise AssertionError

    def _compare(self, number: int, found: Counter[Row], model: Model, what: str) -> None:
        found = found - _of_others(found)
        right = model.rows(self.drawn, number)
        if found == right:
            return
        lacks, has = sorted((right - found).items(), key=repr), sorted((found - right).items(), key=repr)
        said = f"{what} {self.drawn.outputs[number]} lacks {lacks[:5]} ({len(lacks)}), has {has[:5]} ({len(has)})"
        raise Finding(Verdict.SILENT, said)

    def _told(self, before: Tables) -> str:
        now = self._tables()
        return "; ".join(
            f"{i} had {had - now[i]}, has {now[i] - had}" for i, had in before.items() if i in now
        )


def compare_kept(kept: Kepts, model: Model, what: str) -> None:
    """Compare quarantines with those of a model. Raises Finding."""
    for name, found in kept.items():
        right = Counter((one.row[0], one.state, one.condition) for one in model.kept.get(name, []))
        if found != right:
            said = (
                f"{what} quarantine {name} lacks {sorted(right - found)[:5]}, has {sorted(found - right)[:5]}"
            )
            raise Finding(Verdict.SILENT, said)


def keeping(drawn: Drawn) -> list[Stage | Output]:
    """Return the stages and sinks that have a quarantine."""
    return [one for one in (*drawn.stages, *(one for _, one in drawn.sinks)) if one.judges.keeps]


def _of_others(found: Counter[Row]) -> Counter[Row]:
    return Counter({row: count for row, count in found.items() if row[0] == FOREIGN})
