"""Links each word of docs/glossary.md where it first stands in a page: ``python -m scripts.glossary``.

Words in headings, tables and code are passed over, and one that leads to a page of its own already stays as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
GLOSSARY = DOCS / "glossary.md"
PAGES = [
    DOCS / "tutorial.md",
    *(
        page
        for folder in ("how-to", "extensions", "explanation")
        for page in sorted((DOCS / folder).glob("*.md"))
    ),
]
_PASSED_OVER = re.compile(
    r"^```.*?^```$|^ *```.*?^ *```$|^#.*?$|^ *\|.*?$|<!--.*?-->|`[^`]{1,400}`", re.M | re.S
)
_LINK = re.compile(r"!?\[[^\]]*\]\([^)\s]+\)")


def words() -> list[str]:
    """Return the words of the glossary."""
    return re.findall(r"^## (.+)$", GLOSSARY.read_text(), re.M)


def linked(page: Path, text: str) -> str:
    """Return a page's text with each word of the glossary linked where it first stands."""
    to = os.path.relpath(GLOSSARY, page.parent)
    for word in words():
        anchor = word.lower().replace(" ", "-")
        if f"{to}#{anchor})" in text:
            continue
        prose = _PASSED_OVER.sub(lambda found: "\0" * len(found[0]), text)
        first = re.search(rf"\b{word.replace(' ', '[ -]')}s?\b", prose, re.IGNORECASE)
        if first and not any(link.start() <= first.start() < link.end() for link in _LINK.finditer(prose)):
            text = f"{text[: first.start()]}[{first[0]}]({to}#{anchor}){text[first.end() :]}"
    return text


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(linked(each, each.read_text()))
