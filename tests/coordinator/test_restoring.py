"""What an attempt begins from (CheckpointCoordinatorRestoringTest, CheckpointMetadataLoadingTest)."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.graph import StageSpec
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import CheckpointKind
from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.testing.coordinator.events import RecordingHook, RecordingOperatorCoordinator
from dagster_ckpt.testing.coordinator.harness import CoordinatorHarness


def stage(uid: str, parallelism: int, max_parallelism: int | None = None) -> StageSpec:
    return StageSpec(uid=StageUid(uid), parallelism=parallelism, max_parallelism=max_parallelism)


def stateful(h: CoordinatorHarness) -> int:
    """Complete a checkpoint in which every subtask has a file of its own."""
    cp = h.checkpoint()
    for spec in h.graph.topological:
        for subtask in range(spec.parallelism):
            h.acknowledge(cp, spec.uid, subtask, handles=[h.private(cp, spec.uid, f"part-{subtask}")])
    assert h.completed == [cp]
    return cp


@pytest.mark.parametrize(("before", "after"), [(2, 13), (13, 2)])
def test_a_stage_is_rescaled_and_the_others_stay(before: int, after: int) -> None:
    """CheckpointCoordinatorRestoringTest#testRestoreLatestCheckpointedStateScaleIn, …ScaleOut."""
    h = CoordinatorHarness(stages=[stage("one", 3, 42), stage("two", before, 13)])
    cp = stateful(h)
    n = h.next_attempt(stages=[stage("one", 3, 42), stage("two", after, 13)])
    assert n.restored == cp
    one, two = n.match("one"), n.match("two")
    assert one is not None
    assert two is not None
    assert (one.rescaled, two.rescaled) == (False, True)
    assert (two.snapshot.parallelism, two.parallelism, two.max_parallelism) == (before, after, 13)


def test_the_topology_changes_around_stages_that_keep_their_state() -> None:
    """CheckpointCoordinatorRestoringTest#testStateRecoveryWhenTopologyChangeIn, …Out."""
    h = CoordinatorHarness(stages={"op1": 10, "op3": 10, "op4": 10})
    cp = stateful(h)
    edited = {"op5": 10, "op1": 10, "op3": 8, "op6": 8}
    with pytest.raises(InvalidRequest, match=r"holds state of 'op4'.*new stage \('op5', 'op6'\)"):
        h.next_attempt(stages=edited)
    n = h.next_attempt(stages=edited, allow_non_restored_state=True)
    assert n.restored == cp
    assert {uid: n.match(uid) is not None for uid in edited} == {
        "op5": False,
        "op1": True,
        "op3": True,
        "op6": False,
    }
    with pytest.raises(NotFound, match="there is no stage 'op4'"):
        n.match("op4")


def test_a_stage_that_had_finished_begins_finished() -> None:
    """StateAssignmentOperationTest#testStateWithFullyFinishedOperators."""
    h = CoordinatorHarness(stages={"a": 3, "b": 3}, edges=[("a", "b")])
    h.finish("a")
    cp = h.checkpoint()
    h.acknowledge_all(cp)
    n = h.next_attempt()
    found = {uid: n.match(uid) for uid in ("a", "b")}
    assert {uid: m is not None and m.finished_on_restore for uid, m in found.items()} == {
        "a": True,
        "b": False,
    }


def test_nothing_was_restored_where_there_was_nothing() -> None:
    h = CoordinatorHarness()
    assert (h.restored, h.match("task")) == (None, None)


def test_a_restored_savepoint_says_what_it_is_and_where() -> None:
    """RestoredCheckpointStatsTest#testSimpleAccess."""
    h = CoordinatorHarness()
    savepoint = h.completed_savepoint()
    n = h.next_attempt(restore_from=f"savepoint-{savepoint}")
    assert n.restored == n.statistics.restored_id == savepoint
    row = n.statistics.checkpoint(savepoint)
    assert row is not None
    assert row.kind is CheckpointKind.SAVEPOINT
    assert row.path.startswith("memory://savepoints/savepoint-pipeline-")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not complete JSON"),
        (b"{", "is not complete JSON"),
        (b"\x00\x01", "is not complete JSON"),
        (b"[]", "names no format_version"),
        (b'{"format_version": 99}', "has format version 99; this library reads version 1"),
        (b'{"format_version": 1}', "pipeline: Field required"),
    ],
)
def test_a_damaged_newest_checkpoint_stops_the_recovery_and_an_older_one_can_be_named(
    content: bytes, why: str
) -> None:
    """DefaultCompletedCheckpointStoreTest#testCorruptDataInStateHandleStoreShouldNotBeSkipped,
    MetadataSerializer: an unknown version and a wrong magic number."""
    h = CoordinatorHarness(num_retained=2)
    older, newest = h.completed_checkpoint(), h.completed_checkpoint()
    h.damage(f"pipeline/chk-{newest}/_metadata", content)
    with pytest.raises(Corrupt, match=rf"chk-{newest}/_metadata .*{why}"):
        h.next_attempt()
    assert h.next_attempt(restore_from=f"chk-{older}").restored == older


def test_only_what_is_there_can_be_damaged() -> None:
    with pytest.raises(NotFound, match="'nothing' does not exist in checkpoint storage memory://checkpoints"):
        CoordinatorHarness().damage("nothing")


def test_pipelines_that_share_store_and_storage_do_not_meet() -> None:
    """AbstractFileCheckpointStorageAccessTestBase#testPersistMultipleMetadataOnlyCheckpoints."""
    one = CoordinatorHarness()
    other = CoordinatorHarness(pipeline="other", store=one.store, storage=one.storage)
    assert one.completed_checkpoint() == other.completed_checkpoint() == 1
    assert one.files() == other.files() == ["other/chk-1/_metadata", "pipeline/chk-1/_metadata"]


@pytest.mark.parametrize("end", ["", "/", "/_metadata"])
def test_a_snapshot_is_named_by_its_folder_or_its_metadata_file(end: str) -> None:
    """AbstractFileCheckpointStorageAccessTestBase#testPointerPathResolution."""
    h = CoordinatorHarness()
    savepoint = h.completed_savepoint()
    [metadata] = h.files("memory://savepoints")
    folder = metadata.removesuffix("/_metadata")
    assert h.next_attempt(restore_from=f"memory://savepoints/{folder}{end}").restored == savepoint


@pytest.mark.parametrize("path", ["this-is_not/a#filepath.at.all", "/nowhere", "file:///nope"])
def test_a_path_without_metadata_is_no_snapshot(path: str) -> None:
    """AbstractFileCheckpointStorageAccessTestBase#testFailingPointerPathResolution."""
    with pytest.raises(NotFound, match=f"^{path} is no checkpoint or savepoint: it has no _metadata file"):
        CoordinatorHarness().next_attempt(restore_from=path)


# --- going back while newer checkpoints are retained -----------------------------------------------------------


def gone_back(
    restore_from: str, hook: RecordingHook, driver: RecordingOperatorCoordinator
) -> CoordinatorHarness:
    """Complete two checkpoints, each with its own state of the hook, and restore as said, over both."""
    before = RecordingHook("hook", "first")
    h = CoordinatorHarness(num_retained=3, incremental=True, hooks=[before])
    h.completed_checkpoint()
    before.state = "second"
    h.completed_checkpoint()
    n = h.next_attempt(restore_from=restore_from, hooks=[hook], coordinators=[driver])
    assert n.completed == [1, 2]
    return n


def test_stages_that_restart_after_going_back_start_from_there_and_not_from_the_highest_number() -> None:
    """CheckpointCoordinator#restoreSavepoint: what was restored is the latest of the store."""
    hook, driver = RecordingHook("hook", "third"), RecordingOperatorCoordinator("task")
    n = gone_back("chk-1", hook, driver)
    n.fail_over()
    assert hook.restored == [(1, "first"), (1, "first")]
    assert driver.resets == [(1, 0)]
    assert n.completed_checkpoint() == 3
    n.fail_over()
    assert hook.restored[-1] == (3, "third")
    assert driver.resets[-1] == (3, 0)


def test_stages_that_restart_after_beginning_without_state_begin_without_it_again() -> None:
    hook, driver = RecordingHook("hook"), RecordingOperatorCoordinator("task")
    n = gone_back("none", hook, driver)
    n.fail_over()
    assert (hook.resets, hook.restored) == (2, [])
    assert driver.resets == [(None, 0)]


@pytest.mark.parametrize(("restore_from", "builds_on"), [("chk-1", 1), ("none", None), ("latest", 2)])
def test_a_checkpoint_builds_on_what_its_state_comes_from(restore_from: str, builds_on: int | None) -> None:
    n = gone_back(restore_from, RecordingHook("hook"), RecordingOperatorCoordinator("task"))
    cp = n.checkpoint()
    assert [p.builds_on for p in n.record.pending] == [builds_on]
    n.acknowledge_all(cp)
    n.checkpoint()
    assert [p.builds_on for p in n.record.pending] == [cp]


def test_a_savepoint_that_was_gone_back_to_is_needed_until_a_checkpoint_completes() -> None:
    h = CoordinatorHarness(num_retained=3)
    savepoint = h.completed_savepoint()
    h.completed_checkpoint()
    n = h.next_attempt(restore_from=f"savepoint-{savepoint}", claim_mode="no_claim")
    with pytest.raises(InvalidRequest, match="is needed"):
        n.dispose(savepoint)
    assert n.restart().restored == savepoint


@pytest.mark.parametrize("completes", [False, True])
def test_what_the_end_of_a_run_deletes_is_no_restore_point_though_it_was_gone_back_to(
    completes: bool,
) -> None:
    n = gone_back("chk-1", RecordingHook("hook"), RecordingOperatorCoordinator("task"))
    if completes:
        n.completed_checkpoint()
    n.close("failed")
    assert n.completed == []
    after = n.next_attempt("run-3", directory="missing")
    assert (after.restored, after.checkpoint()) == (None, 4 if completes else 3)


@pytest.mark.parametrize("restore_from", ["chk-1", "none"])
def test_a_restore_that_is_refused_before_it_changes_anything_leaves_latest_alone(restore_from: str) -> None:
    h = CoordinatorHarness(num_retained=3)
    first, newest = h.completed_checkpoint(), h.completed_checkpoint()
    h.next_attempt(restore_from=restore_from, running=False).close("suspended", clean=False)
    n = h.next_attempt("run-3")
    assert (first, n.restored) == (1, newest)
    assert all(entry.left_by is None for entry in n.coordinator.record.completed)


def test_a_restore_that_has_begun_to_change_tables_is_what_latest_goes_on_with() -> None:
    h = CoordinatorHarness(num_retained=3)
    first, _ = h.completed_checkpoint(), h.completed_checkpoint()
    refused = h.next_attempt(restore_from=f"chk-{first}", running=False)
    refused.coordinator.tables_change()
    refused.close("suspended", clean=False)
    assert h.next_attempt("run-3").restored == first


def test_a_savepoint_disposed_of_while_a_restore_is_refused_stays_gone() -> None:
    h = CoordinatorHarness(num_retained=3)
    first, newest = h.completed_checkpoint(), h.completed_checkpoint()
    savepoint = h.checkpoint(kind="savepoint")
    h.acknowledge_all(savepoint)
    n = h.next_attempt(restore_from=f"chk-{first}", running=False)
    n.dispose(savepoint)
    n.close("suspended", clean=False)
    later = h.next_attempt("run-3")
    assert later.restored == newest
    assert not later.coordinator.record.savepoints


def test_a_pipeline_that_finished_and_may_run_again_keeps_its_newest_checkpoint() -> None:
    h = CoordinatorHarness(num_retained=3)
    h.completed_checkpoint()
    newest = h.completed_checkpoint()
    h.coordinator.close(RunStatus.FINISHED, clean=True, keeps_newest=True)
    assert [entry.checkpoint_id for entry in h.coordinator.record.completed] == [newest]
