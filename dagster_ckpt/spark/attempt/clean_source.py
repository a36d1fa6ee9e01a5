"""Files that Spark removes from a source by itself: no restore reads them again, and none says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OPTION = "cleansource"
_LEAVES_THEM = "off"


def refuse_clean_source(title: str, frame: DataFrame) -> None:
    """Raise InvalidRequest where a file source of these rows has the option ``cleanSource``.

    Spark removes what a committed batch has read; the checkpoint that a run goes on from may be older.
    """
    for name, value in _options(frame):
        if name.lower() == _OPTION and value.strip().lower() != _LEAVES_THEM:
            raise InvalidRequest(
                f"a source of {title} has the option {name}={value!r}: Spark takes files away once it has read them, "
                "before a checkpoint holds their rows, and a run that goes on from an older one passes over them "
                "without a word. Leave the option out, and remove files that no retained snapshot reads again"
            )


def _options(frame: DataFrame) -> Iterator[tuple[str, str]]:
    plan: Any = frame._jdf.queryExecution().analyzed()
    for leaf in _items(plan.collectLeaves()):
        if leaf.getClass().getSimpleName() == "StreamingRelation":
            for option in _items(leaf.dataSource().options()):
                yield str(option._1()), str(option._2())


def _items(found: Any) -> Iterator[Any]:
    items = found.iterator()
    while items.hasNext():
        yield items.next()
