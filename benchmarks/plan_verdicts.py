"""Does a plan of an upgrade tell what a restore does? ``python -m benchmarks.plan_verdicts [--pipelines window …]``

Every edit of ``plan_edits`` that finds its text in a pipeline's program makes a changed one. The verdict of
``dagster-ckpt plan`` on it is compared with an epoch run that restores the old program's checkpoint and processes the
rest of the rows; and, where that is refused, with one that asks no rule of plans. The truth is a plain query of
Spark's: the rows that the old program passed on before the cut, and behind it those of the new program as if it had
been there from the start (of both programs in one, where an edit changes rows before they become state). The bars: no
false "goes on", 2 % false "refused", and 20 s for the first plan.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from benchmarks.common import median, scratch, show, spark_session
from benchmarks.plan_edits import EDITS, Edit
from benchmarks.plan_programs import PROGRAMS
from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    checkpointed_pipeline,
    pipeline_from_spark_project,
    run_epoch,
    spark_sink,
    spark_source,
    spark_stage,
)
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.upgrade_plan.comparison import StageVerdict, UpgradePlan
from dagster_ckpt.ext.upgrade_plan.plan import plan_upgrade
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.export import ExportedFacts, facts_of_found
from dagster_ckpt.spark.plan import rules
from tests.tables import rows_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]


def write_input(folder: Path, numbers: Sequence[int]) -> None:
    """Write files of both sources; the last one closes every window."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for source, number in itertools.product("ab", numbers):
        shift = 0 if source == "a" else 1
        rows = [
            (k, 10 * number + k + 4 * shift, 100 * number + 7 * k, 6 * number + k + shift) for k in range(4)
        ]
        rows += [(k, 11 + k, 900 * number, 6 * number + 5 + shift) for k in range(2)]
        rows += [(k, 17 * number + k, 350 + 11 * k, 6 * number + k + shift) for k in range(3)]
        rows += [(k, 41 + k, 10 + k, 15) for k in range(2)] if number == 2 else []
        rows += [(1, 12, 900, 11 + shift)] if number == 2 else []  # it was there before
        rows += [(2, -number, 50 * number, 6 * number + 2)]
        rows += [(9, 1, 1, 200)] if number == 3 else []
        columns = [list(column) for column in zip(*rows, strict=True)]
        k, v, w, at = columns
        w[3] = None if number == 1 else w[3]
        table = pa.table(
            {"k": k, "v": v, "w": w, "at": at, "was": [one - 1 for one in at], "p": [number] * len(k)}
        )
        path = folder / source / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / f"{source}{number}")
        os.utime(folder / f"{source}{number}", (1.7e9 + number, 1.7e9 + number))
        (folder / f"{source}{number}").rename(path)


# --- programs ---------------------------------------------------------------------------------------------------


def declared(name: str, text: str, folder: Path, spark: SparkSession) -> CheckpointedPipeline:
    """The pipeline of a program."""
    if "@dp." in text:
        return of_project(name, text, folder, spark)
    decorators = (spark_source, spark_stage, spark_sink, checkpointed_pipeline)
    names: dict[str, Any] = {one.__name__: one for one in decorators}
    names |= {"__name__": "program", "f": f, "FOLDER": str(folder)}
    exec(compile(text, "program.py", "exec"), names)
    made: CheckpointedPipeline = names["pipeline"]
    return made


def of_project(name: str, text: str, folder: Path, spark: SparkSession) -> CheckpointedPipeline:
    """The pipeline of a declarative project, which is written into one folder again and again."""
    root = folder.parent / "project"
    root.mkdir(exist_ok=True)
    root.joinpath("spark-pipeline.yml").write_text(
        f"name: {name}\nstorage: file:///unused\nlibraries:\n  - glob:\n      include: transformations/**\n"
    )
    head = f"from pyspark import pipelines as dp\nfrom pyspark.sql import functions as f\nFOLDER = {str(folder)!r}\n"
    root.joinpath("transformations").mkdir(exist_ok=True)
    root.joinpath("transformations", "main.py").write_text(head + text)
    return pipeline_from_spark_project(root, spark=spark)


@dataclass
class PlainTables:
    """Spark, as a project's functions ask it, where a table that is read is the query that makes it."""

    spark: SparkSession
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def readStream(self) -> PlainTables:  # noqa: N802
        return self

    def declare(self, function: Any) -> Any:
        self.made[function.__name__] = function
        return function

    def table(self, name: str) -> Any:
        return self.made[name]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spark.readStream if name == "schema" else self.spark, name)


@dataclass
class PlainQuery:
    """The query of a program by Spark alone, all its stages in one."""

    spark: SparkSession
    frame: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, spark: SparkSession, text: str, folder: Path) -> PlainQuery:
        query = cls(spark)

        def source(function: Any = None, **settings: Any) -> Any:
            return (lambda: function(spark)) if function else source

        def stage(function: Any = None, **settings: Any) -> Any:
            return function or (lambda given: given)

        def sink(function: Any = None, **settings: Any) -> Any:
            def taken(*frames: Any) -> None:
                if query.frame is None:  # the first sink is the one that is compared
                    query.frame, query.settings = function(*frames), settings

            return taken if function else (lambda given: sink(given, **settings))

        names = {
            "spark_source": source,
            "spark_stage": stage,
            "spark_sink": sink,
            "f": f,
            "FOLDER": str(folder),
            "spark": (tables := PlainTables(spark)),
            "dp": SimpleNamespace(table=tables.declare),
        }
        names |= {
            "__name__": "program",
            "checkpointed_pipeline": lambda **settings: lambda function: function(),
        }
        exec(compile(text, "program.py", "exec"), names)
        if tables.made:
            query.frame = tables.table("out")
        return query

    def passed_on(self, place: Path) -> Rows:
        """Rows that it passes on until it has processed what there is."""
        rows: Rows = []

        def take(batch: Any, number: int) -> None:
            rows.extend(row.asDict() for row in batch.collect())

        writer = self.frame.writeStream.outputMode(self.settings.get("output_mode", "append"))
        writer = writer.foreachBatch(take).option("checkpointLocation", str(place)).trigger(availableNow=True)
        writer.start().awaitTermination()
        return rows


def shown(rows: Rows, key: Sequence[str]) -> Counter[str]:
    """What a table shows of rows that came one after the other."""
    if key:
        rows = list({tuple(row.get(column) for column in key): row for row in rows}.values())
    told = [{name: value for name, value in sorted(row.items()) if value is not None} for row in rows]
    return Counter(json.dumps(row) for row in told)


# --- one pipeline -----------------------------------------------------------------------------------------------


@contextmanager
def without_rules() -> Iterator[None]:
    """Have plans compared by no rule."""
    kept = rules.RULES
    rules.RULES = ()  # type: ignore[assignment]
    try:
        yield
    finally:
        rules.RULES = kept


@dataclass
class Trial:
    """Trial of one pipeline: its checkpoint, and what becomes of it under each edit."""

    spark: SparkSession
    folder: Path
    name: str
    number: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.text, self.input = PROGRAMS[self.name], self.folder / "input"
        write_input(self.input, [1])
        self.where = CheckpointCoordinatorResource(
            base_dir=str(self.folder / "base"), table_dir=str(self.tables), num_retained=1000
        )
        self.settings = {name: self.spark.conf.get(name) for name in _OF_SESSION}
        end = run_epoch(self.declared(self.text), coordinator=self.where, spark=self.spark)
        assert end.checkpoint is not None
        self.uri = end.checkpoint.uri
        self.before = PlainQuery.of(self.spark, self.text, self.input).passed_on(self.folder / "before")
        deployment = self.where.model_copy().deployment()
        found = find_snapshot(deployment, "latest", PipelineId(self.name))
        written = facts_of_found(deployment, found).model_dump_json(exclude_defaults=True)
        self.facts = ExportedFacts.model_validate_json(written)

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    def declared(self, text: str) -> CheckpointedPipeline:
        return declared(self.name, text, self.input, self.spark)

    def planned(self, text: str) -> UpgradePlan:
        place = self.folder / f"plan-{next(self.number)}"
        place.mkdir()
        return plan_upgrade(self.facts, self.declared(text), self.spark, place, RestoreOptions())

    def restored(self, text: str) -> tuple[str, Counter[str] | None]:
        """Restore the checkpoint and run to the end; return why it failed, or what the table shows."""
        if not self.before:  # what trials before this one have made there is none of the checkpoint's
            shutil.rmtree(self.tables / "out", ignore_errors=True)
        try:
            pipeline = self.declared(text)
            run_epoch(pipeline, coordinator=self.where, spark=self.spark, restore={"restore_from": self.uri})
        except Exception as error:
            return str(error).strip().partition("\n")[0] or repr(error), None
        found = [stage.table.name for stage in pipeline.stages.values() if stage.table]
        name = "out" if "out" in found else found[0]
        return "", shown([dict(row) for row in rows_in(self.tables / name)], ())

    def truth(self, text: str) -> Counter[str]:
        """What the table shows at last where this program has all of the state."""
        place, given = self.folder / f"truth-{next(self.number)}", self.folder / f"input-{next(self.number)}"
        write_input(given, [1])
        query = PlainQuery.of(self.spark, text, given)
        query.passed_on(place)
        write_input(given, [2, 3])
        behind = PlainQuery.of(self.spark, text, given).passed_on(place)
        return shown([*self.before, *behind], query.settings.get("key", ()))

    def tried(self, edit: Edit) -> dict[str, Any]:
        """The verdict on an edit, and what became of it."""
        for name, value in self.settings.items():  # an edit may set them
            self.spark.conf.set(name, value)
        changed = self.text.replace(edit.old, edit.new)
        try:
            self.declared(changed)
        except InvalidRequest as error:
            return self._undeclared(edit, str(error))
        began = time.monotonic()
        plan = self.planned(changed)
        took = time.monotonic() - began
        said, table = self.restored(changed)
        goes_on = plan.verdict not in (StageVerdict.REFUSED, StageVerdict.UNKNOWN)
        told, shows = said, table
        if table is None and not goes_on:
            with without_rules():
                told, shows = self.restored(changed)
        wanted = None
        if shows is not None and edit.is_compared:
            wanted = self.truth(self.text.replace(edit.old, edit.in_one or edit.new))
        is_right = shows is not None and (wanted is None or shows == wanted)
        why = [*plan.refusals, *(why for stage in plan.stages for why in stage.why)]
        return {
            "pipeline": self.name,
            "edit": edit.name,
            "verdict": plan.verdict.value,
            "became": _became(goes_on, plan.verdict, table is not None, is_right),
            "run": "" if table is not None else said[:300],
            "without rules": "right" if is_right else told[:300] or "wrong rows",
            "why": why[:2],
            "differs": [] if is_right or None in (wanted, shows) else _difference(shows, wanted),
            "plan_s": round(took, 2),
        }

    def _undeclared(self, edit: Edit, why: str) -> dict[str, Any]:
        """The result of an edit whose program is refused before there is a pipeline to plan or to run."""
        told = {"pipeline": self.name, "edit": edit.name, "verdict": StageVerdict.REFUSED.value, "run": why}
        return {**told, "became": "refused, rightly", "plan_s": 0.0}


def _became(goes_on: bool, verdict: StageVerdict, ran: bool, is_right: bool) -> str:
    if goes_on:
        if not ran:
            return "FALSE goes on: the run fails"
        return "goes on, right" if is_right else "FALSE goes on: WRONG ROWS"
    if verdict is StageVerdict.UNKNOWN:
        return f"not told, {'right' if ran and is_right else 'WRONG ROWS' if ran else 'refused by the run'}"
    if ran:
        return "FALSE refused: the run goes on"
    return "FALSE refused: would be right" if is_right else "refused, rightly"


def _difference(shows: Any, wanted: Any) -> list[str]:
    gone, more = (list((one - other).elements())[:3] for one, other in ((wanted, shows), (shows, wanted)))
    return [f"missing {gone}", f"more {more}"]


_OF_SESSION = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")
_SMALL_QUERIES = {
    "spark.master": "local[2]",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Settings with which thousands of queries over a few rows take least."""


# --- all --------------------------------------------------------------------------------------------------------


def tried_before(file: Path | None) -> dict[tuple[str, str], dict[str, Any]]:
    """Results that earlier calls have added to a file, by pipeline and edit."""
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    return {(one["pipeline"], one["edit"]): one for one in map(json.loads, lines)}


def main() -> None:
    """Try every edit of every pipeline, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--edits", default="", help="part of their names; default: all")
    parser.add_argument("--seed", type=int, help="of an order of all pairs; default: that of the lists")
    parser.add_argument("--results", type=Path, help="file of JSON lines to which each result is added")
    args = parser.parse_args()
    logging.getLogger("dagster_ckpt.run").setLevel(logging.ERROR)
    results: list[dict[str, Any]] = []
    settings = {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g", **_SMALL_QUERIES}
    with scratch() as folder, spark_session(folder, **settings) as spark:
        pairs = [
            (name, edit)
            for name in args.pipelines
            for edit in EDITS
            if edit.old in PROGRAMS[name] and args.edits in edit.name
        ]
        if args.seed is not None:
            Random(args.seed).shuffle(pairs)
        done, trials = tried_before(args.results), dict[str, Trial]()
        for name, edit in pairs:
            if (name, edit.name) in done:
                continue
            if name not in trials:
                trials[name] = Trial(spark, folder / name, name)
                write_input(trials[name].input, [2, 3])
            result = trials[name].tried(edit)
            results.append(result)
            print(json.dumps(result), flush=True)
            if args.results:
                with args.results.open("a") as file:
                    print(json.dumps(result), file=file)
    if args.results:
        results = list(tried_before(args.results).values())
    kinds = Counter((result["verdict"], result["became"]) for result in results)
    told = [{"verdict": said, "became": became, "edits": n} for (said, became), n in sorted(kinds.items())]
    show("verdicts of plans", told)
    seconds = [result["plan_s"] for result in results]
    show("seconds of a plan", [{"plans": len(seconds), "median": median(seconds), "most": max(seconds)}])


if __name__ == "__main__":
    main()
