"""Refusals of a start, one function a check: each looks at one part of the facts and raises the sentence.

Their order, and what is told of them, is in ``start_checks``.
"""

from __future__ import annotations

from itertools import permutations

from dagster_ckpt.core.config import ClaimMode
from dagster_ckpt.core.ids import leaves_room
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.core.restore.choice import was_restored_by_an_earlier_try
from dagster_ckpt.core.restore.facts import (
    Origin,
    RestorePurpose,
    refuse_another_history,
    refuse_former_name,
    refuse_lost_record,
    refuse_older_store,
)
from dagster_ckpt.core.restore.matching import (
    FinishedState,
    MatchedStages,
    check_finished_states,
    match_stages,
    non_restored_state,
    other_inputs,
)
from dagster_ckpt.core.restore.start_facts import (
    CodeFacts,
    HistoryFacts,
    MachineFacts,
    RequestFacts,
    SnapshotFacts,
)
from dagster_ckpt.core.restore_point import Latest
from dagster_ckpt.errors import Corrupt, InvalidRequest

LEAST_JAVA = 17

# --- the code ---------------------------------------------------------------------------------------------------


def one_name(code: CodeFacts) -> None:
    """Refuse two pipelines of one name."""
    if len(set(code.pipelines)) != len(code.pipelines):
        raise InvalidRequest(f"pipelines need different names, got {[str(name) for name in code.pipelines]}")


def pipeline_word(code: CodeFacts) -> None:
    """Refuse a pipeline name that no job can have."""
    for name in code.pipelines:
        if not name.isidentifier() or name in code.reserved:
            raise InvalidRequest(
                f"pipeline {name!r} cannot be carried by Dagster, which names its jobs after it: use letters, digits "
                "and '_', beginning with a letter and no word of Dagster's own, such as "
                f"name={_better(name, 'pipeline')!r}"
            )


def name_length(code: CodeFacts) -> None:
    """Refuse a pipeline name that no tag can hold."""
    for name in code.pipelines:
        if len(name) > code.longest_name:
            raise InvalidRequest(
                f"the name of pipeline {name!r} has {len(name)} characters, and Dagster tags runs with it, by at most "
                f"{code.longest_name}: give it a shorter name"
            )


def stage_word(code: CodeFacts) -> None:
    """Refuse a stage's uid that no op can have."""
    for pipeline, stages in code.stages.items():
        for uid in stages:
            if uid in code.reserved:
                raise InvalidRequest(
                    f"stage {uid!r} of pipeline {pipeline!r} cannot be carried by Dagster, which names its op after "
                    "it: it is a word of Dagster's or Python's own; use another, such as "
                    f"uid={_better(uid, 'stage')!r} (previous_uids=({uid!r},) keeps its state)"
                )


def job_names(code: CodeFacts) -> None:
    """Refuse a pipeline that has the name of another one's job."""
    for one, other in permutations(code.pipelines, 2):
        if other in code.jobs.get(one, ()):
            raise InvalidRequest(
                f"pipeline {other!r} has the name of a job of pipeline {one!r}: give it another name"
            )


def own_assets(code: CodeFacts) -> None:
    """Refuse a sink whose table would be the same asset as another table, or as checkpoints."""
    owners = {
        asset: f"the checkpoints of pipeline {name!r}" for name, asset in code.checkpoint_assets.items()
    }
    for (pipeline, uid), asset in code.assets.items():
        mine = f"the table of sink {uid!r} of pipeline {pipeline!r}"
        owner = owners.setdefault(asset, mine)
        if owner != mine:
            raise InvalidRequest(
                f"sink {uid!r} of pipeline {pipeline!r} has the asset {asset!r}, and that is {owner}: give the sink "
                f"another uid, or an asset of its own (asset='.../{uid}')"
            )


def key_columns(code: CodeFacts) -> None:
    """Refuse a key that names no column, or one twice."""
    for (pipeline, uid), key in code.keys.items():
        wrong = next((name for name in key if not isinstance(name, str) or not name.strip()), None)
        if wrong is not None or len(set(key)) != len(key):
            raise InvalidRequest(
                f"sink {uid!r} of pipeline {pipeline!r} has key={list(key)!r}: give the names of its columns, each once"
            )


def settings(code: CodeFacts) -> None:
    """Refuse settings no checkpoint can be taken with."""
    for refuse in code.settings.values():
        refuse()


def _better(name: str, kind: str) -> str:
    better = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return better if better != name and better.isidentifier() else f"{kind}_{better}"


# --- the machine ------------------------------------------------------------------------------------------------


def places(machine: MachineFacts) -> None:
    """Refuse a local folder that cannot be made or written."""
    for place in machine.places:
        if place.why:
            raise InvalidRequest(f"`{place.setting}`: the folder {place.path} {place.why}: name another one")


def packages(machine: MachineFacts) -> None:
    """Refuse what needs a package that is not installed."""
    for package in machine.missing:
        raise InvalidRequest(
            f"{package.needed_by} needs the package {package.name}, which is not installed: {package.install}"
        )


def spark_version(machine: MachineFacts) -> None:
    """Refuse a version of Spark that cannot run the stages, or a channel, or a stream."""
    machine.spark()


def java(machine: MachineFacts) -> None:
    """Refuse a machine without a Java that Spark can use."""
    found = machine.java
    if found is None or (found.version is not None and (not found.version or found.version >= LEAST_JAVA)):
        return
    what = f"is Java {found.version}" if found.version else "has none"
    raise InvalidRequest(
        f"Spark needs Java {LEAST_JAVA} or newer, and {found.looked} {what}: install one (Debian: apt install "
        "openjdk-17-jre-headless) and set JAVA_HOME to its folder"
    )


# --- the request ------------------------------------------------------------------------------------------------


def backfill(request: RequestFacts) -> None:
    """Refuse a run of a backfill: it would go through all partitions, one restore after the other."""
    if request.is_backfill:
        raise InvalidRequest(
            f"{request.job} takes one snapshot at a time and cannot be backfilled, nothing was done: choose one "
            "partition in its Launchpad"
        )


def chosen(request: RequestFacts) -> None:
    """Refuse a restore that names no snapshot."""
    if request.chooses and request.point == Latest():
        raise InvalidRequest(
            f"{request.job} restores a snapshot that you choose, and none is chosen: {request.chooses}, such as "
            f"restore_from: chk-31 of op {request.op!r}; the job {request.pipeline} goes on from the latest"
        )


def approved(request: RequestFacts) -> None:
    """Refuse a restore that is not as it was approved."""
    request.approved()


# --- the history ------------------------------------------------------------------------------------------------


def former_name(history: HistoryFacts) -> None:
    """Refuse a pipeline whose former name is at work, and one that does not say what of it to begin with."""
    refuse_former_name(history.known, history.seen, history.newest, is_chosen=history.is_chosen)


def lost_record(history: HistoryFacts) -> None:
    """Refuse to begin where the store has no record, and others have."""
    if not history.adopt_history and not history.is_chosen:
        refuse_lost_record(history.known, history.seen, history.newest)


def another_history(history: HistoryFacts) -> None:
    """Refuse places of another history."""
    if not history.adopt_history:
        refuse_another_history(history.known, history.seen, is_chosen=history.is_chosen)


def older_store(history: HistoryFacts) -> None:
    """Refuse a store that knows less than was seen."""
    if not history.adopt_history and not history.is_chosen:
        refuse_older_store(history.known, history.seen, history.newest)


# --- the snapshot -----------------------------------------------------------------------------------------------


def fork_of_itself(of: SnapshotFacts) -> None:
    """Refuse a pipeline as the fork of itself."""
    taken_by = of.metadata.pipeline
    is_own = of.facts.is_called(taken_by)
    if of.asked is RestorePurpose.FORK and is_own and not was_restored_by_an_earlier_try(of.facts):
        formerly = "" if taken_by == of.pipeline else f", which was called {taken_by!r}"
        raise InvalidRequest(
            f"{of.load.location.uri} is a snapshot of {of.pipeline!r} itself{formerly}: a fork is another pipeline, "
            "declared with pipeline.fork(...). To go back to the snapshot, restore it without fork"
        )


def recorded_id(of: SnapshotFacts) -> None:
    """Refuse a folder that holds another snapshot than the record says."""
    known = of.load.known
    if known is not None and known.checkpoint_id != of.metadata.checkpoint_id:
        raise Corrupt(
            f"{of.load.location.uri} should hold {known.key}, but its metadata is of snapshot "
            f"{of.metadata.checkpoint_id}: restore from another one with restore_from"
        )


def room_for_numbers(of: SnapshotFacts) -> None:
    """Refuse a snapshot behind whose number no checkpoint could be counted."""
    if not leaves_room(of.metadata.checkpoint_id):
        raise InvalidRequest(
            f"{of.load.location.uri} has the number {of.metadata.checkpoint_id}, too high to count on from: import it "
            "(dagster-ckpt import), which gives the copy a number of its own, and restore that"
        )


def own_pipeline(of: SnapshotFacts) -> None:
    """Refuse another pipeline's snapshot where none was asked for."""
    if not of.facts.is_called(of.metadata.pipeline) and of.purpose is RestorePurpose.IN_PLACE:
        raise InvalidRequest(
            f"{of.load.location.uri} is a snapshot of pipeline {of.metadata.pipeline!r}, not of {of.pipeline!r}: "
            "check the path; start a fork if you mean to branch off from it; or, where the pipeline was renamed, name "
            f"the old one in its code (previous_names=[{of.metadata.pipeline!r}])"
        )


def own_history(of: SnapshotFacts) -> None:
    """Refuse a snapshot of another deployment: positions of sinks in it mean nothing here.

    An imported one is in the record, and may be another deployment's all the same.
    """
    history = of.facts.history
    is_asked = of.purpose is RestorePurpose.IN_PLACE and not of.options.adopt_history
    if not is_asked or history is None or not history.lineage or history.owns(of.metadata.lineage):
        return
    raise InvalidRequest(
        f"{of.load.location.uri} is a snapshot of another history ({of.metadata.lineage}) of a pipeline named "
        f"{of.metadata.pipeline!r} than this one ({history.lineage}), such as another deployment's: rows it holds may "
        "be in these tables already. Start a fork to branch off from it, or set adopt_history to go on from it"
    )


def forks_claim(of: SnapshotFacts) -> None:
    """Refuse a fork that would own a checkpoint which its origin deletes."""
    mode, is_stored = of.options.claim_mode, of.load.origin is Origin.STORE and of.load.known is not None
    others = of.metadata.pipeline != of.pipeline and not of.metadata.kind.is_savepoint and not is_stored
    if others and mode is not ClaimMode.NO_CLAIM:
        raise InvalidRequest(
            f"{of.pipeline!r} cannot restore checkpoint {of.metadata.checkpoint_id} of pipeline "
            f"{of.metadata.pipeline!r} with claim_mode {mode.value!r}: that pipeline deletes its "
            "checkpoints when they are subsumed. "
            "Use 'no_claim', or a savepoint"
        )


def saved_state(of: SnapshotFacts) -> None:
    """Refuse to drop state unasked, and to give it to two stages."""
    _stages(of)


def same_inputs(of: SnapshotFacts) -> None:
    """Refuse state of a stage that had other inputs."""
    for match in _stages(of).matches:
        if why := other_inputs(match):
            raise InvalidRequest(why)


def finished_stages(of: SnapshotFacts) -> None:
    """Refuse input for a stage that has finished."""
    matches = _stages(of).matches
    check_finished_states(of.graph, {match.uid: [_finished_state(match.snapshot)] for match in matches})


def in_flight(of: SnapshotFacts) -> None:
    """Refuse rows in flight on an edge that is gone."""
    number = of.metadata.checkpoint_id
    if of.options.without_channel_state_of == number:
        return
    for match in _stages(of).matches:
        if match.snapshot.metrics.persisted_in_flight and match.lost_inputs:
            raise InvalidRequest(
                f"checkpoint {number} holds in-flight data for stage {match.uid!r} from "
                f"{match.lost_inputs[0]!r}, which no longer feeds it: restore an aligned checkpoint or a "
                f"savepoint, or drop that data with without_channel_state_of = {number}"
            )


def _stages(of: SnapshotFacts) -> MatchedStages:
    return match_stages(of.graph, of.metadata, non_restored=non_restored_state(of.options))


def _finished_state(snapshot: StageSnapshot) -> FinishedState:
    if snapshot.finished:
        return FinishedState.FULLY_FINISHED
    return FinishedState.PARTIALLY_FINISHED if snapshot.finished_subtasks else FinishedState.ALL_RUNNING
