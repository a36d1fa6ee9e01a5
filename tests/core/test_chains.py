"""Which stages run as one query, what that makes of the graph, and what a restore keeps of it."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_ckpt.core.chains import SeenInPlans, chained, kept_chains, layout_of, with_kept_chains
from dagster_ckpt.core.graph import Chaining, Edge, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.model import Chain
from dagster_ckpt.core.restore.facts import shape_of
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


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (graph("s k"), "no longer has it"),
        (
            graph("s a", "a k", "a l"),
            "'a' runs in the chain s -> a -> k of the restore point, and now feeds 'l'",
        ),
        (graph("s a", "a n", "n k"), "now feeds 'n'"),
        (graph("s a", "a k", a=Chaining(leaves_reader="has chain=False")), "now has chain=False"),
        (graph("s a", "a k", a=Chaining(leaves_reader="has partitions=3")), "now has partitions=3"),
        (
            graph("s a", "a k", k=Chaining(leaves_inputs="has chain=False")),
            "feeds 'k', which has chain=False",
        ),
        (graph("s a", "t a", "t b", "b l", "a k"), "now 'a' reads 't' too"),
    ],
)
def test_a_change_that_would_lose_positions_is_refused_with_the_stage_and_the_setting(
    made: PipelineGraph, word: str
) -> None:
    with pytest.raises(InvalidRequest, match=word):
        kept_chains(made, [chain("s", "a", "k")])


def test_sources_of_a_chain_stay_bounded_or_unbounded_together() -> None:
    with pytest.raises(InvalidRequest, match="some are bounded now"):
        kept_chains(graph("s k", "t k", s=BOUNDED), [chain("s", "t", "k")])


def test_a_stage_cannot_be_two_stages_of_a_chain() -> None:
    made: Any = graph("s k", earlier={"s": ("a", "b")})
    with pytest.raises(InvalidRequest, match="two stages"):
        kept_chains(made, [chain("a", "b", "k")])
