"""``@checkpointed_pipeline``: composes stages into a graph, as Dagster's ``@graph`` composes ops."""

from __future__ import annotations

import inspect
import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_ckpt.authoring.judged_sinks import judged_apart, judged_by
from dagster_ckpt.authoring.own_objects import HookDefinition
from dagster_ckpt.authoring.stage_settings import Boundedness, DerivedTable, PublishParticipant
from dagster_ckpt.authoring.stages import StageDefinition, StageRole, _composing
from dagster_ckpt.authoring.targets import META_FOLDER, SinkTarget
from dagster_ckpt.core.chains import chained
from dagster_ckpt.core.config import CheckpointConfig, refuse_unknown
from dagster_ckpt.core.graph import Chaining, Edge, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import PipelineId, StageUid, pipeline_id
from dagster_ckpt.core.model import Chain
from dagster_ckpt.core.paths import local_folder
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.errors import InvalidRequest


def chaining_of(stage: StageDefinition) -> Chaining:
    """Return a stage's chaining; a setting that would not act within a chain keeps the stage out of one."""
    limit = stage.max_entries_per_trigger
    apart = (
        (not stage.chain, "has chain=False"),
        (stage.barrier_after is not None, "has barrier_after"),
        (stage.is_backlog is not None, "has is_backlog"),
        (stage.participant is not None, "has conditions on its rows"),
        (stage.partitions is not None, f"has partitions={stage.partitions}"),
        (hasattr(stage.state, "process"), f"hands its rows to {getattr(stage.state, '__name__', '')}"),
    )
    alone = (
        (not stage.chain, "has chain=False"),
        (bool(limit), f"has max_entries_per_trigger={limit}"),
        (stage.participant is not None and stage.participant.rereads, "may read its input once more"),
    )
    return Chaining(
        leaves_reader=next((why for is_so, why in apart if is_so), ""),
        leaves_inputs=next((why for is_so, why in alone if is_so), ""),
        bounded=stage.boundedness is Boundedness.BOUNDED,
        reads=stage.reads,
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointedPipeline:
    """A pipeline: its stages, how they are connected, and how its checkpoints differ from the resource's defaults."""

    name: PipelineId
    stages: Mapping[StageUid, StageDefinition]
    """In composition order."""
    upstream: Mapping[StageUid, tuple[StageUid, ...]]
    checkpointing: Mapping[str, Any] = field(default_factory=dict)
    """Settings of ``CheckpointConfig`` that override the resource's."""
    table_dir: str = ""
    """Overrides the resource's ``table_dir``."""
    description: str = ""
    hooks: tuple[HookDefinition, ...] = ()
    """They take part in every checkpoint, on the driver."""
    derived: tuple[DerivedTable, ...] = ()
    """Tables that are computed from what sinks have published; each after those it reads."""
    after_publish: tuple[PublishParticipant, ...] = ()
    """Participants in publishes, in their order: they make derived tables, and views."""
    chains: tuple[Chain, ...] = ()
    """Stages that run as one query: ``stages`` has them as one, under the last one's uid (``run_as``)."""
    unchained: CheckpointedPipeline | None = None
    """The pipeline as its author composed it; None: this is that."""
    previous_names: tuple[PipelineId, ...] = ()
    """Names it had before: snapshots and tables of these are its own."""
    program: tuple[str, ...] = ()
    """Command of a program that starts its queries itself, whose stages these are; empty: stages are functions."""
    forked_from: CheckpointedPipeline | None = field(default=None, repr=False)
    """Pipeline it is a fork of; None: of none."""

    @property
    def origins(self) -> tuple[CheckpointedPipeline, ...]:
        """The pipelines it is a fork of, nearest first; the last one's name is what readers of tables know."""
        found: list[CheckpointedPipeline] = []
        above = self.forked_from
        while above is not None:
            found.append(above)
            above = above.forked_from
        return tuple(found)

    def snapshot_of_idle(self, request: CheckpointRequest) -> tuple[int, str]:
        """Take a snapshot of a program that does not run; return number and URI. Raises InvalidRequest, Declined."""
        raise InvalidRequest(f"{self.name} is no program that starts its queries itself: run its job")

    @property
    def authored(self) -> CheckpointedPipeline:
        """The pipeline as its author composed it."""
        return self.unchained or self

    def members(self, uid: StageUid) -> tuple[StageUid, ...]:
        """Return the stages, as authored, that run in the query of ``uid``: inputs before readers, ``uid`` last."""
        found = next((chain for chain in self.chains if chain.uid == uid), None)
        return (uid,) if found is None else tuple(StageUid(one) for one in found.stages)

    def chain_of(self, uid: StageUid) -> Chain | None:
        """Return the chain in which a stage, as authored, runs; None: it runs as a query of its own."""
        return next((chain for chain in self.chains if uid in chain.stages), None)

    def title(self, uid: StageUid) -> str:
        """Return a query as people are told of it: ``stage totals``, ``chain orders -> clean -> totals``."""
        found = next((chain for chain in self.chains if chain.uid == uid), None)
        return f"stage {uid}" if found is None else f"chain {found.name}"

    @property
    def graph(self) -> PipelineGraph:
        """The pipeline as the coordinator sees it."""
        if self.unchained is not None:
            return chained(self.unchained.graph, self.chains)
        return PipelineGraph(
            pipeline=self.name,
            previous_names=self.previous_names,
            stages=tuple(
                StageSpec(
                    uid=uid,
                    name=uid,
                    previous_uids=stage.previous_uids,
                    chaining=chaining_of(stage),
                    function_of=judged_by(uid, self.stages),
                )
                for uid, stage in self.stages.items()
            ),
            edges=tuple(
                Edge(upstream=source, downstream=uid)
                for uid, sources in self.upstream.items()
                for source in dict.fromkeys(sources)
            ),
        )

    def is_called(self, name: str) -> bool:
        """Tell whether this is the pipeline's name, or one it had before."""
        return name in (self.name, *self.previous_names)

    @property
    def hook_uids(self) -> tuple[str, ...]:
        """Ids of the hooks."""
        return tuple(hook.uid for hook in self.hooks)

    @property
    def hook_resource_keys(self) -> frozenset[str]:
        """Dagster resources the hooks need, in every op that opens an attempt."""
        return frozenset(key for hook in self.hooks for key in hook.required_resource_keys)

    @property
    def resource_keys(self) -> frozenset[str]:
        """Dagster resources its stages and hooks need: a stage may run in another one's query, or before its turn."""
        stages = (key for stage in self.authored.stages.values() for key in stage.required_resource_keys)
        return self.hook_resource_keys | frozenset(stages)

    def consumers(self, uid: StageUid) -> tuple[StageUid, ...]:
        """Return the stages that read the channel log of ``uid``."""
        return tuple(other for other, sources in self.upstream.items() if uid in sources)

    def ancestors(self, uid: StageUid) -> tuple[StageUid, ...]:
        """Return all stages ``uid`` depends on, each after its own inputs."""
        wanted: set[StageUid] = set()
        todo = list(self.upstream[uid])
        while todo:
            current = todo.pop()
            if current not in wanted:
                wanted.add(current)
                todo.extend(self.upstream[current])
        return tuple(stage.uid for stage in self.graph.topological if stage.uid in wanted)

    def fork(
        self, name: str, *, table_dir: str, sinks: Mapping[str, SinkTarget] | None = None
    ) -> CheckpointedPipeline:
        """Return the same stages under another pipeline name, with tables of their own in ``table_dir``.

        ``sinks``: by uid, where the rows of sinks end that were given a place of their own (``to``).
        """
        if name == self.name:
            raise InvalidRequest(
                f"a fork needs a name of its own; {name!r} is the name of the pipeline it forks"
            )
        local_folder(table_dir, setting="table_dir")
        targets = dict(sinks or {})
        for uid, stage in self.stages.items():
            if _has_own_place(stage) and uid not in targets:
                raise InvalidRequest(
                    f"sink {uid!r} writes {stage.to or stage.table}, whatever the table_dir: give the fork a place of "
                    f"its own, fork({name!r}, ..., sinks={{{uid!r}: ...}})"
                )
        unknown = sorted(set(targets) - set(self.stages))
        if unknown:
            raise InvalidRequest(
                f"{unknown[0]!r} is no sink of {self.name!r}: its stages are {sorted(self.stages)}"
            )
        stages = {
            uid: replace(
                stage,
                to=targets.get(uid, stage.to),
                asset="" if stage.role is StageRole.SINK else stage.asset,
                reads=None if stage.reads is None else stage.reads.of_fork(),
            )
            for uid, stage in self.stages.items()
        }
        return replace(
            self,
            name=pipeline_id(name),
            previous_names=(),
            table_dir=table_dir,
            stages=stages,
            after_publish=tuple(one for one in self.after_publish if one.is_forked),
            forked_from=self.authored,
        )


def _has_own_place(stage: StageDefinition) -> bool:
    """Tell whether a sink's rows end where another ``table_dir`` changes nothing."""
    return stage.table is not None and (_folder_of(stage) or "/").startswith("/")


def _folder_of(stage: StageDefinition) -> str | None:
    """Return the folder that a sink's table is, below ``table_dir`` or absolute; None: it is none."""
    return None if stage.table is None else stage.target.local_folder(stage.table.name)


def run_as(pipeline: CheckpointedPipeline, chains: Sequence[Chain]) -> CheckpointedPipeline:
    """Return the pipeline as it runs: each chain is one stage, as its last one is, with what the others read."""
    authored = pipeline.authored
    if not chains:
        return authored
    inner = {uid for chain in chains for uid in chain.stages if uid != chain.uid}
    stages = {uid: stage for uid, stage in authored.stages.items() if uid not in inner}
    upstream = {uid: authored.upstream[uid] for uid in stages}
    for chain in chains:
        uid = StageUid(chain.uid)
        members = [StageUid(one) for one in chain.stages]
        read = (source for one in members for source in authored.upstream[one] if source not in members)
        upstream[uid] = tuple(dict.fromkeys(read))
        sources = [authored.stages[one] for one in members if not authored.upstream[one]]
        ends = bool(sources) and all(s.boundedness is Boundedness.BOUNDED for s in sources)
        stages[uid] = replace(
            authored.stages[uid], boundedness=Boundedness.BOUNDED if ends else Boundedness.UNBOUNDED
        )
    return replace(authored, stages=stages, upstream=upstream, chains=tuple(chains), unchained=authored)


def checkpointed_pipeline(
    fn: Callable[[], Any] | None = None,
    /,
    *,
    name: str = "",
    previous_names: Sequence[str] = (),
    checkpointing: Mapping[str, Any] | None = None,
    table_dir: str = "",
    hooks: Sequence[HookDefinition] = (),
    **unknown: Any,
) -> Any:
    """Compose a pipeline by calling stages with the outputs of others.

    Args:
        name: pipeline id, job name and asset prefix; default: the function's name.
        previous_names: names it had before, with whose snapshots (by their URI) and tables it goes on.
        checkpointing: settings of ``CheckpointConfig`` over the coordinator resource's, under our names or Flink's.
        table_dir: overrides the resource's ``table_dir`` for this pipeline's sinks.
        hooks: classes made with ``@pipeline_hook``, which take part in every checkpoint.
        unknown: refused, with the nearest name there is.

    Raises:
        InvalidRequest: at definition time, for impossible settings, a uid used twice, inputs that do not fit, or a
            stage nobody reads.
    """

    refuse_unknown(
        unknown, {"name", "previous_names", "checkpointing", "table_dir"}, of="@checkpointed_pipeline"
    )

    def wrap(function: Callable[[], Any]) -> CheckpointedPipeline:
        nodes: dict[StageUid, tuple[StageDefinition, tuple[StageUid, ...]]] = {}
        token = _composing.set(nodes)
        try:
            function()
        finally:
            _composing.reset(token)
        nodes = judged_apart(nodes)
        local_folder(table_dir, setting="table_dir")
        settings = dict(checkpointing or {})
        CheckpointConfig.of(**settings)
        return checked_pipeline(
            CheckpointedPipeline(
                name=pipeline_id(name or function.__name__),
                previous_names=former_names(previous_names, of=name or function.__name__),
                stages={uid: stage for uid, (stage, _) in nodes.items()},
                upstream={uid: upstream for uid, (_, upstream) in nodes.items()},
                checkpointing=settings,
                table_dir=table_dir,
                description=inspect.getdoc(function) or "",
                hooks=_checked_hooks(hooks),
            )
        )

    return wrap if fn is None else wrap(fn)


def former_names(given: Sequence[str], *, of: str) -> tuple[PipelineId, ...]:
    """Return names that a pipeline had before. Raises InvalidRequest for a text, and for the name it has."""
    if isinstance(given, str) or of in given:
        raise InvalidRequest(
            f"previous_names of pipeline {of!r} is {given!r}: it is a list of names that the pipeline had before, such "
            "as ['orders_v1'], and does not have now"
        )
    return tuple(pipeline_id(name) for name in given)


def checked_pipeline(pipeline: CheckpointedPipeline) -> CheckpointedPipeline:
    """Return a pipeline that was put together. Raises InvalidRequest for loose ends and tables that meet."""
    local_folder(pipeline.table_dir, setting="table_dir")
    _refuse_loose_ends(pipeline)
    _refuse_shared_tables(pipeline)
    return pipeline


def _checked_hooks(hooks: Sequence[HookDefinition]) -> tuple[HookDefinition, ...]:
    for hook in hooks:
        if not isinstance(hook, HookDefinition):
            raise InvalidRequest(
                f"{hook!r} is no hook: decorate its class with @pipeline_hook and give the class"
            )
    doubled = next((uid for uid, n in Counter(h.uid for h in hooks).items() if n > 1), None)
    if doubled is not None:
        raise InvalidRequest(f"two hooks have uid {doubled!r}: a uid names the state of one hook")
    return tuple(hooks)


def _refuse_loose_ends(pipeline: CheckpointedPipeline) -> None:
    _ = pipeline.graph
    for uid, stage in pipeline.stages.items():
        if stage.role is not StageRole.SINK and not pipeline.consumers(uid):
            raise InvalidRequest(
                f"stage {uid!r} of pipeline {pipeline.name!r} has no reader: its channel log would grow for nothing. "
                "Connect it to a stage or a sink, or leave it out"
            )


def _refuse_shared_tables(pipeline: CheckpointedPipeline) -> None:
    """Raise InvalidRequest for sinks whose tables are one folder, or lie in one another, however they are spelt."""
    taken: dict[str, StageUid] = {str(table.uid): table.uid for table in pipeline.derived}
    for uid, stage in pipeline.stages.items():
        name = _folder_of(stage)
        if name is None:
            continue
        place = posixpath.normpath(name)
        other = next(
            (p for p in taken if f"{p}/".startswith(f"{place}/") or f"{place}/".startswith(f"{p}/")), None
        )
        if other is not None or place in (".", "..") or META_FOLDER in place.split("/"):
            whose = f"sink {taken[other]!r} writes {other!r}" if other else "that is no folder of its own"
            raise InvalidRequest(
                f"sink {uid!r} of pipeline {pipeline.name!r} writes table {name!r}, and {whose}: rows of the one would "
                "be taken for the other's. Give each a folder of its own, side by side"
            )
        taken[place] = uid
