"""The README's picture of the demo is made from what it printed."""

from __future__ import annotations

from xml.etree import ElementTree

from scripts.demo_picture import PICTURE, TEXT, picture
from tests.root import ROOT


def test_the_picture_is_made_from_the_output_of_the_demo() -> None:
    assert PICTURE.read_text() == picture(TEXT.read_text()), "make it again: python -m scripts.demo_picture"
    assert "docs/images/demo.svg" in (ROOT / "README.md").read_text()


def test_it_shows_every_line() -> None:
    texts = [node.text for node in ElementTree.fromstring(PICTURE.read_text()) if node.tag.endswith("}text")]
    assert texts == ["$ make demo", *TEXT.read_text().splitlines()]
