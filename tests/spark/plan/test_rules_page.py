"""The page on changing a stage has the rules of today."""

from __future__ import annotations

from scripts.plan_rules import PAGE, page


def test_the_page_has_the_rules_in_the_order_in_which_they_are_asked() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "python -m scripts.plan_rules"
