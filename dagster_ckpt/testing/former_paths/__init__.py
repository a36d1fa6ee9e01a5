"""Modules of ``testing/`` under the names they had in 0.1, as in ``core/former_paths``; to be removed in 1.0.

| file | its successor |
|---|---|
| ``harness`` | ``dagster_ckpt.testing.coordinator.harness`` |
"""
