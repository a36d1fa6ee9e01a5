"""The tutorial, from the empty folder to the fork, typed as it is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.tutorial import Reader, Type, Write, assert_shown, steps
from tests.root import ROOT

PAGE = ROOT / "docs" / "tutorial.md"


@pytest.mark.spark
def test_whoever_follows_the_tutorial_sees_what_it_says(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        for step in steps(PAGE.read_text()):
            match step:
                case Write():
                    reader.write(step)
                case Type():
                    reader.type(step)
        assert (reader.folder / "engine" / "engine.json").is_file(), (
            "the next run would start a Java of its own"
        )
    finally:
        shutil.rmtree(reader.folder / "engine", ignore_errors=True)  # without its folder a warm engine ends


def test_the_page_has_files_and_commands_and_nothing_else() -> None:
    found = list(steps(PAGE.read_text()))
    assert [step.name for step in found if isinstance(step, Write)] == ["shop.py", "look.py", "trial.py"]
    assert len([step for step in found if isinstance(step, Type)]) > 20


def test_a_block_that_says_nothing_of_its_file_is_an_error() -> None:
    with pytest.raises(AssertionError, match="which file"):
        list(steps("Look:\n\n```python\nprint(1)\n```\n"))
    with pytest.raises(AssertionError, match="neither a file to write nor commands"):
        list(steps("Write `a.txt`:\n\n```text\nhello\n```\n"))


def test_what_is_shown_is_compared_in_order(tmp_path: Path) -> None:
    assert_shown(Type("x", ("a …", "c")), "a b\nnoise\nc\n")
    with pytest.raises(AssertionError, match="does not show: a"):
        assert_shown(Type("x", ("c", "a")), "a\nc\n")
    reader = Reader(tmp_path)
    reader.type(Type("mkdir in && cd in && export WHO=you", ()))
    reader.type(Type('echo "$WHO in $(basename $PWD)"', ("you in in",)))
    with pytest.raises(AssertionError, match="exit code 1"):
        reader.type(Type("false", ()))
