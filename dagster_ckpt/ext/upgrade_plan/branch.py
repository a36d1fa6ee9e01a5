"""The branch of a pipeline that is rebuilt: a sink and all it is made of, as a pipeline of its own beside the other."""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import StageUid, pipeline_id
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.ext.wrapped import options_asked, readers
from dagster_ckpt.spark.attempt.own_objects import StageArguments, call_stage
from dagster_ckpt.spark.plan.functions import UNREADABLE, digest_of
from dagster_ckpt.spark.plan.sources import options_said, relations
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FROM_BEGINNING, FROM_NOW = "from-beginning", "from-now"
_KEEPS_NOTHING = ("rate", "socket")
_BEGINS = ("startingtimestamp", "startingoffsetsbytimestamp", "startingoffsets")
"""Options of Kafka's reader that say where it begins, the strongest first."""


@dataclass(frozen=True, slots=True)
class StartMode:
    """Start mode of all sources of a branch."""

    name: str = ""
    """Empty: as the code says."""
    moment: datetime | None = None

    @classmethod
    def of(cls, text: str) -> StartMode:
        """Return the mode that a text names. Raises InvalidRequest."""
        if text in ("", FROM_BEGINNING, FROM_NOW):
            return cls(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            wanted = f"{FROM_BEGINNING}, {FROM_NOW}, or a moment such as 2026-11-28T06:00Z"
            raise InvalidRequest(f"start mode {text!r} is none of {wanted}") from None
        return cls(text, moment if moment.tzinfo else moment.replace(tzinfo=UTC))

    def begun(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a source's function whose readers begin there."""
        if not self.name:
            return function

        @functools.wraps(function)
        def called(*given: Any, **named: Any) -> Any:
            with readers(self._beginning):
                return function(*given, **named)

        return called

    def _beginning(self, _name: str, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(reader: Any, *given: Any, **options: Any) -> Any:
            asked = options.get("format") or options_asked(reader).get("format")
            return load(reader.options(**self._options(str(asked).lower())), *given, **options)

        return loaded

    def _options(self, source: str) -> Mapping[str, str]:
        if source != "kafka":
            return {}
        if self.moment is not None:
            at = str(int(self.moment.timestamp() * 1000))
            return {"startingTimestamp": at, "startingOffsetsByTimestampStrategy": "latest"}
        return {"startingOffsets": "earliest" if self.name == FROM_BEGINNING else "latest"}

    def refuse(self, uid: str, source: str, said: Mapping[str, str]) -> None:
        """Raise InvalidRequest where a source does not begin there; ``said``: its options, by names in small letters.

        Without a mode: where it does not say where it begins, or keeps no rows.
        """
        if why := self._why_not(source, said):
            raise InvalidRequest(f"{uid!r} reads {source}, {why}")

    def _why_not(self, source: str, said: Mapping[str, str]) -> str:
        if source.startswith(_KEEPS_NOTHING):
            gone = "which keeps no rows: what was read is gone, and nothing is rebuilt of it. Give its sink a new uid"
            return "" if self.name == FROM_NOW else f"{gone}, or begin {FROM_NOW}"
        if source == "kafka":
            if not said.keys() & set(_BEGINS):
                return (
                    "and does not say where, so that Spark begins at the end: give a start mode, or its reader "
                    "startingOffsets or startingTimestamp, which only a query's first batch reads"
                )
            stronger = [one for one in _BEGINS[:2] if one in said and self.name and self.moment is None]
            return f"with {stronger[0]}, which is stronger than {self.name}: leave it out" if stronger else ""
        if source.startswith("filesource") and self.name in ("", FROM_BEGINNING):
            return ""
        if source.startswith("filesource"):
            return (
                "and Spark reads all of a folder: have its reader name the files that are to be read (a path, "
                f"pathGlobFilter), and begin {FROM_BEGINNING}"
            )
        return self.name and (
            f"of which it is not known how to begin {self.name}: say it in the reader's options, and give no start mode"
        )


REBUILT = ".rebuilt"
"""Folder below the pipeline's tables in which a branch has its own until it takes over."""


@dataclass(frozen=True, kw_only=True)
class Branch:
    """Branch of a pipeline that begins empty beside it."""

    uid: StageUid
    """The sink that is rebuilt."""
    members: tuple[StageUid, ...]
    """All stages that are, inputs before their readers, ``uid`` last."""
    pipeline: CheckpointedPipeline
    folder: Path
    """Where its table is; another one for other code, and there once a try has got somewhere with this very code."""
    start_mode: StartMode


def branch_of(pipeline: CheckpointedPipeline, uid: str, table_dir: Path, start_mode: StartMode) -> Branch:
    """Return the branch that ends in a sink. Raises NotFound, InvalidRequest where it cannot be rebuilt alone."""
    authored = pipeline.authored
    begun = {
        one: stage if authored.upstream[one] else replace(stage, fn=start_mode.begun(stage.fn))
        for one, stage in authored.stages.items()
    }
    authored = replace(authored, stages=begun)
    stage = authored.stages.get(StageUid(uid))
    if stage is None:
        there = ", ".join(authored.stages)
        raise NotFound(f"pipeline {pipeline.name!r} has no stage {uid!r}: it has {there}")
    for why in why_not_alone(authored, stage.uid):
        raise InvalidRequest(why)
    assert stage.table is not None
    members = (*authored.ancestors(stage.uid), stage.uid)
    folder = table_dir / REBUILT / f"{pipeline.name}.{uid}" / _digest_of(authored, members)
    sink = replace(stage, to=None, asset="", table=replace(stage.table, name=uid))
    stages = {one: authored.stages[one] for one in members} | {stage.uid: sink}
    apart = {one: replace(each, reads=each.reads and each.reads.of_fork()) for one, each in stages.items()}
    alone = replace(
        authored,
        name=pipeline_id(f"{pipeline.name}_rebuilds_{uid}"),
        previous_names=(),
        stages=apart,
        upstream={one: authored.upstream[one] for one in members},
        table_dir=str(folder / "tables"),
        hooks=(),
        derived=(),
        after_publish=(),
        forked_from=None,
    )
    return Branch(uid=stage.uid, members=members, pipeline=alone, folder=folder, start_mode=start_mode)


def why_not_alone(pipeline: CheckpointedPipeline, uid: StageUid) -> Iterator[str]:
    """Yield why a stage cannot be rebuilt while the others keep their state, each with its way out."""
    stage, members = pipeline.stages[uid], (*pipeline.ancestors(uid), uid)
    if pipeline.program:
        yield (
            f"{pipeline.name!r} starts its queries itself: start the one that is to be rebuilt under another name, "
            "with a checkpointLocation of its own"
        )
    if stage.title:
        yield f"{stage.title} is declared by a project, whose tables are rebuilt together: fork it, and swap readers"
    if stage.table is None or pipeline.consumers(uid):
        readers = ", ".join(pipeline.consumers(uid))
        yield (
            f"{uid!r} has readers ({readers}), whose state and rows are of what it wrote: rebuild a sink, and what "
            "leads to it is rebuilt with it; or fork the pipeline"
        )
    if pipeline.hooks and any(pipeline.stages[one].takes_context for one in members):
        yield f"{uid!r} may ask hooks (context), which belong to one run at a time: fork the pipeline"
    for one in members:
        others = [reader for reader in pipeline.consumers(one) if reader not in members]
        if others:
            yield (
                f"{uid!r} reads {one!r} as {others[0]!r} does, through a channel, which keeps no rows once they are "
                f"read: give {uid!r} a source of its own ({one}.with_uid(...)) in the new code, or fork the pipeline"
            )
        if pipeline.stages[one].participant is not None:
            yield (
                f"{one!r} has a quarantine, whose rows would be there twice: rebuild it without conditions, or "
                "fork the pipeline"
            )
        if pipeline.stages[one].barrier_after is not None:
            yield f"{one!r} says where barriers fall (barrier_after): fork the pipeline"


def refuse_ahead(
    branch: Branch, sink: Sink, spark: SparkSession, arguments: Callable[[StageUid], StageArguments]
) -> None:
    """Raise InvalidRequest where a source does not give its rows again, or ``sink``'s table cannot take the new ones.

    ``sink``: the one whose rows are exchanged in the end.
    """
    frames: dict[StageUid, DataFrame] = {}
    for uid in branch.members:
        stage, inputs = branch.pipeline.stages[uid], branch.pipeline.upstream[uid]
        frames[uid] = call_stage(stage, spark, [frames[one] for one in inputs], arguments(uid))
        if not inputs:
            for relation in relations(frames[uid]):
                said = {name.lower(): value for name, value in options_said(relation).items()}
                branch.start_mode.refuse(uid, str(relation.sourceName()).lower(), said)
    rows = PreparedBatch(batch_id=0, epoch=1, files=(), row_schema=frames[branch.uid].schema.json())
    sink.check(frames[branch.uid])
    sink.refuse_unfit([rows])


def _digest_of(pipeline: CheckpointedPipeline, members: Sequence[StageUid]) -> str:
    """Return a name of the branch's code: a branch that was begun with other code is not gone on with."""
    digests = [digest_of(pipeline.stages[uid].fn) for uid in members]
    if UNREADABLE in digests:
        return f"once-{secrets.token_hex(6)}"
    stages = [pipeline.stages[uid] for uid in members]
    said = [(one.uid, one.output_mode, one.partitions, one.table and one.table.key) for one in stages]
    text = repr((digests, said, [pipeline.upstream[uid] for uid in members]))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
