"""Gateway to the stages of an epoch run."""

from __future__ import annotations

from dagster_ckpt.core.messages import TriggerStages
from dagster_ckpt.spark.attempt.gateway import StageGateway


class EpochGateway(StageGateway):
    """Stages of an epoch run pass the barrier when it is their turn; what is left to do is publishing."""

    def trigger(self, message: TriggerStages) -> None:
        """Nothing: each op passes the barrier behind its last batch."""
