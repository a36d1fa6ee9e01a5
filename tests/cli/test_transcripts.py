"""The transcripts are what the program answers, and fit 80 columns."""

from __future__ import annotations

from tests.cli.transcripts import PAGE, WIDTH, page

TABLES = ("list", "history", "show savepoint", "audit")
"""Answers that are tables; a sentence is broken by the terminal where it ends."""


def test_the_transcripts_are_what_the_program_answers() -> None:
    assert PAGE.read_text() == page(), "write it anew: python -m tests.cli.transcripts"


def test_they_fit_80_columns_and_break_no_key() -> None:
    answers = [part for part in page().split("$ dagster-ckpt ")[1:] if part.startswith(TABLES)]
    lines = [line for part in answers for line in part.split("```")[0].splitlines()]
    assert len(answers) == 6
    assert max(map(len, lines)) <= WIDTH, max(lines, key=len)
