"""The mistakes of a first day, typed: one right sentence each, in few lines, Spark's own among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.first_day import MISTAKES, made


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_the_first_day_is_told_in_one_sentence_and_few_lines(name: str, tmp_path: Path) -> None:
    told = made(MISTAKES[name], tmp_path)
    assert told.is_right(MISTAKES[name]), "\n".join(
        [*told.lines, f"exit code {told.code}, {told.seconds:.1f} s"]
    )
