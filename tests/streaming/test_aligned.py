"""Aligned checkpoints of a running diamond."""

from __future__ import annotations

from pathlib import Path

from tests.streaming.lab import StreamLab, until
from tests.streaming.pipelines import (
    Numbers,
    diamond,
    expected_rows,
    expected_totals,
    read_rows,
    read_totals,
)


def test_checkpoints_complete_while_the_queries_run_and_publish_what_lies_before_their_barriers(
    lab: StreamLab, tmp_path: Path
) -> None:
    numbers = Numbers(tmp_path / "numbers")
    pipeline = diamond(numbers.folder)
    numbers.put(10)
    running = lab.start(pipeline)
    for _ in range(3):
        numbers.put(10)
        running.checkpoint()
        seen = sum(read_rows(lab.tables).values())
        assert seen % 20 == 0
    until(lambda: running.service.current.stages["numbers"].worker.batches.current.batch == 3, 60, running)
    running.checkpoint()
    until(lambda: read_rows(lab.tables) == expected_rows(numbers.count), 60, running)
    assert read_totals(lab.tables) == expected_totals(numbers.count)
    running.stop()
