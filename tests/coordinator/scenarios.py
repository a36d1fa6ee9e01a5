"""The pipeline most scenarios play on."""

from __future__ import annotations

from typing import Unpack

from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness
from dagster_ckpt.testing.coordinator.settings import HarnessOptions


def two(**options: Unpack[HarnessOptions]) -> CoordinatorHarness:
    """Stage ``a`` before stage ``b``, one subtask each."""
    merged: HarnessOptions = {"stages": {"a": 1, "b": 1}, "edges": [("a", "b")], **options}
    return CoordinatorHarness(**merged)
