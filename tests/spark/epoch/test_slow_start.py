"""A stage whose reader was slow to start is started again within its op; any other failure is the op's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt.errors import CheckpointError, Unavailable
from dagster_ckpt.spark.epoch.drains import Drained, Drains
from dagster_ckpt.spark.java.process import MAX_START_ATTEMPTS
from tests.lab.lines import Lines

SLOW = RuntimeError("[STREAM_FAILED] Caused by: SparkException: Python worker failed to connect back.")


class Query:
    """A stage whose starts end as they are told to."""

    uid = "totals"

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.stopped = 0

    def start(self, session: object, *, available_now: bool) -> Any:
        progress = [{"batchId": len(self.ends), "numInputRows": 2}]
        in_java = SimpleNamespace(streamingQuery=lambda: SimpleNamespace(noNewData=lambda: True))
        return SimpleNamespace(
            awaitTermination=self._end, stop=self._stop, recentProgress=progress, _jsq=in_java
        )

    def understood(self, error: BaseException) -> CheckpointError | None:
        """It says best itself what it is."""
        return None

    def _end(self, timeout: int) -> bool:
        error = self.ends.pop(0)
        if error is not None:
            raise error
        return True

    def _stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def said() -> list[str]:
    return []


def drain(query: Query, said: list[str]) -> Drained:
    nothing: Any = None
    stage: Any = query
    return Drains(lambda: nothing, Lines(said)).finish(stage, "totals", meanwhile=lambda: None)


def test_a_slow_reader_is_started_again_and_said(said: list[str]) -> None:
    query = Query(SLOW, SLOW, None)
    drained = drain(query, said)
    assert (drained.batches, drained.rows) == (3, 6), (
        "of every try: a batch may be done before a reader is slow"
    )
    assert (query.stopped, len(said)) == (3, 2)
    assert said[0] == "WARN the reader of stage totals was slow to start: started again"


def test_it_is_not_started_for_ever(said: list[str]) -> None:
    query = Query(*[SLOW] * 10)
    with pytest.raises(Unavailable, match="totals: the process of its reader did not start in time, 6 times"):
        drain(query, said)
    assert query.stopped == MAX_START_ATTEMPTS


def test_another_failure_is_the_ops(said: list[str]) -> None:
    query = Query(ValueError("a row that cannot be parsed"))
    with pytest.raises(ValueError, match="a row"):
        drain(query, said)
    assert (query.stopped, said) == (1, [])


def test_a_stage_whose_turn_has_come_is_known_also_when_it_failed(said: list[str]) -> None:
    nothing: Any = None
    stage: Any = Query(ValueError("a row that cannot be parsed"))
    drains = Drains(lambda: nothing, Lines(said))
    assert not drains.had_turn(stage.uid)
    with pytest.raises(ValueError, match="a row"):
        drains.finish(stage, "totals", meanwhile=lambda: None)
    assert drains.had_turn(stage.uid)
