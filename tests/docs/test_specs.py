"""The models say of themselves, of the code and of the guarantees what is so."""

from __future__ import annotations

import re

import pytest

from scripts.specs import MODELS, SPECS, Guard, Invariant, guards, invariants
from tests.root import ROOT

LIBRARY = "\n".join(file.read_text() for file in sorted((ROOT / "dagster_ckpt").rglob("*.py")))


def plain(text: str) -> str:
    """Return the words of a page, without its links and line ends."""
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "").split())


@pytest.mark.parametrize("model", MODELS)
def test_what_a_model_checks_is_in_the_tables_and_nothing_else(model: str) -> None:
    text = (SPECS / f"{model}.tla").read_text()
    settings = (SPECS / f"{model}.cfg").read_text()
    listed = [i.name for i in invariants() if i.model == model]
    assert settings.split("INVARIANTS")[1].split() == [
        name for name in ("TypeOK", *listed) if f"{name} ==" in text
    ]
    assert all(re.search(rf"^{name} ==", text, re.MULTILINE) for name in listed)
    assert {guard.name for guard in guards() if guard.model == model} == set(
        re.findall(r'On\("(\w+)"\)', text)
    )
    assert "Off = {}" in settings


@pytest.mark.parametrize("row", invariants(), ids=lambda row: f"{row.model}-{row.name}")
def test_an_invariant_stands_for_a_sentence_of_the_pages(row: Invariant) -> None:
    (link,) = re.findall(r"\]\((.+)\)", row.page)
    assert plain(row.sentence) in plain((SPECS / link).read_text())


@pytest.mark.parametrize("guard", guards(), ids=lambda guard: f"{guard.model}-{guard.name}")
def test_a_guard_is_in_the_code_and_an_invariant_finds_that_it_is_off(guard: Guard) -> None:
    assert guard.violated in [i.name for i in invariants() if i.model == guard.model]
    for name in re.findall(r"`([^`]+)`", guard.place):
        is_there = (
            (ROOT / "dagster_ckpt" / name).exists()
            if "/" in name
            else re.search(rf"\b{name.split('.')[-1]}\b", LIBRARY)
        )
        assert is_there, f"{name} is not in the library any more"
