"""The library and its pages use the words of the field: those that CONTRIBUTING's table replaces do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.root import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
ROWS = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]* \| ([^|]+) \|$", PAGE.split("## Words")[1], re.M)[1:]
INSTEAD_OF = {word.strip(): say for say, words in ROWS for word in words.split(",")}
READ = [
    *(
        path
        for folder in ("dagster_ckpt", "docs", "assets", "resources", "sensors")
        for path in (ROOT / folder).rglob("*")
    ),
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
]
FILES = [path for path in READ if path.suffix in (".py", ".md")]


def test_the_table_is_read() -> None:
    assert len(INSTEAD_OF) >= 20
    assert INSTEAD_OF["dealt out"] == "redistributed"
    assert len(FILES) > 300


@pytest.mark.parametrize("word", INSTEAD_OF)
def test_a_word_that_was_replaced_does_not_come_back(word: str) -> None:
    pattern = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    found = [f"{place(path)}: {line.strip()}" for path in FILES for line in lines_with(pattern, path)]
    assert not found, f"say {INSTEAD_OF[word]!r}:\n" + "\n".join(found)


def lines_with(pattern: re.Pattern[str], path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if pattern.search(line)]


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))
