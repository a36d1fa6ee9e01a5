"""Streams whose stages run as one query: exact wherever they die, and restored as they were laid out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import CheckpointedPipeline, spark_stage
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.streaming.run import EndOfData
from dagster_ckpt.spark.streaming.service import GaveUp
from tests.lab.lab import Lab
from tests.lab.pipelines import sink, source, stage, wired
from tests.lab.streams import Running, until
from tests.spark.streaming.pipelines import (
    Numbers,
    count,
    expected_rows,
    expected_totals,
    read_numbers,
    read_rows,
    read_totals,
    short_diamond,
    straight,
)
from tests.spark.streaming.test_crash_at_every_barrier import die_at


class Woven:
    """Two sources, a stage after each, totals per key over both, and a table of what the totals read."""

    def __init__(self, folder: Path) -> None:
        self.fast, self.slow = Numbers(folder / "fast"), Numbers(folder / "slow")

    def put(self, rows: int) -> None:
        self.fast.put(rows)
        self.slow.put(rows)

    def pipeline(
        self,
        *,
        turned: bool = False,
        twice: bool = False,
        chain: bool = True,
        bounded: bool = False,
        **settings: Any,
    ) -> CheckpointedPipeline:
        boundedness = "bounded" if bounded else "unbounded"

        @spark_stage(chain=chain)
        def fast(left):  # type: ignore[no-untyped-def]
            named = left.selectExpr("n", "key", "'fast' AS path")
            return named.dropDuplicates(["n"]) if twice else named

        return wired(
            "woven",
            source("left", lambda spark: read_numbers(spark, self.fast.folder), boundedness=boundedness),
            fast,
            source("right", lambda spark: read_numbers(spark, self.slow.folder), boundedness=boundedness),
            stage("slow", lambda right: right.selectExpr("n", "key", "'slow' AS path")),
            sink(
                "totals",
                lambda fast, slow: count(fast.unionByName(slow) if turned else slow.unionByName(fast)),
                key=["key"],
            ),
            checkpointing=settings,
        )


CHAINED = {"operator_chaining": True}
WHOLE = ("left", "fast", "right", "slow", "totals")


def until_totals(running: Running, lab: Lab, rows: int) -> None:
    wanted = expected_totals(rows)

    def holds() -> bool:
        running.checkpoint()
        seen = read_totals(lab.tables)
        for key, (total, times) in seen.items():
            assert (total, times) <= wanted[key], "rows were counted twice"
        return seen == wanted

    until(holds, running)


def stages_of(running: Running) -> dict[str, tuple[int, ...]]:
    current = running.current
    return {str(uid): tuple(stage.worker.inputs) for uid, stage in current.stages.items()}  # type: ignore[misc]


def test_two_sources_and_what_reads_them_run_as_one_query_and_lose_nothing_wherever_they_die(
    lab: Lab, tmp_path: Path
) -> None:
    woven = Woven(tmp_path)
    pipeline = woven.pipeline(**CHAINED)
    woven.put(10)
    running = lab.start(pipeline)
    assert stages_of(running) == {"totals": ()}, "one query, no channel and no barrier to wait for"
    until_totals(running, lab, 10)
    done = running.checkpoint(kind=CheckpointKind.SAVEPOINT)
    assert [set(chain.stages) for chain in done.metadata.chains] == [set(WHOLE)]
    assert [stage.uid for stage in done.metadata.stages] == ["totals"]
    woven.put(10)
    die_at(running, "totals")
    assert sorted(lab.record(pipeline).chains[0].stages) == sorted(WHOLE)

    # The option is off now: a restore keeps what the snapshot has.
    running = lab.start(woven.pipeline())
    assert stages_of(running) == {"totals": ()}
    until_totals(running, lab, 20)
    woven.put(5)
    running.stop()
    running = lab.start(woven.pipeline())  # adopted
    until_totals(running, lab, 25)
    running.crash()
    running.join()

    end = _gave_up(lab, woven.pipeline(turned=True))
    assert "sources of its chain were read by right, left and are by left, right" in end
    end = _gave_up(lab, woven.pipeline(twice=True))
    assert "runs in the chain" in end
    assert "'fast'" in end
    assert "keeps state (Deduplicate)" in end
    running = lab.start(woven.pipeline(chain=False), restore=RestoreOptions(restore_from=done.location.uri))
    until_totals(running, lab, 25)
    assert set(stages_of(running)) == {"left", "fast", "slow", "totals"}, (
        "no chain reads a source and a channel"
    )
    running.stop()


def _gave_up(lab: Lab, pipeline: CheckpointedPipeline) -> str:
    running = lab.launch(pipeline)
    running.thread.join()
    [end] = running.ends
    if isinstance(end, GaveUp):
        return end.last.message
    assert isinstance(end, InvalidRequest), end
    return str(end)


@pytest.mark.parametrize("mode", [{}, {"unaligned": True}], ids=["aligned", "unaligned"])
def test_a_chain_that_reads_channels_restores_exactly_wherever_it_dies(
    lab: Lab, tmp_path: Path, mode: dict[str, Any]
) -> None:
    """Its inputs read one channel at different speeds: the chain's barrier is reached when both have."""
    numbers = Numbers(tmp_path / "numbers")
    pipeline = short_diamond(numbers.folder, **CHAINED, **mode)
    for uid in ("numbers", "totals"):
        numbers.put(10)
        running = lab.start(pipeline)
        assert set(stages_of(running)) == {"numbers", "totals"}
        running.checkpoint()
        for _ in range(3):
            numbers.put(5)
        die_at(running, uid)
    running = lab.start(pipeline)
    until_totals(running, lab, numbers.count)
    running.stop()


@pytest.mark.nightly
def test_a_pipeline_that_began_without_chains_goes_on_without(lab: Lab, tmp_path: Path) -> None:
    numbers = Numbers(tmp_path / "numbers")
    numbers.put(5)
    running = lab.start(straight(numbers.folder))
    running.checkpoint()
    running.crash()
    running.join()
    running = lab.start(straight(numbers.folder, **CHAINED))
    assert set(stages_of(running)) == {"numbers", "rows"}
    assert running.checkpoint().metadata.chains == ()
    running.stop()

    running = lab.start(straight(numbers.folder, **CHAINED), restore=RestoreOptions(restore_from="none"))
    assert set(stages_of(running)) == {"rows"}, "who begins from nothing chooses"
    until(lambda: bool(running.checkpoint()) and read_rows(lab.tables).total() == 5, running)
    numbers.put(5)
    until(lambda: bool(running.checkpoint()) and read_rows(lab.tables).total() == 10, running)
    assert {n for n, _ in read_rows(lab.tables)} == {n for n, _ in expected_rows(10)}
    running.stop()


def test_a_chain_of_bounded_sources_ends_with_its_data(lab: Lab, tmp_path: Path) -> None:
    woven = Woven(tmp_path)
    for _ in range(3):
        woven.put(5)
    running = lab.launch(woven.pipeline(bounded=True, **CHAINED))
    running.thread.join()
    [end] = running.ends
    assert isinstance(end, EndOfData), end
    assert read_totals(lab.tables) == expected_totals(15)
