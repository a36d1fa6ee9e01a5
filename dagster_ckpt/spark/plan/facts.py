"""Facts of a query's plan that its state and positions depend on, as they are written down beside the state.

Spark compares types only. Grouped by another column of the same type, or with ``max`` made ``min``, a query would go on
from the state of the other one without a word and its rows would be wrong. So the first start of a query writes its
facts down; captures take them along, and every later start compares (``rules``).

What may change: everything else, such as filters, projections, names of results, delays of watermarks, and values of
literals but for those that keys are made with. Names of columns count: nothing else says that a column is the same one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.plan.columns import (
    Fields,
    Kept,
    state_aggregates,
    state_columns,
    state_fields,
    types_of,
)
from dagster_ckpt.spark.plan.functions import variables_in
from dagster_ckpt.spark.plan.operators import (
    branches_in,
    filters_ahead,
    groups_in,
    matches_in,
    operators_in,
    watermarks_of,
    with_state,
)
from dagster_ckpt.spark.plan.origins import (
    ChannelColumns,
    Channels,
    Origin,
    columns_of_sources,
    made_into_state,
    origins_in,
    passed_on,
)
from dagster_ckpt.spark.plan.sources import channels_read, options_of_sources, schemas_of_sources, sources_in
from dagster_ckpt.spark.plan.time_zones import zone_of_reading, zones_of
from dagster_ckpt.spark.plan.tree import analyzed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


FORMAT = 4
"""Of the texts: those of another format, or of another Spark, are replaced and not compared."""


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """Facts of one query. None, and an empty list of before: Spark did not show them, and nothing is compared."""

    written_by: str = ""
    """Format of the texts, and Spark's version."""
    operators: Sequence[str] = ()
    """Stateful operators in the order of the plan: what rows are told apart by, and which aggregates are kept."""
    branches: Sequence[str] = ()
    """Digests of what the rows of each operator come through: operators of one text are told apart by it."""
    filters_ahead: Sequence[str] = ()
    """Conditions behind each operator that Spark asks before rows become its state."""
    matches: Sequence[str] | None = None
    """Conditions of joins by which rows have met another one, or none."""
    state_columns: Sequence[str] | None = None
    """Columns of each operator's state in their order."""
    state_fields: Sequence[Fields] | None = None
    """Fields of structs that each operator's state keeps whole."""
    state_types: Sequence[str] | None = None
    """Columns that state is made of, each with its type. Not compared by rules: Spark itself refuses another type."""
    aggregates: Sequence[Kept] | None = None
    """Aggregates of each operator, in the order of their state."""
    variables: Mapping[str, str] | None = None
    """Variables of ``transformWithState``, and the fields of each."""
    origins: Sequence[Mapping[str, Origin]] = ()
    """Columns of sources that the columns of each operator are."""
    source_columns: Sequence[Sequence[str]] = ()
    passed_on: Mapping[str, Origin] = field(default_factory=dict)
    """Columns of sources that the columns of its rows are. Not compared by rules: who reads its channel asks them."""
    watermarks: Sequence[str] = ()
    """Columns of watermarks that bound state."""
    groups_closed_by: Sequence[str] = ()
    """Columns of watermarks that close groups."""
    output_mode: str = ""
    time_zones: Sequence[str] = ()
    """Zones that state depends on."""
    read_in_zone: str = ""
    """Zone that rows depend on, with state or without."""
    sources: Sequence[str] = ()
    """Sources in Spark's order."""
    source_options: Sequence[str] = ()
    """Digests of the options of sources that only these tell apart."""
    source_schemas: Sequence[str] = ()
    """Schemas of the sources (JSON), of channels empty. Not compared: each stands in for a source out of reach."""
    functions: Mapping[str, str] | None = None
    """Digests of the stages' functions. Not compared by rules: what they mean is nobody's to say."""
    stages: Sequence[str] = ()
    """Of a chain: the stage that reads each source."""

    @classmethod
    def written(cls, directory: StageDirectory, renamed: Mapping[str, str]) -> PlanFacts:
        """Return the facts that an earlier start wrote down, if any; ``renamed``: stages by earlier uids."""
        try:
            found = parse_json(directory.plan.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            found = {}
        return cls.of(found, renamed)

    @classmethod
    def of(cls, written: object, renamed: Mapping[str, str]) -> PlanFacts:
        """Return the facts in what was written down, those that this version knows."""
        known = {field.name for field in fields(cls)}
        given = (
            {name: said for name, said in written.items() if name in known}
            if isinstance(written, dict)
            else {}
        )
        stages, functions = given.get("stages", []), given.get("functions") or {}
        if not isinstance(functions, dict) or not (
            isinstance(stages, list | tuple) and all(type(one) is str for one in stages)
        ):
            raise Corrupt(
                "plan.json of a stage names no stages where it should: restore from another checkpoint"
            )
        facts = cls(**given)
        functions = facts.functions and {renamed.get(one, one): said for one, said in facts.functions.items()}
        return replace(facts, stages=[renamed.get(one, one) for one in facts.stages], functions=functions)

    def write(self, directory: StageDirectory) -> None:
        """Write the facts down, whole or not at all."""
        text = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.stages:
            del text["stages"]
        directory.root.mkdir(parents=True, exist_ok=True)
        replace_whole(directory.plan, json.dumps(text, indent=1).encode())


def facts_of(
    frame: DataFrame,
    *,
    output_mode: str = "",
    stages: Sequence[str] = (),
    functions: Mapping[str, str] | None = None,
) -> PlanFacts | None:
    """Return the facts of a query; None where Spark does not show its plan (Connect, a node it cannot write).

    ``stages``: of a chain, the stage that reads each source, in Spark's order. ``functions``: digests by stage.
    """
    plan = analyzed(frame)
    if plan is None:
        return None
    stateful, sources = list(with_state(plan)), sources_in(plan, frame)
    channels = _channels(frame)
    made_of = list(made_into_state(plan, stateful))
    return PlanFacts(
        written_by=f"format {FORMAT}, Spark {frame.sparkSession.version}",
        operators=operators_in(plan),
        branches=branches_in(plan, stateful),
        filters_ahead=filters_ahead(plan),
        matches=matches_in(plan),
        state_columns=state_columns(frame, plan),
        state_fields=state_fields(frame, stateful),
        state_types=types_of(made_of),
        aggregates=state_aggregates(frame, plan),
        variables=variables_in(frame, plan),
        origins=origins_in(plan, stateful, channels),
        source_columns=columns_of_sources(plan, channels),
        passed_on=passed_on(plan, frame.columns, channels),
        watermarks=watermarks_of(plan, stateful),
        groups_closed_by=watermarks_of(plan, groups_in(stateful)),
        output_mode=output_mode,
        time_zones=zones_of(plan, made_of, frame),
        read_in_zone=zone_of_reading(plan, frame),
        sources=sources,
        source_options=options_of_sources(sources, frame),
        source_schemas=schemas_of_sources(frame),
        functions=functions,
        stages=list(stages),
    )


def _channels(frame: DataFrame) -> Channels:
    """Return the columns of the channels that a query reads, of those whose writers' facts are known."""
    found = {}
    for place, folder in channels_read(frame).items():
        writer = StageDirectory(folder)
        facts = PlanFacts.written(writer, {})
        if facts.source_columns:
            found[place] = ChannelColumns(writer.root.name, facts.source_columns, facts.passed_on)
    return found
