"""Matching of saved state with the stages of the graph as it is now.

A finished stage will never send anything again, so nothing that still runs may be put in front of it.
Source: flink-runtime VertexFinishedStateChecker, VertexFinishedStateCheckerTest. Only a restore that a
person asked for can meet an edited graph; after a failure the check passes by itself.
By uid, then by the uids a stage had before; sources: flink-runtime Checkpoints.loadAndValidateCheckpoint
(CheckpointMetadataLoadingTest) and StateAssignmentOperation's checks of the maximum parallelism.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from dagster_ckpt.core.chains import QueryPart
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.graph import EdgePattern, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import CheckpointMetadata, StageSnapshot
from dagster_ckpt.core.restore.parted import JoinedSink, of_now
from dagster_ckpt.errors import InvalidRequest


def staying_finished(parts: Mapping[StageUid, bool]) -> frozenset[StageUid]:
    """Return the stages that do not run again, of those of a snapshot and whether each had finished.

    None where all had: that run was over, and the next is another one, which reads what has come since.
    """
    return frozenset(() if all(parts.values()) else (uid for uid, finished in parts.items() if finished))


class FinishedState(StrEnum):
    """Finished state of one operator's subtasks."""

    ALL_RUNNING = "all running"
    PARTIALLY_FINISHED = "partially finished"
    FULLY_FINISHED = "fully finished"


def check_finished_states(graph: PipelineGraph, saved: Mapping[StageUid, Sequence[FinishedState]]) -> None:
    """Raise InvalidRequest where a finished stage would get input again.

    ``saved`` gives the states of the operators chained in a stage; a stage that is missing there is new,
    so it runs.
    """
    states = {stage.uid: _of_chain(stage.uid, saved.get(stage.uid, ())) for stage in graph.stages}
    for stage in graph.topological:
        match states[stage.uid]:
            case FinishedState.ALL_RUNNING:
                continue
            case FinishedState.PARTIALLY_FINISHED:
                _check_before_partially_finished(graph, stage.uid, states)
            case FinishedState.FULLY_FINISHED:
                _check_before_fully_finished(graph, stage.uid, states)
            case unknown:
                assert_never(unknown)


def _of_chain(uid: StageUid, operators: Sequence[FinishedState]) -> FinishedState:
    found = sorted(set(operators))
    if len(found) > 1:
        raise InvalidRequest(
            f"stage {uid!r} chains operators that are {' and '.join(found)} in the snapshot: "
            "operators of one stage finish together, so restore into the graph the snapshot was taken of"
        )
    return found[0] if found else FinishedState.ALL_RUNNING


def _check_before_fully_finished(
    graph: PipelineGraph, uid: StageUid, states: Mapping[StageUid, FinishedState]
) -> None:
    for edge in graph.inputs[uid]:
        if states[edge.upstream] is not FinishedState.FULLY_FINISHED:
            raise _illegal(edge.upstream, states[edge.upstream], uid, states[uid])


def _check_before_partially_finished(
    graph: PipelineGraph, uid: StageUid, states: Mapping[StageUid, FinishedState]
) -> None:
    for edge in graph.inputs[uid]:
        upstream = states[edge.upstream]
        match edge.pattern:
            case EdgePattern.ALL_TO_ALL:
                legal = upstream is FinishedState.FULLY_FINISHED
            case EdgePattern.POINTWISE:
                legal = upstream is not FinishedState.ALL_RUNNING
            case unknown:
                assert_never(unknown)
        if not legal:
            raise _illegal(edge.upstream, upstream, uid, states[uid])


def _illegal(
    upstream: StageUid, upstream_state: FinishedState, uid: StageUid, state: FinishedState
) -> InvalidRequest:
    return InvalidRequest(
        f"stage {upstream!r} ({upstream_state}) feeds stage {uid!r}, which is {state} in the snapshot "
        f"and would not read what {upstream!r} still sends: restore without that edge, or give {uid!r} a "
        "new uid"
    )


class NonRestoredState(StrEnum):
    """Treatment of state whose stage the pipeline no longer has."""

    REFUSE = "refuse"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMatch:
    """One stage of the graph and the state it gets."""

    uid: StageUid
    snapshot: StageSnapshot
    """As saved, under ``snapshot.uid``, which is an earlier uid of the stage where it was renamed."""
    parallelism: int
    max_parallelism: int | None
    """The stage's own, or adopted from the snapshot where it is derived; None: neither says."""
    lost_inputs: tuple[str, ...]
    """Saved uids of inputs it no longer has."""
    new_inputs: tuple[StageUid, ...]
    """Inputs it did not have when the snapshot was taken."""
    earlier_uids: tuple[str, ...] = ()
    """Other uids it had, by which readers that had nothing to do since may still know it."""
    part: QueryPart | None = None
    """Part of a saved query that it goes on from; None: from all of it."""
    joined: JoinedSink | None = None
    """Of a sink that judges its rows no more: the two queries that it goes on from."""

    @property
    def renamed(self) -> bool:
        """True where the state was saved under an earlier uid."""
        return self.snapshot.uid != self.uid

    @property
    def has_new_query(self) -> bool:
        """True where another query of now has the state of the saved one, and with it its identity."""
        return self.part is not None and not self.part.has_state

    @property
    def finished_on_restore(self) -> bool:
        """True where the stage had ended: it is started finished and reads nothing any more."""
        return self.snapshot.finished

    @property
    def rescaled(self) -> bool:
        """True where the state must be split again for another number of subtasks."""
        return not self.snapshot.stateless and self.snapshot.parallelism != self.parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedStages:
    """Stages of a snapshot matched with those of a graph."""

    matches: tuple[StageMatch, ...]
    new: tuple[StageUid, ...]
    """Stages without saved state: they begin empty."""
    skipped: tuple[str, ...]
    """Saved stages the graph no longer has."""


def other_inputs(match: StageMatch) -> str:
    """Return why a stage's saved state does not fit its inputs; empty: it does.

    Spark numbers the inputs of a query by position: other inputs cannot take over their offsets.
    """
    if not match.snapshot.offsets or not (match.lost_inputs or match.new_inputs):
        return ""
    return (
        f"stage {match.uid!r} had other inputs when the snapshot was taken (no longer there: "
        f"{', '.join(match.lost_inputs) or 'none'}; new: {', '.join(match.new_inputs) or 'none'}): its saved state "
        "cannot be matched to them. "
        "Give the changed stage a new uid and start with allow_non_restored_state, or restore the old graph"
    )


def non_restored_state(options: RestoreOptions) -> NonRestoredState:
    """Return the treatment that the options ask for saved state that nothing takes."""
    return NonRestoredState.SKIP if options.allow_non_restored_state else NonRestoredState.REFUSE


def holds_something(snapshot: StageSnapshot) -> bool:
    """Return True where dropping the stage's part would lose state.

    A stage that keeps no operator state and reads only channels holds nothing but its position in them
    (Flink: an operator without state handles), and a finished stage holds nothing at all; a source's
    position (of one that has finished too), prepared but unpublished rows and driver-side state are something
    (CheckpointMetadataLoadingTest#testUnmatchedCoordinatorOnlyStateFails).
    """
    if snapshot.coordinator_state is not None:
        return True
    if snapshot.table is not None and snapshot.table.prepared:
        return True
    if snapshot.finished and not snapshot.offsets:
        return False
    has_files = snapshot.manifest is not None or snapshot.subtask_handles is not None
    if not has_files and snapshot.batch_id is None and not snapshot.offsets:
        return False
    return not (snapshot.stateless and snapshot.input_positions)


def match_stages(
    graph: PipelineGraph, metadata: CheckpointMetadata, *, non_restored: NonRestoredState
) -> MatchedStages:
    """Give every stage of ``graph`` its saved state.

    Raises InvalidRequest where state would be dropped unasked, where a uid is claimed twice, and where the
    parallelism does not fit what was saved.
    """
    now = of_now(graph, metadata)
    metadata = now.metadata
    sources = _sources_of_state(graph, metadata)
    names = {stage.uid: source.uid for stage, source in sources}
    all_saved = frozenset(snapshot.uid for snapshot in metadata.stages)
    matches = tuple(
        replace(
            _match(graph, stage, source, names, all_saved),
            part=now.parts.get(source.uid),
            joined=now.joined.get(source.uid),
        )
        for stage, source in sources
    )
    used = {source.uid for _, source in sources}
    new = tuple(stage.uid for stage in graph.stages if stage.uid not in names)
    unmatched = [saved for saved in metadata.stages if saved.uid not in used]
    match non_restored:
        case NonRestoredState.SKIP:
            pass
        case NonRestoredState.REFUSE:
            _refuse_loss([s.uid for s in unmatched if holds_something(s)], metadata, new)
        case _:
            assert_never(non_restored)
    return MatchedStages(matches=matches, new=new, skipped=tuple(saved.uid for saved in unmatched))


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedHooks:
    """How the hook states of a snapshot fit the pipeline's hooks, all by id."""

    restored: tuple[str, ...]
    new: tuple[str, ...]
    """Hooks without saved state: they begin empty."""
    dropped: tuple[str, ...]
    """Saved states of hooks the pipeline no longer has."""


def match_hooks(
    hooks: Iterable[str], states: Collection[str], *, non_restored: NonRestoredState
) -> MatchedHooks:
    """Give every hook its saved state. Raises InvalidRequest where a state would be dropped unasked."""
    wanted = tuple(hooks)
    dropped = tuple(sorted(set(states) - set(wanted)))
    if dropped and non_restored is NonRestoredState.REFUSE:
        raise InvalidRequest(
            f"the checkpoint holds state of hook {dropped[0]!r}, which the pipeline no longer has: add the hook "
            "again under that id, or drop its state with allow_non_restored_state = true"
        )
    return MatchedHooks(
        restored=tuple(hook for hook in wanted if hook in states),
        new=tuple(hook for hook in wanted if hook not in states),
        dropped=dropped,
    )


def _sources_of_state(
    graph: PipelineGraph, metadata: CheckpointMetadata
) -> list[tuple[StageSpec, StageSnapshot]]:
    """Match by uid first. Raises InvalidRequest where a stage names an earlier uid that is another's now: who is meant
    to go on with that state cannot be told.
    """
    saved = {snapshot.uid: snapshot for snapshot in metadata.stages}
    exact = {str(stage.uid) for stage in graph.stages if stage.uid in saved}
    found: list[tuple[StageSpec, StageSnapshot]] = []
    for stage in graph.stages:
        if stage.uid in saved:
            found.append((stage, saved[stage.uid]))
            continue
        earlier = next((u for u in stage.previous_uids if u in saved and u not in exact), None)
        if earlier is not None:
            found.append((stage, saved[earlier]))
            continue
        taken = next((u for u in stage.previous_uids if u in exact), None)
        if taken is not None:
            raise InvalidRequest(
                f"stage {str(stage.uid)!r} names {str(taken)!r} in previous_uids, and the pipeline has another stage "
                f"of that uid, which would go on with its state: give that one a uid of its own, or take "
                f"{str(taken)!r} out of previous_uids, and {str(stage.uid)!r} begins without state"
            )
    _refuse_double_claims(found)
    return found


def _refuse_double_claims(found: list[tuple[StageSpec, StageSnapshot]]) -> None:
    for saved_uid, count in Counter(snapshot.uid for _, snapshot in found).items():
        if count > 1:
            claimants = " and ".join(repr(str(stage.uid)) for stage, s in found if s.uid == saved_uid)
            raise InvalidRequest(
                f"stages {claimants} both name {saved_uid!r} in previous_uids: state goes to one stage only"
            )


def _refuse_loss(lost: list[str], metadata: CheckpointMetadata, new: tuple[StageUid, ...]) -> None:
    if not lost:
        return
    stages = ", ".join(repr(uid) for uid in lost)
    renamed = (
        f" If one of them was renamed, name its old uid in previous_uids of the new stage "
        f"({', '.join(repr(str(uid)) for uid in new)})."
        if new
        else ""
    )
    raise InvalidRequest(
        f"{metadata.kind.value} {metadata.checkpoint_id} holds state of {stages}, "
        f"which the pipeline no longer has.{renamed} To drop that state, restore with "
        "allow_non_restored_state = true"
    )


def _match(
    graph: PipelineGraph,
    stage: StageSpec,
    saved: StageSnapshot,
    names: dict[StageUid, str],
    all_saved: frozenset[str],
) -> StageMatch:
    inputs = {edge.upstream: names.get(edge.upstream) for edge in graph.inputs[stage.uid]}
    saved_inputs = set(saved.input_positions)
    return StageMatch(
        uid=stage.uid,
        snapshot=saved,
        parallelism=stage.parallelism,
        max_parallelism=_max_parallelism(stage, saved),
        lost_inputs=tuple(sorted(saved_inputs - {name for name in inputs.values() if name is not None})),
        new_inputs=tuple(uid for uid, name in inputs.items() if name not in saved_inputs),
        earlier_uids=tuple(str(uid) for uid in stage.previous_uids if uid not in all_saved),
    )


def _max_parallelism(stage: StageSpec, saved: StageSnapshot) -> int | None:
    limit = saved.max_parallelism
    if limit is None:
        return stage.max_parallelism
    if stage.max_parallelism is not None and stage.max_parallelism != limit:
        raise InvalidRequest(
            f"Max parallelism mismatch: stage {stage.uid!r} has max_parallelism {stage.max_parallelism}, "
            f"but its state was saved with {limit}: set it to {limit}, or leave it out to adopt the "
            "saved value"
        )
    if stage.parallelism > limit:
        raise InvalidRequest(
            f"stage {stage.uid!r} has parallelism {stage.parallelism}, but its state was saved with "
            f"max_parallelism {limit} and cannot be cut finer: lower the parallelism to {limit} or less"
        )
    return limit
