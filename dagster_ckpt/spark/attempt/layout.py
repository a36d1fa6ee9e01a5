"""Layout of an attempt: which of its stages run as one query, known before anything is claimed.

An attempt that goes on keeps the chains of what it goes on from: its own run's, its directory's, its snapshot's. Only
one that begins without state chooses, and only then the stages' plans are looked at, for which it takes a session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ckpt.core.chains import kept_chains
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import Chain
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.runtime.attempt_setup import Ownership
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.spark.attempt.stage_query import call_stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_ckpt.spark.attempt.pipeline_setup import PipelineSetup


@dataclass(frozen=True, slots=True)
class OpenedChains:
    """Chains an attempt is opened with; opening it finds out whether they are those of what it starts from."""

    chains: tuple[Chain, ...]
    fits_fresh: bool
    """They may be those of a start without state too."""


def chains_to_begin_with(setup: PipelineSetup, ownership: Ownership) -> OpenedChains:
    """Return the chains the attempt most probably has: the last one's.

    Raises InvalidRequest where this very run has begun with chains that the stages do not fit any more.
    """
    loaded = RecordStore(setup.store).load(setup.pipeline.name)
    if loaded is None:
        return chosen_chains(setup)
    record = loaded.record
    runs_now = record.owner == setup.owner and record.status_epoch == record.epoch
    try:
        chains = kept_chains(setup.pipeline.graph, record.chains)
    except InvalidRequest:
        if ownership is Ownership.ATTACH and runs_now:
            raise
        chains = ()  # the directory is not adopted then, and a snapshot of it is refused
    return OpenedChains(chains, fits_fresh=not chains and not setup.config.operator_chaining)


def chosen_chains(setup: PipelineSetup) -> OpenedChains:
    """Return the chains of a pipeline that begins without state: none, unless ``operator_chaining`` is on."""
    if not setup.config.operator_chaining:
        return OpenedChains((), fits_fresh=True)

    def call(spark: SparkSession, uid: StageUid, inputs: Sequence[DataFrame]) -> DataFrame:
        return call_stage(setup.pipeline.stages[uid], spark, inputs, setup.arguments(uid))

    chains = setup.choose(setup.pipeline, setup.session(), call, setup.reporter.info)
    return OpenedChains(chains, fits_fresh=True)
