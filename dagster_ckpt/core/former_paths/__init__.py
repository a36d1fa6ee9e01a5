"""Modules of ``core/`` under the names they had in 0.1, for scenarios written against those; to be removed in 1.0.

``core/__init__.py`` looks for modules here last, so ``dagster_ckpt.core.requests`` still is one. New code imports from
``dagster_ckpt.testing``. Each of these is its successor under another name, not a copy.

| file | its successor |
|---|---|
| ``assignment`` | ``dagster_ckpt.core.rescaling.assignment`` |
| ``cleaning`` | ``dagster_ckpt.core.files.cleaning`` |
| ``events`` | ``dagster_ckpt.core.coordinator.events`` |
| ``failures`` | ``dagster_ckpt.core.checkpoint.failures`` |
| ``finished_state`` | ``dagster_ckpt.core.restore.finished_state`` |
| ``key_groups`` | ``dagster_ckpt.core.rescaling.key_groups`` |
| ``local_recovery`` | ``dagster_ckpt.core.files.local_recovery`` |
| ``matching`` | ``dagster_ckpt.core.restore.matching`` |
| ``plan`` | ``dagster_ckpt.core.checkpoint.plan`` |
| ``requests`` | ``dagster_ckpt.core.checkpoint.requests`` |
| ``retention`` | ``dagster_ckpt.core.files.retention`` |
| ``shared_state`` | ``dagster_ckpt.core.files.shared_state`` |
| ``statistics`` | ``dagster_ckpt.core.checkpoint.statistics`` |
| ``stop_with_savepoint`` | ``dagster_ckpt.core.checkpoint.stop_with_savepoint`` |
| ``tasks`` | ``dagster_ckpt.core.checkpoint.tasks`` |
"""
