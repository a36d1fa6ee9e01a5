"""Ids of the topics that a query reads, asked in its first batch: what was deleted and made again is told by them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dagster_ckpt.core.ids import BatchId, StageUid
from dagster_ckpt.errors import CheckpointError
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.snapshot.capture import read_offsets
from dagster_ckpt.spark.snapshot.topic_notes import note_topic_ids
from dagster_ckpt.spark.source.port import TopicLog
from dagster_ckpt.spark.source.positions import positions_at

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

__all__ = ["note_topics"]

log = logging.getLogger("dagster_ckpt.stage")


def note_topics(
    pipeline: CheckpointedPipeline, uid: StageUid, directory: StageDirectory, batch: BatchId
) -> None:
    """Write down which topics a batch of a stage reads, for its snapshots; without an answer nothing is.

    Spark has planned the batch, and not read a row of it for anybody yet.
    """
    members = pipeline.members(uid)
    if all(pipeline.authored.stages[one].reads is None for one in members):
        return
    ids: dict[str, str] = {}
    try:
        for at in positions_at({uid: read_offsets(directory.query, batch)}, pipeline.chains, pipeline):
            if at.origin is not None:
                topics: TopicLog = at.origin.open()
                ids |= topics.ids(list(at.positions))
    except CheckpointError as error:
        log.warning("whether topics of %s are made again will not be told: %s", uid, error)
        return
    note_topic_ids(directory, ids)
