"""Every link between the pages of the project leads somewhere, and every picture is shown by a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import glossary
from tests.root import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LARGEST_PICTURE = 200_000
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield path and anchor of every link that stays in the project."""
    for target in LINK.findall(BLOCK.sub("", page.read_text())):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = []
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            lost.append(path)
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            lost.append(f"{path}#{anchor}")
    assert lost == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        for path, _ in links(page):
            target = (page.parent / path).resolve() if path else page
            todo += sorted(target.glob("*.md")) if target.is_dir() else [target]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


def test_every_picture_is_shown_and_small() -> None:
    shown = {(page.parent / path).resolve() for page in PAGES for path, _ in links(page)}
    pictures = sorted(one for one in (ROOT / "docs" / "images").rglob("*") if one.is_file())
    assert [picture.name for picture in pictures if picture not in shown] == []
    assert [picture.name for picture in pictures if picture.stat().st_size > LARGEST_PICTURE] == []


@pytest.mark.parametrize("page", glossary.PAGES, ids=lambda page: page.name)
def test_a_word_of_the_glossary_is_linked_where_it_first_stands(page: Path) -> None:
    text = page.read_text()
    assert glossary.linked(page, text) == text, "link it: python -m scripts.glossary"


def test_a_word_is_linked_once_and_neither_in_code_nor_in_headings() -> None:
    page = ROOT / "docs" / "how-to" / "page.md"
    text = "# Savepoints\n\n`savepoint` is code. A savepoint, and another savepoint.\n"
    linked = glossary.linked(page, text)
    assert linked == text.replace("A savepoint", "A [savepoint](../glossary.md#savepoint)")
    assert glossary.linked(page, linked) == linked
