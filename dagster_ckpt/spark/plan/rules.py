"""Rules on a changed query: what of its plan may not change where it goes on from its state and its positions.

One ordered list. A rule compares two records of facts and returns why the query cannot go on, in the words behind
"cannot go on from its state: "; the first that has a reason refuses the query. The table in
docs/how-to/change-a-stage.md is made of this list (``python -m scripts.plan_rules``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.plan.columns import why_other_aggregates, why_other_fields
from dagster_ckpt.spark.plan.errors import WAY_OUT, ChangedQuery
from dagster_ckpt.spark.plan.facts import PlanFacts, facts_of, refuse_another_machines_zone
from dagster_ckpt.spark.plan.files import why_moved
from dagster_ckpt.spark.plan.functions import why_other_variables
from dagster_ckpt.spark.plan.origins import why_other_columns
from dagster_ckpt.spark.plan.sources import have_moved
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Concern(StrEnum):
    """Part of a checkpoint that a rule protects."""

    STATE = "state"
    """Asked of a query with state, by texts of one format and one version of Spark."""
    POSITIONS = "positions"
    """Asked of every query by such texts."""
    CHAIN = "chain"
    """Asked of every chain, whichever Spark wrote its facts: the order of its stages means the same to all."""

    @property
    def of(self) -> str:
        """Ground that a query goes on from, as sentences name it."""
        return "state" if self is Concern.STATE else "positions"


Compare = Callable[[PlanFacts, PlanFacts], str]
"""Facts as they were and as they are now; returns why they may not be other ones, empty: they may."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; the first of the list that has a reason is told."""

    concern: Concern
    change: str
    """Change that is refused, for the documentation."""
    because: str
    """Reason for that, for the documentation."""
    why: Compare
    mend: str = ""
    """Way out of its own, before those that all have."""


def why_not(before: PlanFacts, now: PlanFacts) -> str:
    """Return why a query cannot go on from what an earlier one left, with the ways out; empty: it can."""
    is_same_text = before.written_by == now.written_by
    for rule in RULES:
        asked = rule.concern is Concern.CHAIN or (
            is_same_text and (rule.concern is Concern.POSITIONS or bool(now.operators or before.operators))
        )
        if asked and (why := rule.why(before, now)):
            mend = f": {rule.mend}." if rule.mend else "."
            return f"cannot go on from its {rule.concern.of}: {why}{mend} {WAY_OUT}"
    return ""


def check_plan(
    uid: StageUid,
    directory: StageDirectory,
    frame: DataFrame,
    *,
    output_mode: str = "",
    stages: Sequence[str] = (),
    functions: Mapping[str, str] | None = None,
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Compare the query with the one its state was made by, or write down what it is. Raises ChangedQuery.

    ``stages``: of a chain, the stage that reads each source, in Spark's order. ``functions``: digests of its stages'
    functions. ``renamed``: stages by earlier uids.
    """
    now = facts_of(frame, output_mode=output_mode, stages=stages, functions=functions)
    if now is None:
        return
    before = PlanFacts.written(directory, renamed)
    goes_on = latest_committed_batch(directory.query) is not None
    if goes_on and now.variables is None:  # nobody could be asked today
        now = replace(now, variables=before.variables)
    if before == now:
        return
    if goes_on:
        if why := why_not(before, now):
            raise ChangedQuery(f"stage {uid!r} {why}")
        if before.sources != now.sources and (
            moved := why_moved(directory.query, before.sources, now.sources)
        ):
            raise ChangedQuery(
                f"stage {uid!r} cannot go on from its positions: {moved}. Spark knows files by their absolute paths "
                f"and would read all of them again: move them back, or mount them where they were. {WAY_OUT}"
            )
        refuse_another_machines_zone(uid, frame, before.read_in_zone, now.read_in_zone)
    now.write(directory)


# --- comparisons ----------------------------------------------------------------------------------------------


def _chain(before: PlanFacts, now: PlanFacts) -> str:
    if list(before.stages) == list(now.stages):
        return ""
    return (
        f"the sources of its chain were read by {', '.join(before.stages) or 'stages that nobody wrote down'} and are "
        f"by {', '.join(now.stages) or 'no other stage'} now, and Spark tells sources apart by their order only"
    )


def _operators(before: PlanFacts, now: PlanFacts) -> str:
    if before.operators == now.operators or _differ_in_what_nobody_asks(before, now):
        return ""
    old, new = _different(before.operators, now.operators)
    return f"it was made by {old or 'no operator'}, the stage has {new or 'no operator'} now"


def _differ_in_what_nobody_asks(before: PlanFacts, now: PlanFacts) -> bool:
    """Tell whether operators differ in aggregates alone, and only in those that nothing behind the groups asks for."""
    was, are = ([one.partition(".agg(")[0] for one in facts.operators] for facts in (before, now))
    is_known = before.aggregates is not None and now.aggregates is not None
    return was == are and is_known and not _aggregates(before, now)


def _branches(before: PlanFacts, now: PlanFacts) -> str:
    if not have_moved(before.branches, now.branches):
        return ""
    return (
        f"one of {', '.join(dict.fromkeys(now.operators))} has the rows now that another one of its operators had, and "
        "Spark tells operators apart by their order only"
    )


def _filters(before: PlanFacts, now: PlanFacts) -> str:
    was, are = before.filters_ahead, now.filters_ahead
    if len(was) != len(are) or list(was) == list(are):
        return ""
    old, new = _different(was, are)
    return (
        f"the rows of it were those with {old or 'no condition'}, and Spark would ask {new or 'no condition'} of new "
        "rows alone now: it asks a condition behind a join or a grouping before rows are kept"
    )


def _matches(before: PlanFacts, now: PlanFacts) -> str:
    if before.matches is None or now.matches is None or list(before.matches) == list(now.matches):
        return ""
    old, new = _different(before.matches, now.matches)
    return (
        f"its rows have met one another by {old or 'their keys alone'}, and would by {new or 'their keys alone'} now: "
        "it holds which of them have met none so far"
    )


def _columns(before: PlanFacts, now: PlanFacts) -> str:
    was, are = before.state_columns, now.state_columns
    if was is None or are is None or was == are:
        return ""
    old, new = _different(was, are)
    return (
        f"it has the columns of {old or 'nothing'}, the stage has {new or 'nothing'} now, and Spark tells columns of "
        "state apart by their order only"
    )


def _mode(before: PlanFacts, now: PlanFacts) -> str:
    """Compare when groups are passed on: those that are open in append mode would not be in another one, and complete
    mode would leave out those that a watermark has closed.
    """
    was, are = before.output_mode, now.output_mode
    leaves_out = (was == "append" and are in ("update", "complete")) or (
        (was, are) == ("update", "complete") and bool(before.groups_closed_by)
    )
    if not leaves_out or not any(one.startswith("groupBy(") for one in now.operators):
        return ""
    return (
        f"its output_mode was {was!r} and is {are!r} now, which would leave out groups "
        f"{'that are open' if are == 'update' else 'that were closed'}"
    )


def _aggregates(before: PlanFacts, now: PlanFacts) -> str:
    return why_other_aggregates(before.aggregates, now.aggregates)


def _variables(before: PlanFacts, now: PlanFacts) -> str:
    return why_other_variables(before.variables, now.variables)


def _fields(before: PlanFacts, now: PlanFacts) -> str:
    return why_other_fields(before.state_fields, now.state_fields)


def _origins(before: PlanFacts, now: PlanFacts) -> str:
    had, has = before.source_columns, now.source_columns
    return why_other_columns(before.origins, now.origins, had, has, now.operators)


def _watermark(before: PlanFacts, now: PlanFacts) -> str:
    was, are = before.watermarks, now.watermarks
    if not (set(was) - set(are) and set(are) - set(was)):
        return ""
    return (
        f"its watermark was of {', '.join(was)} and is of {', '.join(are)} now, and goes on from where the old one "
        "stood: rows that lie before it would be dropped as late"
    )


def _zone(before: PlanFacts, now: PlanFacts) -> str:
    was, are = before.time_zones, now.time_zones
    if not was or not are or was == are:
        return ""
    return (
        f"days and hours in it are those of the time zone {', '.join(was)}, and the session's is "
        f"{', '.join(are)} now"
    )


def _options(before: PlanFacts, now: PlanFacts) -> str:
    if not have_moved(before.source_options, now.source_options):
        return ""
    return (
        f"the order of its sources was another one, of those of {', '.join(before.sources)} that only their options "
        "tell apart, and Spark goes by their order only"
    )


def _sources(before: PlanFacts, now: PlanFacts) -> str:
    if not have_moved(before.sources, now.sources):
        return ""
    return (
        f"the order of its sources was {', '.join(before.sources)} and is {', '.join(now.sources)} now, and Spark "
        "tells sources apart by their order only"
    )


def _different(was: Sequence[str], are: Sequence[str]) -> tuple[str, str]:
    """Return the first two texts that differ; where there are more or less than before, all of them."""
    different = [(a, b) for a, b in zip(was, are, strict=False) if a != b]
    return different[0] if len(was) == len(are) else ("; ".join(was), "; ".join(are))


_NO_NAMES = "Spark keeps rows of state without names"
_ORDER = "Spark tells sources apart by their order only"

RULES = (
    Rule(
        Concern.CHAIN,
        "stages of one chain: one that is not its last gets a watermark or state, or its sources another order",
        _ORDER,
        _chain,
    ),
    Rule(
        Concern.STATE,
        'a stateful operator more, less or in another place; another grouping (also by `date_trunc("day", …)` instead '
        'of `"hour"`), aggregate, key or kind of join, columns of duplicates, size or time column of a window',
        "the state was made by another operator",
        _operators,
    ),
    Rule(
        Concern.STATE,
        "branches of one query with the same operator (a union of two counts, sides of a self-join) in another order",
        "Spark tells operators apart by their order only",
        _branches,
    ),
    Rule(
        Concern.STATE,
        "other columns that a stream-stream join keeps (those a query needs behind it), columns of duplicates or of "
        "`DISTINCT` in another order, fields of a state of `applyInPandasWithState` under other names, `cube` for "
        "`rollup`",
        _NO_NAMES,
        _columns,
    ),
    Rule(
        Concern.STATE,
        "`output_mode` of an aggregation: `append` made another one, `update` with a watermark that closes groups made "
        "`complete`",
        "groups that are open, or closed, would be left out",
        _mode,
    ),
    Rule(
        Concern.STATE,
        "other aggregates that a query uses behind its groups, or the same in another order (`count_if(ok), "
        "count_if(bad)` the other way round, `select` behind `groupBy` included)",
        "Spark keeps what each has seen without its name, in the order in which results are used",
        _aggregates,
    ),
    Rule(
        Concern.STATE,
        "variables of `transformWithState`: one more and one less at once, or fields of one under other names or in "
        "another order (one more, or one less, goes on)",
        "it may be the same under another name; " + _NO_NAMES,
        _variables,
    ),
    Rule(
        Concern.STATE,
        "fields of a struct that is kept whole (`max_by(row, at)`) under other names or in another order",
        _NO_NAMES,
        _fields,
    ),
    Rule(
        Concern.STATE,
        "a column that is grouped, joined, aggregated, kept by a join or given to a function with state is another one "
        "of the source's, under the same name (`a AS p` made `b AS p`)",
        "the source has had both all the time and nothing is computed on the way: rows of state would be of the other",
        _origins,
    ),
    Rule(
        Concern.STATE,
        "another column of a watermark that bounds the state",
        "it goes on from where the old one stood, and rows before it would be late",
        _watermark,
    ),
    Rule(
        Concern.STATE,
        "another time zone of the session, where state holds days, hours or moments made of text",
        "days of state are those of the old zone: set `spark.sql.session.timeZone` back",
        _zone,
        mend="set spark.sql.session.timeZone back",
    ),
    Rule(
        Concern.STATE,
        "a condition behind a stream-stream join on columns of one side; one more or less behind groups on their keys",
        "Spark asks it before rows are kept, and rows that are kept are not asked",
        _filters,
    ),
    Rule(
        Concern.STATE,
        "a condition on both sides of an outer or semi join, a bound of time included",
        "Spark keeps with each row whether it has met one by the old condition",
        _matches,
    ),
    Rule(
        Concern.POSITIONS,
        "sources in another order that only their options tell apart",
        _ORDER,
        _options,
    ),
    Rule(
        Concern.POSITIONS,
        "the inputs of a union or join in another order, sources in another order (also a list of folders that moves "
        "on), one more or less",
        _ORDER,
        _sources,
    ),
)
"""All rules, in the order in which they are asked."""
