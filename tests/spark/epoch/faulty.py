"""A coordinator resource whose checkpoint storage fails on demand."""

from __future__ import annotations

from dagster_ckpt import CheckpointCoordinatorResource
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.testing.faults import FailNext
from dagster_ckpt.testing.faulty import FaultyStorage

FAILURES = FailNext()
"""Armed by a test, disarmed by its fixture: resources are made anew from their settings in every run."""


class FaultyCoordinatorResource(CheckpointCoordinatorResource):
    """All storages it opens obey ``FAILURES``."""

    def open_storage(self, uri: str) -> CheckpointStorage:
        return FaultyStorage(super().open_storage(uri), FAILURES)
