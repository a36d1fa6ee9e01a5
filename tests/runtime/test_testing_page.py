"""The examples of the page on testing run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dagster_ckpt.testing.harness import CoordinatorHarness

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "testing.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(number: int) -> None:
    exec(compile(BLOCKS[number], f"testing.md, example {number + 1}", "exec"), {})


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 3


def test_every_call_the_page_names_exists() -> None:
    named = set(re.findall(r"`([a-z_]+)\(", PAGE)) | set(
        re.findall(r"`([a-z_]+)`[,:]? ", PAGE.split("## Reading it")[1])
    )
    known = set(dir(CoordinatorHarness())) | {"h"}
    assert {n for n in named if n not in known} <= {"dagster_ckpt"}
