"""Streaming sources of a query in Spark's order, by which alone it tells their positions apart, and what they read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.channel.schema import FORMAT
from dagster_ckpt.spark.java.plans import analyzed_plan, leaves_of, nodes_of, scala_items
from dagster_ckpt.spark.plan.tree import Tree, is_source, walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_KAFKA = "kafka"
_TOPICS = ("subscribe", "subscribePattern", "assign")
_NOT_WHAT_IS_READ = re.compile(r"max|min|.*(?:password|secret|token|credential|jaas)")
"""Options that say how fast, and those that nothing is kept of."""


def sources_in(plan: Tree, frame: DataFrame) -> list[str]:
    """Return the names of the streaming sources in Spark's order; channels are told apart by their offsets."""
    found = (node for node in walk(plan) if is_source(node))
    names = [str(node.get("sourceName", "")) for node in found if "sourceName" in node]
    return [_with_topics(node) for node in relations(frame)] if _KAFKA in names else names


def options_of_sources(names: Sequence[str], frame: DataFrame) -> list[str]:
    """Return a digest per source of the options that say what is read, where sources have one name.

    The name of files is their folder: which of them are read may be said by an option. Options of other sources may be
    all that says what they read.
    """
    if len(set(names)) == len(names):
        return []
    return [_digest(one) if one.sourceName() != FORMAT else "" for one in relations(frame)]


def schemas_of_sources(frame: DataFrame) -> list[str]:
    """Return the schema of each source in Spark's order, as JSON; none of a channel, which its writer tells."""
    return ["" if one.sourceName() == FORMAT else str(one.schema().json()) for one in relations(frame)]


def channels_read(frame: DataFrame) -> dict[int, Path]:
    """Return the working directory of the stage that writes each channel, by the channel's place in the plan."""
    found = enumerate(relations(frame))
    return {n: Path(options_said(one)["path"]).parent for n, one in found if one.sourceName() == FORMAT}


def have_moved(before: Sequence[str], now: Sequence[str]) -> bool:
    """Tell whether a source would go on from the position of another one that was in its place."""
    return any(one != other and other in before for one, other in zip(before, now, strict=False))


def relations(frame: DataFrame) -> Iterator[Any]:
    """Return the places of a plan at which streams are read, as Spark's own objects."""
    nodes = nodes_of(analyzed_plan(frame))
    return (node for node in nodes if str(node.getClass().getSimpleName()).startswith("StreamingRelation"))


def _with_topics(relation: Any) -> str:
    """Return a source's name; that of Kafka's does not say which topics it reads."""
    name = str(relation.sourceName())
    if name != _KAFKA:
        return name
    said = (relation.extraOptions().get(option) for option in _TOPICS)
    return f"{name}[{next((text for text in said if text), '')}]"


def options_said(relation: Any) -> Mapping[str, str]:
    """Return the options that the reader of a source was given, as they are spelt."""
    if relation.getClass().getSimpleName() != "StreamingRelation":
        return dict(relation.extraOptions().asCaseSensitiveMap())
    return {str(option._1()): str(option._2()) for option in scala_items(relation.dataSource().options())}


def _digest(relation: Any) -> str:
    given = {name.lower(): value for name, value in options_said(relation).items()}
    telling = sorted((name, value) for name, value in given.items() if not _NOT_WHAT_IS_READ.match(name))
    return hashlib.sha256(json.dumps(telling).encode()).hexdigest()[:16]


# --- files that Spark would take away -------------------------------------------------------------------------

# Files that Spark removes from a source by itself: no restore reads them again, and none says so.

CLEANS = "cleansource"
LEAVES_THEM = "off"


def refuse_clean_source(title: str, frame: DataFrame) -> None:
    """Raise InvalidRequest where a file source of these rows has the option ``cleanSource``.

    Spark removes what a committed batch has read; the checkpoint that a run goes on from may be older.
    """
    for name, value in _set_options(frame):
        if name.lower() == CLEANS and value.strip().lower() != LEAVES_THEM:
            raise InvalidRequest(
                f"a source of {title} has the option {name}={value!r}: Spark takes files away once it has read them, "
                "before a checkpoint holds their rows, and a run that goes on from an older one passes over them "
                "without a word. Leave the option out, and remove files that no retained snapshot reads again"
            )


def _set_options(frame: DataFrame) -> Iterator[tuple[str, str]]:
    for leaf in leaves_of(analyzed_plan(frame)):
        if leaf.getClass().getSimpleName() == "StreamingRelation":
            for option in scala_items(leaf.dataSource().options()):
                yield str(option._1()), str(option._2())
