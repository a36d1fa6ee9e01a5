"""The page about Python names says what the sources say, and the sources what programs see."""

from __future__ import annotations

import inspect
import re

import pytest

import dagster_ckpt
from scripts.python_reference import PAGE, page

ENTRY = re.compile(r"^### `(\w+)`\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
ENTRIES = dict(ENTRY.findall(PAGE.read_text() + "\n##"))
FUNCTIONS = [name for name, text in ENTRIES.items() if text.startswith("\n```text\n")]


def test_the_page_is_made_from_the_sources() -> None:
    assert PAGE.read_text() == page(), "write it anew: make reference"


def test_every_public_name_is_described() -> None:
    assert set(ENTRIES) == set(dagster_ckpt.__all__) - {"__version__"}
    assert {name for name, text in ENTRIES.items() if len(text.strip()) < 20} == set()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_what_the_page_says(name: str) -> None:
    _, fenced, listed = ENTRIES[name].split("```", 2)
    signature = fenced.removeprefix("text\n")
    parameters = inspect.signature(getattr(dagster_ckpt, name)).parameters
    assert signature.startswith(f"{name}(")
    # Where each argument has a line of its own, the signature has those by place only.
    told = signature if "…" not in signature else signature + listed
    assert [p for p in parameters if not re.search(rf"[( *`]{p}\b", told)] == []


def test_every_function_has_its_signature() -> None:
    assert set(FUNCTIONS) == {name for name in ENTRIES if inspect.isfunction(getattr(dagster_ckpt, name))}
