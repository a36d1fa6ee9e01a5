"""CheckpointProperties: the whole matrix of kind, retention and end of the run."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.config import CheckpointConfig, ClaimMode, ExternalizedCheckpointRetention
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import (
    CheckpointProperties,
    RunStatus,
    SharingStrategy,
    properties_for,
    restored_properties,
    sharing_of,
)

ENDS = (RunStatus.FINISHED, RunStatus.CANCELED, RunStatus.FAILED, RunStatus.SUSPENDED)
SAVEPOINTS = [kind for kind in CheckpointKind if kind.is_savepoint]
NO_EXTERNALIZED, ON_CANCELLATION, RETAIN = (
    ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS,
    ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION,
    ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION,
)


def _discarded(properties: CheckpointProperties) -> set[str]:
    found = {status.value for status in ENDS if properties.discard_on(status)}
    return found | ({"subsumed"} if properties.discard_subsumed else set())


def _config(retention: ExternalizedCheckpointRetention) -> CheckpointConfig:
    return CheckpointConfig(externalized_checkpoint_retention=retention)


@pytest.mark.parametrize(
    ("retention", "discarded"),
    [
        (NO_EXTERNALIZED, {"subsumed", "finished", "canceled", "failed", "suspended"}),
        (ON_CANCELLATION, {"subsumed", "finished", "canceled", "suspended"}),
        (RETAIN, {"subsumed", "finished"}),
    ],
)
@pytest.mark.parametrize("kind", [CheckpointKind.CHECKPOINT, CheckpointKind.FULL_CHECKPOINT])
def test_a_checkpoint_is_discarded_as_its_retention_says(
    kind: CheckpointKind, retention: ExternalizedCheckpointRetention, discarded: set[str]
) -> None:
    """CheckpointPropertiesTest#testCheckpointProperties, CCT#testExternalizedCheckpoints (coordinator)."""
    properties = properties_for(kind, _config(retention))
    assert _discarded(properties) == discarded
    assert not properties.forced
    assert not properties.unclaimed


@pytest.mark.parametrize("retention", list(ExternalizedCheckpointRetention))
@pytest.mark.parametrize("kind", SAVEPOINTS)
def test_a_savepoint_is_never_discarded_by_the_coordinator(
    kind: CheckpointKind, retention: ExternalizedCheckpointRetention
) -> None:
    """CheckpointPropertiesTest#testSavepointProperties."""
    assert _discarded(properties_for(kind, _config(retention))) == set()


@pytest.mark.parametrize("kind", SAVEPOINTS)
def test_a_savepoint_is_forced_unless_unaligned_checkpoints_are_on(kind: CheckpointKind) -> None:
    """CheckpointCoordinatorTest#testSavepointScheduledInUnalignedMode."""
    assert properties_for(kind, CheckpointConfig()).forced
    assert not properties_for(kind, CheckpointConfig(unaligned=True)).forced


@pytest.mark.parametrize("kind", list(CheckpointKind))
def test_only_a_checkpoint_can_be_subsumed_while_pending(kind: CheckpointKind) -> None:
    """PendingCheckpointTest#testCanBeSubsumed, #testSyncSavepointCannotBeSubsumed."""
    assert properties_for(kind, CheckpointConfig()).can_be_subsumed is not kind.is_savepoint


def test_a_snapshot_restored_without_claim_is_never_discarded_and_unclaimed() -> None:
    """SavepointITCase#testTriggerSavepointAndResumeWithNoClaim."""
    properties = restored_properties(ClaimMode.NO_CLAIM, _config(NO_EXTERNALIZED))
    assert _discarded(properties) == set()
    assert properties.unclaimed
    assert not properties.forced


def test_a_snapshot_restored_in_legacy_mode_is_never_discarded_yet_not_unclaimed() -> None:
    """SavepointITCase#testTriggerSavepointAndResumeWithLegacyMode."""
    properties = restored_properties(ClaimMode.LEGACY, _config(NO_EXTERNALIZED))
    assert _discarded(properties) == set()
    assert not properties.unclaimed
    assert properties.kind.is_savepoint


@pytest.mark.parametrize("retention", list(ExternalizedCheckpointRetention))
def test_a_claimed_snapshot_is_treated_as_one_of_the_pipelines_own_checkpoints(
    retention: ExternalizedCheckpointRetention,
) -> None:
    """SavepointITCase#testTriggerSavepointAndResumeWithClaim."""
    config = _config(retention)
    assert restored_properties(ClaimMode.CLAIM, config) == properties_for(CheckpointKind.CHECKPOINT, config)


def test_nothing_is_discarded_while_the_run_goes_on() -> None:
    properties = properties_for(CheckpointKind.CHECKPOINT, CheckpointConfig())
    assert not properties.discard_on(RunStatus.RUNNING)


def test_a_full_checkpoint_builds_on_none_and_a_savepoint_is_shared_with_none() -> None:
    """Flink: SnapshotType.SharingFilesStrategy."""
    assert sharing_of(CheckpointKind.CHECKPOINT) is SharingStrategy.FORWARD_BACKWARD
    assert sharing_of(CheckpointKind.FULL_CHECKPOINT) is SharingStrategy.FORWARD
    assert {sharing_of(kind) for kind in SAVEPOINTS} == {SharingStrategy.NO_SHARING}


def test_properties_survive_the_way_through_the_record() -> None:
    """CheckpointCoordinatorTriggeringTest#testTriggeringFullSnapshotAfterJobmasterFailover needs it."""
    for kind in CheckpointKind:
        properties = properties_for(kind, CheckpointConfig())
        assert CheckpointProperties.model_validate_json(properties.model_dump_json()) == properties


def test_only_three_ends_are_globally_terminal() -> None:
    terminal = {status for status in RunStatus if status.is_globally_terminal}
    assert terminal == {RunStatus.FINISHED, RunStatus.CANCELED, RunStatus.FAILED}
