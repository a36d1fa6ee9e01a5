"""Writes the table of rules on changed queries into its page: ``python -m scripts.plan_rules``."""

from __future__ import annotations

from dagster_ckpt.spark.plan.rules import RULES
from tests.root import ROOT

PAGE = ROOT / "docs" / "how-to" / "change-a-stage.md"
_BEGIN = "<!-- rules: made by `python -m scripts.plan_rules` -->\n"
_END = "<!-- end of rules -->"


def table() -> str:
    """Return the rules as a table, in the order in which they are asked."""
    rows = (f"| {rule.change} | {rule.concern.of} | {rule.because} |\n" for rule in RULES)
    return "| change | goes on from | why it is refused |\n|---|---|---|\n" + "".join(rows)


def page(text: str) -> str:
    """Return the page with today's table in it."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}{table()}{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
