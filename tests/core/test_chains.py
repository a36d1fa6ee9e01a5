"""Which stages run as one query, what that makes of the graph, and what a restore keeps of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dagster_ckpt.core.chains import (
    QueryPart,
    SeenInPlans,
    chained,
    kept_chains,
    layout_of,
    parts_of,
    with_kept_chains,
)
from dagster_ckpt.core.graph import Chaining, Edge, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.model import (
    Chain,
    CheckpointKind,
    CheckpointMetadata,
    SnapshotMetrics,
    StageSnapshot,
    TableSnapshot,
)
from dagster_ckpt.core.restore.facts import shape_of
from dagster_ckpt.core.restore.parted import of_now
from dagster_ckpt.errors import InvalidRequest


def graph(
    *edges: str, earlier: dict[str, tuple[str, ...]] | None = None, **chaining: Chaining
) -> PipelineGraph:
    """``graph("a b", "b c")``: a feeds b, b feeds c."""
    pairs = [tuple(edge.split()) for edge in edges]
    uids = dict.fromkeys(uid for pair in pairs for uid in pair)
    return PipelineGraph(
        pipeline=PipelineId("p"),
        stages=tuple(
            StageSpec(
                uid=StageUid(uid),
                chaining=chaining.get(uid, Chaining()),
                previous_uids=tuple(StageUid(u) for u in (earlier or {}).get(uid, ())),
            )
            for uid in uids
        ),
        edges=tuple(Edge(upstream=StageUid(a), downstream=StageUid(b)) for a, b in pairs),
    )


def chains(made: PipelineGraph, stateful: str = "", twice: str = "") -> list[str]:
    seen = SeenInPlans(
        leaves_reader={StageUid(uid): "keeps state" for uid in stateful.split()},
        leaves_inputs={StageUid(uid): "reads an input twice" for uid in twice.split()},
    )
    return [chain.name for chain in layout_of(made, seen).chains]


def chain(*stages: str) -> Chain:
    return Chain(uid=stages[-1], stages=stages)


BOUNDED = Chaining(bounded=True)


@pytest.mark.parametrize(
    ("made", "how", "expected"),
    [
        (graph("s a", "a k"), {}, ["s -> a -> k"]),
        (graph("s a", "a k"), {"stateful": "a"}, ["s -> a"]),
        (graph("s a", "a k"), {"stateful": "k"}, ["s -> a -> k"]),
        (graph("s a", "a k"), {"stateful": "s"}, ["a -> k"]),
        (graph("s a", "a b", "b k"), {"stateful": "a b"}, ["s -> a"]),
        (graph("s a", "a b", "b c", "c k"), {"stateful": "b"}, ["s -> a -> b", "c -> k"]),
        (graph("s a", "s b", "a k", "b l"), {}, ["a -> k", "b -> l"]),
        (graph("s j", "t j", "j k"), {"stateful": "j"}, ["s -> t -> j"]),
        (graph("s j", "t j", "j k"), {}, ["s -> t -> j -> k"]),
        (graph("s a", "a j", "t j", "j k"), {"stateful": "a"}, ["s -> a", "j -> k"]),
        (graph("s a", "s b", "a j", "b j", "j k"), {}, ["a -> b -> j -> k"]),
        (graph("s a", "a k"), {"twice": "a"}, ["a -> k"]),
        (graph("s k", s=Chaining(leaves_reader="has chain=False")), {}, []),
        (graph("s a", "a k", k=Chaining(leaves_inputs="has chain=False")), {}, ["s -> a"]),
        (graph("s k", "t k", s=Chaining(reads="here"), t=Chaining(reads="here")), {}, ["s -> t -> k"]),
        (graph("s k", "t k", s=Chaining(reads="here")), {}, ["s -> t -> k"]),
        (graph("s k", "t k", s=Chaining(reads="here"), t=Chaining(reads="there")), {}, []),
        (graph("s a", "a k", "t k", s=Chaining(reads="x"), t=Chaining(reads="y")), {}, ["s -> a"]),
        (graph("s k", "t k", s=BOUNDED, t=BOUNDED), {}, ["s -> t -> k"]),
        (graph("s k", "t k", s=BOUNDED), {}, []),
        (graph("s a", "a k", "t k", s=BOUNDED), {}, ["s -> a"]),
    ],
)
def test_a_stage_joins_its_only_reader_unless_it_keeps_state(
    made: PipelineGraph, how: dict[str, str], expected: list[str]
) -> None:
    assert chains(made, **how) == expected


def test_a_channel_that_remains_has_a_reason() -> None:
    made = graph("s a", "s b", "a k", "b l")
    reasons = layout_of(made, SeenInPlans(leaves_reader={StageUid("a"): "keeps state"})).reasons
    assert reasons == {
        ("s", "a"): "has 2 readers (a, b)",
        ("s", "b"): "has 2 readers (a, b)",
        ("a", "k"): "keeps state",
    }


def test_a_chain_is_one_stage_of_the_graph_that_runs() -> None:
    made = graph("s j", "t j", "j k", "j l")
    ran = chained(made, [chain("s", "t", "j")])
    assert [stage.uid for stage in ran.stages] == ["j", "k", "l"]
    assert [(e.upstream, e.downstream) for e in ran.edges] == [("j", "k"), ("j", "l")]
    assert [stage.uid for stage in ran.sources] == ["j"]
    assert ran.authored is made
    assert chained(ran, []) is made


def test_two_layouts_have_two_shapes_though_the_stages_that_run_are_the_same() -> None:
    """A directory is adopted by its shape: another source must not take over the offsets of the first."""
    one, other = chained(graph("s k"), [chain("s", "k")]), chained(graph("t k"), [chain("t", "k")])
    assert shape_of(one) != shape_of(other) != shape_of(graph("s k"))


def test_a_restore_keeps_the_chains_of_its_snapshot() -> None:
    made = graph("s a", "a k")
    assert with_kept_chains(made, [chain("s", "a")]).chains == (chain("s", "a"),)
    assert with_kept_chains(made, []) is made, "an old checkpoint goes on unchained"


def test_renamed_stages_stay_in_their_chain() -> None:
    made = graph("s a", "a k", earlier={"s": ("source",), "k": ("sink",)})
    assert kept_chains(made, [chain("source", "a", "sink")]) == (chain("s", "a", "k"),)


def test_a_chain_whose_last_stage_is_gone_is_left_out_as_its_state_is() -> None:
    assert kept_chains(graph("s a", "a k"), [chain("s", "a", "old")]) == ()


def judged(*edges: str, **chaining: Chaining) -> PipelineGraph:
    """Return a graph in which ``j`` judges the rows of the sink ``k``."""
    made = graph(*edges, earlier=None, **chaining)
    stages = [
        replace(stage, function_of=StageUid("k") if stage.uid == "j" else None) for stage in made.stages
    ]
    return replace(made, stages=tuple(stages))


LEAVES, ALONE = Chaining(leaves_reader="has conditions"), Chaining(leaves_inputs="reads its input again")
CHAIN = chain("s", "a", "k")


@pytest.mark.parametrize(
    ("made", "saved", "parts"),
    [
        (graph("s a", "a k"), CHAIN, ""),
        (graph("s a", "a k", "k l"), CHAIN, ""),
        (graph("s a", "a k", a=LEAVES), CHAIN, "a: s; k<a: state sink"),
        (graph("s a", "a k", s=LEAVES), CHAIN, "s: s; k<s: state sink"),
        (graph("s a", "a k", a=ALONE), CHAIN, "s: s; k<s: state sink"),
        (graph("s a", "a k", "a l"), CHAIN, "a: s; k<a: state sink"),
        (graph("s a", "a n", "n k"), CHAIN, "a: s; k<n: state sink"),
        (judged("s a", "a j", "j k", j=LEAVES), CHAIN, "j: s state; k<j: sink"),
        (
            judged("s a", "a j", "j k", j=replace(LEAVES, leaves_inputs="reads again")),
            CHAIN,
            "a: s; j<a: state; k<j: sink",
        ),
        (judged("c j", "j k", j=LEAVES), StageUid("k"), "j: k state; k<j: sink"),
        (graph("s u", "t u", "u k", u=LEAVES), chain("s", "t", "u", "k"), "u: s,t; k<u: state sink"),
        (graph("s u", "t u", "u k", s=LEAVES), chain("s", "t", "u", "k"), "s: s; t: t; k<s<t: state sink"),
        (graph("s k", "t k", s=BOUNDED), chain("s", "t", "k"), "s: s; t: t; k<s<t: state sink"),
        (graph("s a", "t a", "a k"), CHAIN, "s: s; k<s: a state sink"),
        (graph("s a", "a k"), chain("s", "a", "old"), ""),
    ],
)
def test_a_query_whose_stages_may_not_run_as_one_any_more_is_parted(
    made: PipelineGraph, saved: Chain | StageUid, parts: str
) -> None:
    runs = with_kept_chains(made, [saved] if isinstance(saved, Chain) else [])
    found = parts_of(runs, saved, {*saved.stages} if isinstance(saved, Chain) else {saved})
    assert "; ".join(map(told, found)) == parts


def snapshot(uid: str, batch: int, **what: Any) -> StageSnapshot:
    return StageSnapshot(uid=uid, parallelism=1, batch_id=batch, **what)


@pytest.mark.parametrize(
    ("in_flight", "batches", "stateless", "said"),
    [
        (0, 3, True, 4),
        (0, 5, True, 5),
        (0, 4, False, 4),
        (9, 3, True, "rows lie between 'k_rows' and sink 'k'"),
        (0, 5, False, "state counts batches"),
    ],
)
def test_a_sink_that_judges_its_rows_no_more_goes_on_from_its_judge(
    in_flight: int, batches: int, stateless: bool, said: int | str
) -> None:
    """Its own query brings the table, the judge's all else; batches count on from whichever had more."""
    metrics = SnapshotMetrics(persisted_in_flight=in_flight)
    between: dict[str, Any] = {"input_positions": {"k_rows": 7}, "metrics": metrics}
    saved = CheckpointMetadata(
        pipeline="p",
        checkpoint_id=1,
        kind=CheckpointKind.CHECKPOINT,
        epoch=1,
        triggered_at=1.0,
        completed_at=1.0,
        chains=(chain("s", "k_rows"),),
        stages=(
            snapshot("k_rows", 4, offsets={"0": "9"}, stateless=stateless, output_position=7),
            snapshot("k", batches, table=TableSnapshot(uri="t"), stateless=True, **between),
        ),
    )
    made = with_kept_chains(graph("s k"), saved.chains)
    if isinstance(said, str):
        with pytest.raises(InvalidRequest, match=said):
            of_now(made, saved)
        return
    [sink] = of_now(made, saved).metadata.stages
    assert made.chains == (chain("s", "k"),)
    assert (sink.uid, sink.batch_id, sink.offsets) == ("k", said, {"0": "9"})
    assert (sink.table, sink.output_position) == (TableSnapshot(uri="t"), None)


@pytest.mark.parametrize(
    ("made", "saved", "alone"),
    [
        (graph("s a", "a k", a=LEAVES), CHAIN, {"a"}),
        (graph("s u", "t u", "u k", u=LEAVES), chain("s", "t", "u", "k"), {"u"}),
        (graph("s u", "t u", "u k", s=LEAVES), chain("s", "t", "u", "k"), set()),
    ],
)
def test_a_part_reads_alone_only_where_it_reads_all_that_the_query_read(
    made: PipelineGraph, saved: Chain, alone: set[str]
) -> None:
    parts = parts_of(with_kept_chains(made, [saved]), saved, saved.stages)
    assert {part.uid for part in parts if part.reads_alone} == alone


def told(part: QueryPart) -> str:
    own = ",".join(one for one, channel in part.feeds.items() if channel is None)
    has = [own, *["state"] * part.has_state, *["sink"] * part.has_sink]
    return f"{'<'.join([part.uid, *part.channels])}: {' '.join(one for one in has if one)}"


def test_what_a_query_cannot_go_on_with_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no longer has it"):
        kept_chains(graph("s k"), [CHAIN])
    made = graph("s a", "a k", "s k")
    with pytest.raises(InvalidRequest, match="by 'a' and by 'k' now"):
        parts_of(with_kept_chains(made, [CHAIN]), CHAIN, CHAIN.stages)


def test_a_stage_cannot_be_two_stages_of_a_chain() -> None:
    made: Any = graph("s k", earlier={"s": ("a", "b")})
    with pytest.raises(InvalidRequest, match="two stages"):
        kept_chains(made, [chain("a", "b", "k")])
