"""What a new attempt starts from."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from dagster_ckpt.core.config import CheckpointConfig, ClaimMode, RestoreOptions
from dagster_ckpt.core.graph import Edge, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import LARGEST_NUMBER, CheckpointId, CoordinatorEpoch, PipelineId, StageUid
from dagster_ckpt.core.model import (
    CheckpointKind,
    CheckpointMetadata,
    SnapshotMetrics,
    StageSnapshot,
    TableSnapshot,
)
from dagster_ckpt.core.paths import SnapshotLocation
from dagster_ckpt.core.request import properties_for, restored_properties
from dagster_ckpt.core.restore.choice import Adopt, Fresh, FromSnapshot, Restore, choose_restore_point
from dagster_ckpt.core.restore.facts import (
    AttemptEnd,
    DirectoryState,
    KnownHistory,
    KnownSnapshot,
    Origin,
    PreviousAttempt,
    RestoreFacts,
    RestoreLine,
    RestorePurpose,
    shape_of,
)
from dagster_ckpt.core.restore.from_snapshot import as_known, line_after, purpose_for, restore_of
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound

PIPELINE = PipelineId("flights")
CONFIG = CheckpointConfig()


def graph(**changes: Any) -> PipelineGraph:
    stages = {
        "src": StageSpec(uid=StageUid("src")),
        "agg": StageSpec(uid=StageUid("agg"), parallelism=4),
    } | changes
    present = [stage for stage in stages.values() if stage is not None]
    return PipelineGraph(
        pipeline=PIPELINE,
        stages=tuple(present),
        edges=tuple(Edge(upstream=one.uid, downstream=two.uid) for one, two in pairwise(present)),
    )


def known(number: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT, epoch: int = 1) -> KnownSnapshot:
    folder = f"savepoint-flights-{number:06d}" if kind.is_savepoint else f"flights/chk-{number}"
    return KnownSnapshot(
        checkpoint_id=CheckpointId(number),
        kind=kind,
        location=SnapshotLocation(base_uri="file:///data", folder=folder),
        properties=properties_for(kind, CONFIG),
        epoch=CoordinatorEpoch(epoch),
    )


def savepoint(number: int, epoch: int = 1) -> KnownSnapshot:
    return known(number, CheckpointKind.SAVEPOINT, epoch)


def stop_savepoint(number: int, epoch: int = 1) -> KnownSnapshot:
    return known(number, CheckpointKind.SYNC_SAVEPOINT_SUSPEND, epoch)


def attempt(
    epoch: int = 1,
    ended: AttemptEnd = AttemptEnd.CLEAN,
    directory: DirectoryState = DirectoryState.INTACT,
    ran: PipelineGraph | None = None,
) -> PreviousAttempt:
    return PreviousAttempt(
        epoch=CoordinatorEpoch(epoch),
        working_directory=f"/data/attempt-{epoch}",
        ended=ended,
        directory=directory,
        shape=shape_of(ran or graph()),
    )


def facts(**given: Any) -> RestoreFacts:
    return RestoreFacts(pipeline=PIPELINE, **given)


def choose(
    restore_from: str, given: RestoreFacts, now: PipelineGraph | None = None
) -> Fresh | Adopt | FromSnapshot:
    return choose_restore_point(RestoreOptions(restore_from=restore_from), given, now or graph())


def begins_line(restore_from: str, given: RestoreFacts) -> bool:
    choice = choose(restore_from, given)
    return not isinstance(choice, Adopt) and choice.begins_line


def loaded_id(choice: Fresh | Adopt | FromSnapshot) -> int:
    assert isinstance(choice, FromSnapshot)
    assert choice.known is not None
    return choice.known.checkpoint_id


def stage(uid: str, **given: Any) -> StageSnapshot:
    return StageSnapshot(**({"uid": uid, "parallelism": 1, "batch_id": 7} | given))


def saved(*stages: StageSnapshot, **given: Any) -> CheckpointMetadata:
    values: dict[str, Any] = {
        "pipeline": PIPELINE,
        "checkpoint_id": 31,
        "kind": CheckpointKind.CHECKPOINT,
        "epoch": 1,
        "triggered_at": 1.0,
        "completed_at": 2.0,
        "stages": stages or (stage("src"), stage("agg", parallelism=4, input_positions={"src": 9})),
    }
    return CheckpointMetadata(**(values | given))


def restore(
    metadata: CheckpointMetadata,
    now: PipelineGraph | None = None,
    *,
    load: FromSnapshot | None = None,
    given: RestoreFacts | None = None,
    purpose: RestorePurpose = RestorePurpose.IN_PLACE,
    asked: RestorePurpose = RestorePurpose.IN_PLACE,
    **options: Any,
) -> Restore:
    entry = known(metadata.checkpoint_id, metadata.kind)
    return restore_of(
        load or FromSnapshot(location=entry.location, origin=Origin.OUTSIDE, known=entry, reason="test"),
        metadata,
        options=RestoreOptions(**options),
        facts=given or facts(),
        graph=now or graph(),
        config=CONFIG,
        purpose=purpose,
        asked=asked,
    )


# --- latest ---------------------------------------------------------------------------------------


def test_the_first_attempt_starts_without_state() -> None:
    """CheckpointStateRestoreTest#testNoCheckpointAvailable."""
    choice = choose("latest", facts())
    assert isinstance(choice, Fresh)
    assert choice.next_checkpoint_id == 1


def test_a_clean_and_intact_working_directory_is_adopted_even_if_its_checkpoint_failed() -> None:
    """Failing checkpoint storage never makes a pipeline chase its data."""
    choice = choose("latest", facts(previous=attempt(5), checkpoints=[known(3)], next_checkpoint_id=9))
    assert isinstance(choice, Adopt)
    assert choice.working_directory == "/data/attempt-5"
    assert choice.next_checkpoint_id == 9
    assert isinstance(choose("latest", facts(previous=attempt(5))), Adopt)


@pytest.mark.parametrize(
    ("previous", "why"),
    [
        (attempt(5, ended=AttemptEnd.UNCLEAN), "attempt 5 did not end cleanly"),
        (attempt(5, directory=DirectoryState.DAMAGED), "the working directory of attempt 5 is damaged"),
        (attempt(5, directory=DirectoryState.MISSING), "is missing"),
        (attempt(5, ran=graph(agg=StageSpec(uid=StageUid("agg"), parallelism=8))), "pipeline has changed"),
        (None, "no working directory"),
    ],
)
def test_else_the_latest_checkpoint_is_built_and_says_why(previous: PreviousAttempt | None, why: str) -> None:
    choice = choose("latest", facts(previous=previous, checkpoints=[known(2), known(3)]))
    assert loaded_id(choice) == 3
    assert isinstance(choice, FromSnapshot)
    assert choice.origin is Origin.STORE
    assert why in choice.reason


def test_an_unclean_attempt_without_any_checkpoint_starts_again_from_nothing() -> None:
    choice = choose("latest", facts(previous=attempt(1, ended=AttemptEnd.UNCLEAN), next_checkpoint_id=4))
    assert isinstance(choice, Fresh)
    assert "did not end cleanly" in choice.reason
    assert choice.next_checkpoint_id == 4


def test_latest_takes_the_savepoint_that_ended_the_last_run_but_not_a_plain_one() -> None:
    """1.9: only a synchronous savepoint notifies, so only its results were published."""
    given = facts(checkpoints=[known(3)], savepoints=[savepoint(9), stop_savepoint(5)])
    assert loaded_id(choose("latest", given)) == 5


def test_latest_does_not_return_to_checkpoints_that_were_left_by_going_back() -> None:
    """Restored from chk-31 by attempt 7; chk-32 and chk-33 of attempt 6 are still retained."""
    store = [known(31, epoch=6), known(32, epoch=6), known(33, epoch=6)]
    line = RestoreLine(since=CoordinatorEpoch(7), base=store[0])
    assert loaded_id(choose("latest", facts(checkpoints=store, line=line))) == 31
    later = [*store, known(34, epoch=7), known(35, epoch=8)]
    assert loaded_id(choose("latest", facts(checkpoints=later, line=line))) == 35


def test_latest_after_a_start_from_none_is_nothing_until_a_checkpoint_completes() -> None:
    line = RestoreLine(since=CoordinatorEpoch(7), base=None)
    assert isinstance(choose("latest", facts(checkpoints=[known(3, epoch=6)], line=line)), Fresh)


def test_a_directory_from_before_an_explicit_restore_is_not_adopted() -> None:
    """Attempt 7 was told to go back and died before it had a directory of its own."""
    line = RestoreLine(since=CoordinatorEpoch(7), base=known(31, epoch=5))
    choice = choose("latest", facts(previous=attempt(6), checkpoints=[known(33, epoch=6)], line=line))
    assert loaded_id(choice) == 31


# --- explicit restore points ----------------------------------------------------------------------


def test_none_starts_without_state_whatever_is_there() -> None:
    choice = choose("none", facts(previous=attempt(), checkpoints=[known(3)], next_checkpoint_id=4))
    assert isinstance(choice, Fresh)
    assert choice.next_checkpoint_id == 4


@pytest.mark.parametrize(
    "text", ["chk-2", "chk-000002", "2", "/data/flights/chk-2", "file:///data/flights/chk-2/"]
)
def test_a_retained_checkpoint_is_found_under_every_name_it_has(text: str) -> None:
    choice = choose(text, facts(checkpoints=[known(2), known(3)], previous=attempt()))
    assert loaded_id(choice) == 2
    assert isinstance(choice, FromSnapshot)
    assert choice.origin is Origin.STORE


@pytest.mark.parametrize("text", ["savepoint-7", "7", "savepoint-flights-000007"])
def test_a_savepoint_is_found_under_every_name_it_has(text: str) -> None:
    choice = choose(text, facts(checkpoints=[known(2)], savepoints=[savepoint(7)]))
    assert loaded_id(choice) == 7
    assert isinstance(choice, FromSnapshot)
    assert choice.origin is Origin.OUTSIDE


def test_a_path_nobody_knows_is_loaded_from_there() -> None:
    choice = choose("s3://other/savepoint-x-abcdef/_metadata", facts())
    assert isinstance(choice, FromSnapshot)
    assert choice.known is None
    assert choice.location.uri == "s3://other/savepoint-x-abcdef"


def test_an_unknown_key_names_what_exists() -> None:
    given = facts(checkpoints=[known(2), known(3)], savepoints=[savepoint(7)])
    with pytest.raises(NotFound, match=r"no chk-99.*There are: savepoint-000007, chk-000003, chk-000002"):
        choose("chk-99", given)
    with pytest.raises(NotFound, match=r"no chk-7 to restore from; 7 is savepoint-000007"):
        choose("chk-7", given)
    with pytest.raises(NotFound, match=r"no savepoint-3 .*; 3 is chk-000003"):
        choose("savepoint-3", given)
    with pytest.raises(NotFound, match=r"in a folder named 'savepoint-other-1'.*There are"):
        choose("savepoint-other-1", given)
    with pytest.raises(NotFound, match=r"no completed checkpoint or savepoint yet"):
        choose("chk-1", facts())


def test_a_long_list_of_what_exists_is_cut() -> None:
    with pytest.raises(NotFound, match=r"chk-000011 and 10 older ones"):
        choose("chk-99", facts(checkpoints=[known(n) for n in range(1, 21)]))


def test_progress_of_an_earlier_try_of_the_run_beats_its_restore_point() -> None:
    """1.15: the job's own checkpoint beats the configured savepoint path."""
    first_try = facts(checkpoints=[known(8, epoch=3)], savepoints=[savepoint(7)])
    assert loaded_id(choose("savepoint-7", first_try)) == 7
    line = RestoreLine(since=CoordinatorEpoch(4), base=savepoint(7))
    second_try = facts(
        checkpoints=[known(8, epoch=3), known(9, epoch=4)],
        savepoints=[savepoint(7)],
        line=line,
        tries_since=CoordinatorEpoch(4),
    )
    assert loaded_id(choose("savepoint-7", second_try)) == 9


def test_an_earlier_try_that_completed_nothing_leads_to_the_same_restore_point() -> None:
    line = RestoreLine(since=CoordinatorEpoch(4), base=savepoint(7))
    again = facts(
        checkpoints=[known(8, epoch=3)], savepoints=[savepoint(7)], line=line, tries_since=CoordinatorEpoch(4)
    )
    assert loaded_id(choose("savepoint-7", again)) == 7


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("chk-8", "8"),
        ("8", "8"),
        ("savepoint-flights-000007", "7"),
        ("/data/savepoint-flights-000007/", "7"),
        ("none", ""),
    ],
)
def test_another_restore_point_under_the_name_of_a_run_is_restored_and_the_same_one_is_not(
    asked: str, given: str
) -> None:
    """A program that names all its runs alike went on from the latest, whatever it was told to go back to."""
    base = {"8": known(8, epoch=3), "7": savepoint(7), "": None}[given]
    line = RestoreLine(since=CoordinatorEpoch(4), base=base)
    again = facts(
        checkpoints=[known(8, epoch=3), known(9, epoch=4)],
        savepoints=[savepoint(7)],
        line=line,
        tries_since=CoordinatorEpoch(4),
    )
    assert loaded_id(choose(asked, again)) == 9
    assert not begins_line(asked, again)
    elsewhere = replace(again, line=RestoreLine(since=CoordinatorEpoch(4), base=known(6, epoch=3)))
    if asked == "none":
        assert isinstance(choose(asked, elsewhere), Fresh)
    else:
        assert loaded_id(choose(asked, elsewhere)) == int(given)
    assert begins_line(asked, elsewhere)


def test_a_line_of_an_older_run_does_not_stop_a_new_run_from_going_back_again() -> None:
    line = RestoreLine(since=CoordinatorEpoch(4), base=savepoint(7))
    given = facts(checkpoints=[known(9, epoch=4)], savepoints=[savepoint(7)], line=line)
    assert loaded_id(choose("savepoint-7", given)) == 7


def test_the_line_begins_anew_with_each_explicit_restore_and_only_then() -> None:
    given = facts(checkpoints=[known(31)], line=RestoreLine(since=CoordinatorEpoch(2), base=None))
    assert [begins_line(asked, given) for asked in ("chk-31", "none", "latest")] == [True, True, False]
    epoch = CoordinatorEpoch(9)
    chosen = choose("chk-31", given)
    assert isinstance(chosen, FromSnapshot)
    decision = restore(saved(), load=chosen)
    assert line_after(decision, given, epoch) == RestoreLine(since=epoch, base=as_known(decision, epoch))
    assert line_after(replace(decision, begins_line=False), given, epoch) == given.line
    fresh = Fresh(reason="", next_checkpoint_id=CheckpointId(1), begins_line=True)
    assert line_after(fresh, given, epoch) == RestoreLine(since=epoch, base=None)
    assert line_after(replace(fresh, begins_line=False), given, epoch) == given.line


def test_a_restored_line_survives_the_way_through_the_record() -> None:
    line = RestoreLine(since=CoordinatorEpoch(4), base=savepoint(7))
    assert RestoreLine.model_validate_json(line.model_dump_json()) == line


# --- claim modes and ids --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "force_full", "registers", "deletes"),
    [
        (ClaimMode.NO_CLAIM, True, False, False),
        (ClaimMode.LEGACY, False, True, False),
        (ClaimMode.CLAIM, False, True, True),
    ],
)
def test_the_claim_mode_decides_what_follows(
    mode: ClaimMode, force_full: bool, registers: bool, deletes: bool
) -> None:
    """CheckpointCoordinatorTriggeringTest#testTriggeringFullCheckpoints,
    SavepointITCase#testTriggerSavepointAndResume…."""
    decision = restore(saved(), claim_mode=mode)
    assert decision.claim_mode is mode
    assert decision.force_full is force_full
    assert decision.registers_shared_files is registers
    assert decision.properties.discard_subsumed is deletes


def test_a_checkpoint_of_the_own_store_stays_as_it_was_whatever_the_claim_mode() -> None:
    """1.15: after a failure the restore goes by the store, not by the restore settings."""
    entry = known(31)
    load = choose("chk-31", facts(checkpoints=[entry]))
    assert isinstance(load, FromSnapshot)
    decision = restore(saved(), load=load, claim_mode=ClaimMode.NO_CLAIM)
    assert decision.origin is Origin.STORE
    assert decision.properties == entry.properties
    assert not decision.force_full


def test_an_unclaimed_snapshot_still_forces_full_checkpoints_after_a_failover() -> None:
    """CheckpointCoordinatorTriggeringTest#testTriggeringFullSnapshotAfterJobmasterFailover."""
    entry = savepoint(31).model_copy(update={"properties": restored_properties(ClaimMode.NO_CLAIM, CONFIG)})
    load = choose("latest", facts(checkpoints=[entry]))
    assert isinstance(load, FromSnapshot)
    assert restore(saved(kind=CheckpointKind.SAVEPOINT), load=load).force_full
    adopted = choose("latest", facts(checkpoints=[entry], previous=attempt()))
    assert isinstance(adopted, Adopt)
    assert adopted.force_full
    completed = choose("latest", facts(checkpoints=[entry, known(32)], previous=attempt()))
    assert isinstance(completed, Adopt)
    assert not completed.force_full


@pytest.mark.parametrize(("used", "following"), [(1, 32), (32, 32), (50, 50)])
def test_ids_go_on_above_everything_ever_used(used: int, following: int) -> None:
    """1.6: restore from N sets the counter to N+1, and it never goes back."""
    assert (
        restore(saved(), given=facts(next_checkpoint_id=CheckpointId(used))).next_checkpoint_id == following
    )


@pytest.mark.parametrize(("option", "dropped"), [(31, True), (30, False), (None, False)])
def test_in_flight_data_of_exactly_one_checkpoint_can_be_dropped(option: int | None, dropped: bool) -> None:
    """CheckpointCoordinatorRestoringTest#testRestoreLatestCheckpointedStateWithoutInFlightData."""
    assert restore(saved(), without_channel_state_of=option).drop_in_flight is dropped


# --- whose snapshot, and where --------------------------------------------------------------------


def test_a_snapshot_of_another_pipeline_is_refused_unless_it_is_a_fork() -> None:
    other = saved(pipeline="weather", kind=CheckpointKind.SAVEPOINT)
    with pytest.raises(InvalidRequest, match=r"of pipeline 'weather', not of 'flights'.*start a fork"):
        restore(other)
    assert restore(other, purpose=RestorePurpose.FORK).purpose is RestorePurpose.FORK


def test_a_snapshot_of_the_pipelines_former_name_is_its_own() -> None:
    other = saved(pipeline="weather", kind=CheckpointKind.SAVEPOINT)
    named = facts(previous_names=(PipelineId("weather"),), checkpoints=[known(31)])
    load = choose("latest", named)
    assert isinstance(load, FromSnapshot)
    assert purpose_for(RestorePurpose.IN_PLACE, load, other, named) is RestorePurpose.IN_PLACE
    assert restore(other, given=named).purpose is RestorePurpose.IN_PLACE
    with pytest.raises(
        InvalidRequest, match=r"'flights' itself, which was called 'weather': a fork is another"
    ):
        restore(other, given=named, asked=RestorePurpose.FORK)


def test_an_imported_snapshot_of_another_history_is_refused_as_one_given_by_its_path_is() -> None:
    """It is in the record, so it passed for one of our own: rows it holds were written to the tables again."""
    ours = facts(
        history=KnownHistory(pipeline=PIPELINE, is_recorded=True, lineage="ours", lineages=("before",))
    )
    with pytest.raises(InvalidRequest, match=r"of another history \(theirs\)"):
        restore(saved(lineage="theirs"), given=ours)
    for own in ("ours", "before", ""):
        assert restore(saved(lineage=own), given=ours).metadata.lineage == own
    assert restore(saved(lineage="theirs"), given=ours, adopt_history=True).metadata.lineage == "theirs"


def test_a_fork_tried_again_goes_on_where_it_is_or_begins_once_more() -> None:
    own, origin = saved(), saved(pipeline="weather", kind=CheckpointKind.SAVEPOINT)
    begun = facts(checkpoints=[known(31)], line=RestoreLine(since=CoordinatorEpoch(1), base=known(31)))
    again = facts(checkpoints=[known(31)], line=begun.line, tries_since=CoordinatorEpoch(1))
    load = choose("latest", begun)
    assert isinstance(load, FromSnapshot)
    # tried again, with what is left in its settings and by itself
    assert purpose_for(RestorePurpose.FORK, load, own, again) is RestorePurpose.IN_PLACE
    assert purpose_for(RestorePurpose.IN_PLACE, load, own, begun) is RestorePurpose.IN_PLACE
    assert purpose_for(RestorePurpose.FORK, load, origin, again) is RestorePurpose.FORK
    assert purpose_for(RestorePurpose.IN_PLACE, load, origin, begun) is RestorePurpose.FORK
    # Its beginning has left retention: it is named by its place.
    later = facts(checkpoints=[known(40)], line=begun.line)
    named = choose(known(31).location.uri, later)
    assert isinstance(named, FromSnapshot)
    assert named.origin is Origin.OUTSIDE
    assert purpose_for(RestorePurpose.IN_PLACE, named, origin, later) is RestorePurpose.FORK
    with pytest.raises(InvalidRequest, match=r"a snapshot of 'flights' itself.*restore it without fork"):
        restore(own, load=load, given=begun, asked=RestorePurpose.FORK)


@pytest.mark.parametrize("mode", [ClaimMode.CLAIM, ClaimMode.LEGACY])
def test_a_fork_cannot_depend_on_a_checkpoint_that_its_owner_deletes(mode: ClaimMode) -> None:
    with pytest.raises(InvalidRequest, match=r"Use 'no_claim', or a savepoint"):
        restore(saved(pipeline="weather"), purpose=RestorePurpose.FORK, claim_mode=mode)


def test_a_folder_that_holds_another_snapshot_than_recorded_is_corrupt() -> None:
    load = choose("chk-31", facts(checkpoints=[known(31)]))
    assert isinstance(load, FromSnapshot)
    with pytest.raises(Corrupt, match=r"should hold chk-000031, but its metadata is of snapshot 30"):
        restore(saved(checkpoint_id=30), load=load)


def test_a_snapshot_whose_number_leaves_no_room_for_another_is_not_gone_on_from() -> None:
    load = choose("s3://backup/2013/sp", facts())
    assert isinstance(load, FromSnapshot)
    highest = saved(kind=CheckpointKind.SAVEPOINT, checkpoint_id=LARGEST_NUMBER // 2)
    assert restore(highest, load=load).next_checkpoint_id == LARGEST_NUMBER // 2 + 1
    beyond = saved(kind=CheckpointKind.SAVEPOINT, checkpoint_id=LARGEST_NUMBER // 2 + 1)
    with pytest.raises(InvalidRequest, match=r"too high to count on from: import it"):
        restore(beyond, load=load)


def test_a_savepoint_may_have_been_moved() -> None:
    """SavepointITCase#testTriggerSavepointAndResumeWithFileBasedCheckpointsAndRelocateBasePath."""
    load = choose("s3://backup/2013/sp", facts())
    assert isinstance(load, FromSnapshot)
    decision = restore(saved(kind=CheckpointKind.SAVEPOINT), load=load)
    assert (decision.location.base_uri, decision.location.folder) == ("s3://backup/2013", "sp")


def test_a_checkpoint_by_path_brings_the_base_of_its_storage() -> None:
    load = choose("s3://bucket/ckpt/flights/chk-31", facts())
    assert isinstance(load, FromSnapshot)
    decision = restore(saved(), load=load)
    assert (decision.location.base_uri, decision.location.folder) == ("s3://bucket/ckpt", "flights/chk-31")


def test_a_checkpoint_that_was_moved_away_from_its_shared_files_is_refused() -> None:
    load = choose("s3://bucket/copy-of-31", facts())
    assert isinstance(load, FromSnapshot)
    with pytest.raises(InvalidRequest, match=r"cannot be moved away from its shared files"):
        restore(saved(), load=load)


# --- matching stages ------------------------------------------------------------------------------


def test_every_stage_gets_the_state_saved_under_its_uid() -> None:
    """CheckpointMetadataLoadingTest#testAllStateRestored."""
    stages = restore(saved()).stages
    assert [(m.uid, m.snapshot.uid, m.renamed) for m in stages.matches] == [
        ("src", "src", False),
        ("agg", "agg", False),
    ]
    assert stages.new == stages.skipped == ()


def test_a_renamed_stage_gets_the_state_of_its_previous_uid() -> None:
    """StateAssignmentOperationTest#assigningStatesShouldWorkWithUserDefinedOperatorIdsAsWell."""
    now = graph(agg=StageSpec(uid=StageUid("totals"), parallelism=4, previous_uids=(StageUid("agg"),)))
    match = restore(saved(), now).stages.matches[1]
    assert (match.uid, match.snapshot.uid, match.renamed) == ("totals", "agg", True)


def test_a_uid_that_a_new_stage_took_over_from_a_renamed_one_is_refused() -> None:
    """The new stage went on with the state of the renamed one, which began without any, and nobody was told."""
    now = graph(old=StageSpec(uid=StageUid("totals"), previous_uids=(StageUid("agg"),)))
    with pytest.raises(
        InvalidRequest,
        match=r"stage 'totals' names 'agg' in previous_uids, and the pipeline has another stage of that uid",
    ):
        restore(saved(), now, allow_non_restored_state=True)
    # Once both have state of their own, nothing is in doubt.
    both = saved()
    both = both.model_copy(
        update={"stages": (*both.stages, both.stages[1].model_copy(update={"uid": "totals"}))}
    )
    stages = restore(both, now).stages
    assert [(m.uid, m.snapshot.uid) for m in stages.matches] == [
        ("src", "src"),
        ("agg", "agg"),
        ("totals", "totals"),
    ]


def test_two_stages_cannot_claim_the_same_previous_uid() -> None:
    now = graph(
        agg=StageSpec(uid=StageUid("one"), previous_uids=(StageUid("agg"),)),
        two=StageSpec(uid=StageUid("two"), previous_uids=(StageUid("agg"),)),
    )
    with pytest.raises(InvalidRequest, match=r"'one' and 'two' both name 'agg' in previous_uids"):
        restore(saved(), now)


def test_state_of_a_stage_that_is_gone_is_not_dropped_unasked() -> None:
    """CheckpointMetadataLoadingTest#testNonRestoredStateWhenDisallowed."""
    with pytest.raises(
        InvalidRequest,
        match=r"holds state of 'agg', which the pipeline no longer has. To drop .*allow_non_restored",
    ):
        restore(saved(), graph(agg=None))


def test_the_refusal_proposes_a_rename_when_there_is_a_new_stage() -> None:
    now = graph(agg=StageSpec(uid=StageUid("totals")))
    with pytest.raises(
        InvalidRequest, match=r"name its old uid in previous_uids of the new stage \('totals'\)"
    ):
        restore(saved(), now)


def test_state_of_a_stage_that_is_gone_is_skipped_when_allowed() -> None:
    """CheckpointMetadataLoadingTest#testNonRestoredStateWhenAllowed."""
    stages = restore(saved(), graph(agg=None), allow_non_restored_state=True).stages
    assert stages.skipped == ("agg",)


@pytest.mark.parametrize(
    ("left", "held"),
    [
        (stage("gone", stateless=True, input_positions={"src": 9}), False),
        (stage("gone", batch_id=None), False),
        (stage("gone", finished=True), False),
        (stage("gone", finished=True, stateless=True, offsets={"0": "{}"}), True),
        (stage("gone", stateless=True, offsets={"0": "{}"}), True),
        (stage("gone", stateless=True, input_positions={"src": 9}, coordinator_state="x"), True),
        (stage("gone", batch_id=None, coordinator_state=""), True),
        (
            stage(
                "gone",
                stateless=True,
                input_positions={"src": 9},
                table=TableSnapshot(uri="/t", prepared=(1,)),
            ),
            True,
        ),
        (stage("gone", stateless=True, input_positions={"src": 9}, table=TableSnapshot(uri="/t")), False),
        (stage("gone", input_positions={"src": 9}), True),
    ],
    ids=[
        "stateless", "ran-nothing", "finished", "finished-source", "source-position",
        "coordinator", "coordinator-only",
        "prepared-rows", "published-table", "keyed-state",
    ],
)  # fmt: skip
def test_only_a_stage_that_holds_something_must_be_matched(left: StageSnapshot, held: bool) -> None:
    """SavepointITCase#testCanRestoreWithModifiedStatelessOperators;
    CML#testUnmatchedCoordinatorOnlyStateFails."""
    metadata = saved(*saved().stages, left)
    if held:
        with pytest.raises(InvalidRequest, match=r"holds state of 'gone'"):
            restore(metadata)
    else:
        assert restore(metadata).stages.skipped == ("gone",)


def test_a_new_stage_begins_empty() -> None:
    """StateAssignmentOperationTest#assigningStateHandlesCanNotBeNull."""
    stages = restore(saved(), graph(more=StageSpec(uid=StageUid("more")))).stages
    assert stages.new == ("more",)


def test_changed_inputs_are_reported_by_saved_and_by_present_name() -> None:
    now = graph(src=StageSpec(uid=StageUid("other")))
    match = restore(saved(), now, allow_non_restored_state=True).stages.matches[0]
    assert (match.lost_inputs, match.new_inputs) == (("src",), ("other",))
    renamed = graph(src=StageSpec(uid=StageUid("other"), previous_uids=(StageUid("src"),)))
    match = restore(saved(), renamed).stages.matches[1]
    assert (match.lost_inputs, match.new_inputs) == ((), ())


def test_in_flight_data_of_an_input_that_is_gone_is_refused_unless_dropped() -> None:
    """1.17: channel state with a changed chain of operators is an error."""
    unaligned = stage(
        "agg",
        parallelism=4,
        input_positions={"src": 9, "extra": 3},
        metrics=SnapshotMetrics(unaligned=True, persisted_in_flight=10),
    )
    metadata = saved(stage("src"), unaligned)
    with pytest.raises(
        InvalidRequest, match=r"in-flight data for stage 'agg' from 'extra'.*without_channel_state"
    ):
        restore(metadata)
    assert restore(metadata, without_channel_state_of=31).drop_in_flight


# --- parallelism ----------------------------------------------------------------------------------


def widths(parallelism: int, maximum: int | None) -> PipelineGraph:
    return graph(agg=StageSpec(uid=StageUid("agg"), parallelism=parallelism, max_parallelism=maximum))


def with_maximum(maximum: int | None) -> CheckpointMetadata:
    return saved(stage("src"), stage("agg", parallelism=4, max_parallelism=maximum))


def test_a_derived_max_parallelism_is_adopted_from_the_snapshot() -> None:
    """RescalingITCase#testSavepointRescalingOutKeyedStateDerivedMaxParallelism."""
    match = restore(with_maximum(16), widths(8, None)).stages.matches[1]
    assert match.max_parallelism == 16
    assert match.rescaled


def test_a_fixed_max_parallelism_must_equal_the_saved_one() -> None:
    """CheckpointMetadataLoadingTest#testMaxParallelismMismatch."""
    with pytest.raises(
        InvalidRequest, match=r"Max parallelism mismatch: stage 'agg' has max_parallelism 32.*16"
    ):
        restore(with_maximum(16), widths(4, 32))
    assert restore(with_maximum(16), widths(4, 16)).stages.matches[1].max_parallelism == 16


def test_the_parallelism_cannot_exceed_the_saved_maximum() -> None:
    """CheckpointCoordinatorRestoringTest#testRestoreLatestCheckpointFailureWhenMaxParallelismChanges."""
    with pytest.raises(InvalidRequest, match=r"parallelism 17.*lower the parallelism to 16 or less"):
        restore(with_maximum(16), widths(17, None))


def test_a_snapshot_that_does_not_know_its_maximum_leaves_it_to_the_stage() -> None:
    assert restore(with_maximum(None), widths(4, 64)).stages.matches[1].max_parallelism == 64


def test_a_stateless_stage_needs_no_rescaling() -> None:
    metadata = saved(stage("src"), stage("agg", parallelism=1, stateless=True, input_positions={"src": 9}))
    assert not restore(metadata).stages.matches[1].rescaled


# --- finished stages ------------------------------------------------------------------------------


def test_graph_edits_are_checked_against_finished_stages() -> None:
    """CheckpointCoordinatorRestoringTest#testJobGraphModificationsAreCheckedForSavepoint."""
    metadata = saved(stage("agg", parallelism=4, finished=True))
    with pytest.raises(
        InvalidRequest, match=r"'src' .all running. feeds stage 'agg', which is fully finished"
    ):
        restore(metadata)


def test_a_finished_stage_is_started_finished() -> None:
    """StateAssignmentOperationTest#testStateWithFullyFinishedOperators."""
    metadata = saved(stage("src", finished=True), stage("agg", parallelism=4))
    assert [m.finished_on_restore for m in restore(metadata).stages.matches] == [True, False]
