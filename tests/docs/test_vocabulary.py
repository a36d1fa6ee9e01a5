"""The library and its pages use the words of the field: those that CONTRIBUTING's table replaces do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.root import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
ROWS = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]* \| ([^|]+) \|$", PAGE.split("## Words")[1], re.M)[1:]
INSTEAD_OF = {word.strip(): say for say, words in ROWS for word in words.split(",")}
SPARKS_OWN = "_streamingCheckpointManager"
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
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
    pattern = pattern_of(word)
    found = [f"{place(path)}: {line.strip()}" for path in FILES for line in lines_with(pattern, path)]
    assert not found, f"say {INSTEAD_OF[word]!r}:\n" + "\n".join(found)


def test_a_word_is_found_in_identifiers_too() -> None:
    assert all(
        lines_in(pattern_of("worked off"), text)
        for text in ("it was worked off", "self._worked_off = 1", "class WorkedOffStream:", "Worked-off rows")
    )
    assert not lines_in(pattern_of("anew"), "a newer one\nan_ewe")


def pattern_of(word: str) -> re.Pattern[str]:
    """Return what finds a word of several parts, however an identifier joins them."""
    parts = r"[\s_-]".join(map(re.escape, word.split()))
    return re.compile(rf"(?<![^\W_]){parts}(?![^\W_])", re.IGNORECASE)


def lines_with(pattern: re.Pattern[str], path: Path) -> list[str]:
    return lines_in(pattern, path.read_text())


def lines_in(pattern: re.Pattern[str], text: str) -> list[str]:
    return [
        line for line in text.splitlines() if pattern.search(CAMEL.sub(" ", line.replace(SPARKS_OWN, "")))
    ]


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))
