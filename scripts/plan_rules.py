"""Writes the table of rules on changed queries into its page: ``python -m scripts.plan_rules``."""

from __future__ import annotations

from typing import NamedTuple

from dagster_ckpt.spark.plan.rules import RULES
from tests.root import ROOT

PAGE = ROOT / "docs" / "how-to" / "change-a-stage.md"
_BEGIN = "<!-- rules: made by `python -m scripts.plan_rules` -->\n"
_END = "<!-- end of rules -->"


class Told(NamedTuple):
    """Words about one rule: the change that it refuses, and why."""

    change: str
    because: str


_TEXTS = {
    "_chain": Told(
        "stages of one chain: one that is not its last gets a watermark or state, or its sources another "
        "order",
        "Spark tells sources apart by their order only",
    ),
    "_operators": Told(
        'a stateful operator more, less or in another place; another grouping (also by `date_trunc("day", …)` '
        'instead of `"hour"`), aggregate, key or kind of join, columns of duplicates, size or time column of '
        "a window",
        "the state was made by another operator",
    ),
    "_branches": Told(
        "branches of one query with the same operator (a union of two counts, sides of a self-join) in "
        "another order",
        "Spark tells operators apart by their order only",
    ),
    "_columns": Told(
        "other columns that a stream-stream join keeps (those a query needs behind it), columns of duplicates "
        "or of `DISTINCT` in another order, fields of a state of `applyInPandasWithState` under other names, "
        "`cube` for `rollup`",
        "Spark keeps rows of state without names",
    ),
    "_mode": Told(
        "`output_mode` of an aggregation: `append` made another one, `update` with a watermark that closes "
        "groups made `complete`",
        "groups that are open, or closed, would be left out",
    ),
    "_aggregates": Told(
        "other aggregates that a query uses behind its groups, or the same in another order (`count_if(ok), "
        "count_if(bad)` the other way round, `select` behind `groupBy` included)",
        "Spark keeps what each has seen without its name, in the order in which results are used",
    ),
    "_variables": Told(
        "variables of `transformWithState`: one more and one less at once, or fields of one under other names "
        "or in another order (one more, or one less, goes on)",
        "it may be the same under another name; Spark keeps rows of state without names",
    ),
    "_fields": Told(
        "fields of a struct that is kept whole (`max_by(row, at)`) under other names or in another order",
        "Spark keeps rows of state without names",
    ),
    "_origins": Told(
        "a column that is grouped, joined, aggregated, kept by a join or given to a function with state is "
        "another one of the source's, under the same name (`a AS p` made `b AS p`)",
        "the source has had both all the time and nothing is computed on the way: rows of state would be of "
        "the other",
    ),
    "_watermark": Told(
        "another column of a watermark that bounds the state",
        "it goes on from where the old one stood, and rows before it would be late",
    ),
    "_zone": Told(
        "another time zone of the session, where state holds days, hours or moments made of text",
        "days of state are those of the old zone: set `spark.sql.session.timeZone` back",
    ),
    "_filters": Told(
        "a condition behind a stream-stream join on columns of one side; one more or less behind groups on "
        "their keys",
        "Spark asks it before rows are kept, and rows that are kept are not asked",
    ),
    "_matches": Told(
        "a condition on both sides of an outer or semi join, a bound of time included",
        "Spark keeps with each row whether it has met one by the old condition",
    ),
    "_options": Told(
        "sources in another order that only their options tell apart",
        "Spark tells sources apart by their order only",
    ),
    "_sources": Told(
        "the inputs of a union or join in another order, sources in another order (also a list of folders "
        "that moves on), one more or less",
        "Spark tells sources apart by their order only",
    ),
}
"""Words by the function of the rule."""


def table() -> str:
    """Return the rules as a table, in the order in which they are asked."""
    told = ((rule.concern.of, _TEXTS[rule.why.__name__]) for rule in RULES)
    rows = (f"| {words.change} | {of} | {words.because} |\n" for of, words in told)
    return "| change | goes on from | why it is refused |\n|---|---|---|\n" + "".join(rows)


def page(text: str) -> str:
    """Return the page with today's table in it."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}{table()}{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
