"""Operator chaining: which stages run as one Spark query, and what that makes of the graph.

A stage joins its reader when it has exactly one, keeps no state of its own and its author lets it. Several inputs may
join one reader; a chain begins either with sources or with channels, never with both, so that a barrier always reaches
it in one way. Source: flink-streaming StreamingJobGraphGenerator#isChainable, disableChaining.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dagster_ckpt.core.graph import Edge, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import Chain
from dagster_ckpt.errors import CheckpointError, InvalidRequest

JUDGES = "_rows"
"""Ends the uid of the stage that judges a sink's rows."""
_WAY_OUT = (
    "The positions and the state of these stages are one query's: change it back, or begin from nothing with "
    "restore_from: none"
)


class OtherChains(CheckpointError):
    """The attempt starts from a snapshot with other chains than it was opened with, or from none; nothing was changed.

    ``chains``: of that snapshot; None: there is none, so they are for the attempt to choose.
    """

    kind = "other_chains"

    def __init__(self, chains: tuple[Chain, ...] | None) -> None:
        super().__init__("the attempt starts from something with other chains: open it again")
        self.chains = chains


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenInPlans:
    """Facts about stages that only the plans of their queries tell; a reason completes "stage x …"."""

    leaves_reader: Mapping[StageUid, str] = field(default_factory=dict)
    """Stages that cannot run in their reader's query: stateful ones, those with a watermark."""
    leaves_inputs: Mapping[StageUid, str] = field(default_factory=dict)
    """Stages in whose query no input can run: those that read one twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of a pipeline: the stages that run as one query."""

    chains: tuple[Chain, ...]
    reasons: Mapping[tuple[StageUid, StageUid], str]
    """Why there is a channel, by (stage, reader); a reason is a sentence's end: "stage x has two readers"."""


# --- choosing ---------------------------------------------------------------------------------------------------


def layout_of(graph: PipelineGraph, seen: SeenInPlans) -> Layout:
    """Return the chains of a pipeline that begins without state."""
    members: dict[StageUid, tuple[StageUid, ...]] = {}
    fed_by_channel: dict[StageUid, bool] = {}
    bounded: dict[StageUid, bool] = {}
    places: dict[StageUid, frozenset[Hashable]] = {}
    reasons: dict[tuple[StageUid, StageUid], str] = {}
    for stage in graph.topological:
        inputs = _upstream(graph, stage.uid)
        apart = {uid: _why_apart(graph, uid, stage.uid, seen) for uid in inputs}
        joining = [uid for uid in inputs if not apart[uid]]
        from_sources = [uid for uid in joining if not fed_by_channel[uid]]
        if from_sources and len(from_sources) < len(inputs):
            why = f"begins with a source, and {stage.uid!r} reads channels too"
            apart |= dict.fromkeys(from_sources, why)
        elif len({bounded[uid] for uid in from_sources}) > 1:
            why = f"has data that ends and data that does not beside it in {stage.uid!r}"
            apart |= dict.fromkeys(from_sources, why)
        elif len(frozenset().union(*(places[uid] for uid in from_sources))) > 1:
            why = f"reads in another place (reads) than a source beside it in {stage.uid!r}"
            apart |= dict.fromkeys(from_sources, why)
        joining = [uid for uid in inputs if not apart[uid]]
        reasons |= {(uid, stage.uid): why for uid, why in apart.items() if why}
        members[stage.uid] = (*(one for uid in joining for one in members[uid]), stage.uid)
        fed_by_channel[stage.uid] = any(uid not in joining or fed_by_channel[uid] for uid in inputs)
        said = frozenset() if stage.chaining.reads is None else frozenset({stage.chaining.reads})
        places[stage.uid] = said.union(*(places[uid] for uid in joining))
        bounded[stage.uid] = (
            all(bounded[uid] for uid in joining) if inputs and joining else stage.chaining.bounded
        )
    inner = {uid for uid, chain in members.items() for uid in chain[:-1]}
    order: dict[str, int] = {stage.uid: at for at, stage in enumerate(graph.topological)}
    chains = tuple(
        Chain(uid=uid, stages=tuple(sorted(chain, key=order.__getitem__)))
        for uid, chain in members.items()
        if len(chain) > 1 and uid not in inner
    )
    return Layout(chains=chains, reasons=reasons)


def _why_apart(graph: PipelineGraph, uid: StageUid, reader: StageUid, seen: SeenInPlans) -> str:
    """Return why a stage does not run in its reader's query; empty: it does."""
    return (
        _why_declared_apart(graph, uid, reader)
        or seen.leaves_reader.get(uid, "")
        or (f"feeds {reader!r}, which {why}" if (why := seen.leaves_inputs.get(reader, "")) else "")
    )


def _why_declared_apart(graph: PipelineGraph, uid: StageUid, reader: StageUid) -> str:
    readers = list(dict.fromkeys(edge.downstream for edge in graph.outputs[uid]))
    if len(readers) > 1:
        return f"has {len(readers)} readers ({', '.join(readers)})"
    if any(edge.blocking for edge in graph.outputs[uid]):
        return "has a blocking output"
    if why := graph.by_uid[uid].chaining.leaves_reader:
        return why
    why = graph.by_uid[reader].chaining.leaves_inputs
    return f"feeds {reader!r}, which {why}" if why else ""


def _upstream(graph: PipelineGraph, uid: StageUid) -> list[StageUid]:
    return list(dict.fromkeys(edge.upstream for edge in graph.inputs[uid]))


# --- the graph that runs ----------------------------------------------------------------------------------------


def chained(graph: PipelineGraph, chains: Sequence[Chain]) -> PipelineGraph:
    """Return the graph in which each chain is one stage, under its last stage's uid."""
    if not chains:
        return graph.authored
    authored = graph.authored
    runs_as = {StageUid(uid): StageUid(chain.uid) for chain in chains for uid in chain.stages}
    edges: dict[tuple[StageUid, StageUid], Edge] = {}
    for edge in authored.edges:
        ends = runs_as.get(edge.upstream, edge.upstream), runs_as.get(edge.downstream, edge.downstream)
        if ends[0] != ends[1]:
            edges.setdefault(ends, replace(edge, upstream=ends[0], downstream=ends[1]))
    return PipelineGraph(
        pipeline=authored.pipeline,
        stages=tuple(s for s in authored.stages if runs_as.get(s.uid, s.uid) == s.uid),
        edges=tuple(edges.values()),
        chains=tuple(chains),
        unchained=authored,
        previous_names=authored.previous_names,
    )


# --- restoring --------------------------------------------------------------------------------------------------


def with_kept_chains(graph: PipelineGraph, saved: Iterable[Chain]) -> PipelineGraph:
    """Return the graph as it runs after a restore of a snapshot with these chains. Raises as ``kept_chains``."""
    return chained(graph.authored, kept_chains(graph.authored, saved))


def kept_chains(graph: PipelineGraph, saved: Iterable[Chain]) -> tuple[Chain, ...]:
    """Return the chains of a snapshot as the stages are called and may run together now: a restore keeps them.

    Where a stage may not run in its reader's query any more, the restore parts the query (``parts_of``). A chain whose
    last stage is gone is left out, as that stage's state is. Raises InvalidRequest where another one is gone.
    """
    together = {one: chain for chain in saved for one in _stages_now(graph, chain)}
    apart = {
        stage.uid: "did not run in its reader's query"
        for stage in graph.stages
        if stage.uid not in together
        or any(together.get(edge.downstream) != together[stage.uid] for edge in graph.outputs[stage.uid])
    }
    return layout_of(graph, SeenInPlans(leaves_reader=apart)).chains


def _stages_now(graph: PipelineGraph, saved: Chain) -> tuple[StageUid, ...]:
    """Return the stages of a chain as they are called now, with one that has its last one's function since."""
    now = {uid: _called_now(graph, uid) for uid in saved.stages}
    last = now[saved.uid]
    if last is None:
        return ()
    gone = next((uid for uid, name in now.items() if name is None), None)
    if gone is not None:
        raise InvalidRequest(
            f"stage {gone!r} runs in the chain {saved.name} of the restore point, and the pipeline no longer has it. "
            f"{_WAY_OUT}"
        )
    members = {name for name in now.values() if name is not None}
    if len(members) < len(now):
        raise InvalidRequest(
            f"previous_uids name two stages of the chain {saved.name} of the restore point in one stage. {_WAY_OUT}"
        )
    return tuple({*members, _function_of(graph, last)})


def _function_of(graph: PipelineGraph, uid: StageUid) -> StageUid:
    """Return the stage that has the function of a sink: the one that judges its rows, where there is one."""
    return next((stage.uid for stage in graph.stages if stage.function_of == uid), uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPart:
    """Part of a saved query that a restore makes a query of its own."""

    uid: StageUid
    is_chain: bool
    inputs: tuple[str, ...]
    """Saved stages that read something for the saved query."""
    feeds: Mapping[str, StageUid | None]
    """By saved stage: the part whose channel brings what that stage read; None: it is read here, as it was."""
    readers: Mapping[str, StageUid]
    """By saved stage: the stage of this part that reads that, or the channel."""
    has_state: bool
    """It has the saved query's last function, and with it the state."""
    has_sink: bool
    """It has the saved query's last stage, and with it readers, or the rows of the sink."""

    @property
    def channels(self) -> tuple[StageUid, ...]:
        """The parts whose channels it reads."""
        return tuple(dict.fromkeys(uid for uid in self.feeds.values() if uid is not None))

    @property
    def begins(self) -> bool:
        """Tell whether it reads something that the saved query read."""
        return None in self.feeds.values()

    @property
    def reads_alone(self) -> bool:
        """Tell whether it reads all that the saved query read, and nothing else."""
        return not self.channels and self.feeds.keys() == set(self.inputs)


def parts_of(graph: PipelineGraph, saved: Chain | StageUid, known: Collection[str]) -> tuple[QueryPart, ...]:
    """Return the parts of a saved query, inputs before readers; none where it goes on as one, with its functions.

    ``graph``: as it runs. ``known``: all stages of the snapshot. A sink that judges its rows since has its function in
    another stage. Raises InvalidRequest where rows of one stage would reach another one on two ways.
    """
    authored = graph.authored
    uid, stages = (saved.uid, saved.stages) if isinstance(saved, Chain) else (saved, (saved,))
    last = _called_now(authored, uid)
    if last is None:
        return ()
    holder = _function_of(authored, last)
    holder = last if _is_known(authored, holder, known) else holder
    starts = {one: name for one in stages if (name := _called_now(authored, one))} | {uid: holder}
    ways = {one: _way(authored, start, last) for one, start in starts.items()}
    within = {at for way in ways.values() for at in way}
    ways = {
        one: way
        for one, way in ways.items()
        if not within.issuperset(_upstream(authored, starts[one])) or (not authored.inputs[starts[one]])
    }
    runs_as = {StageUid(one): StageUid(chain.uid) for chain in graph.chains for one in chain.stages}
    queries = dict.fromkeys(
        runs_as.get(stage.uid, stage.uid) for stage in authored.topological if stage.uid in within
    )
    if len(queries) == 1 and holder == last:
        return ()
    held = {runs_as.get(one, one) for one in (*starts.values(), last)}

    def fed_by(way: Sequence[StageUid], at: int) -> StageUid | None:
        return runs_as.get(way[at - 1], way[at - 1]) if at else None

    entries = {
        query: {one: at for one, way in ways.items() if (at := _entry(way, query, runs_as)) is not None}
        for query in queries
    }
    return tuple(
        QueryPart(
            uid=query,
            is_chain=query in runs_as,
            inputs=tuple(ways),
            feeds={one: fed_by(ways[one], at) for one, at in entries[query].items()},
            readers={one: ways[one][at] for one, at in entries[query].items()},
            has_state=runs_as.get(holder, holder) == query,
            has_sink=last == query,
        )
        for query in queries
        if query in held
    )


def _entry(way: Sequence[StageUid], query: StageUid, runs_as: Mapping[StageUid, StageUid]) -> int | None:
    """Return where a way enters a query; None: it passes by."""
    return next((at for at, one in enumerate(way) if runs_as.get(one, one) == query), None)


def _is_known(graph: PipelineGraph, uid: StageUid, known: Collection[str]) -> bool:
    return not {uid, *graph.by_uid[uid].previous_uids}.isdisjoint(known)


def _way(graph: PipelineGraph, start: StageUid, end: StageUid) -> tuple[StageUid, ...]:
    """Return the stages from ``start`` to ``end`` that rows pass; empty: they do not get there."""
    if start == end:
        return (end,)
    readers = dict.fromkeys(edge.downstream for edge in graph.outputs[start])
    found = [way for reader in readers if (way := _way(graph, reader, end))]
    if len(found) > 1:
        raise InvalidRequest(
            f"stage {start!r} ran in one query with {end!r}, and its rows reach that one by {found[0][0]!r} and by "
            f"{found[1][0]!r} now. {_WAY_OUT}"
        )
    return (start, *found[0]) if found else ()


def _called_now(graph: PipelineGraph, saved: str) -> StageUid | None:
    """Return the stage a saved uid means: by uid, by those that a stage had before, by the sink it judged rows of."""
    if saved in graph.by_uid:
        return StageUid(saved)
    renamed = next((stage.uid for stage in graph.stages if saved in stage.previous_uids), None)
    return renamed or next((stage.uid for stage in graph.stages if saved in judges_of(stage)), None)


def judges_of(sink: StageSpec) -> tuple[str, ...]:
    """Return the uids of the stage that judges a sink's rows, or did: its function is the sink's own without it."""
    return tuple(f"{name}{JUDGES}" for name in (sink.uid, *sink.previous_uids))
