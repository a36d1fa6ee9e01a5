"""Why a run refuses to start: one ordered list, told as it is on its page."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from dagster_ckpt.core.restore.facts import KnownHistory, Seen
from dagster_ckpt.core.restore.start_checks import START_CHECKS, Part, refuse_start
from dagster_ckpt.core.restore.start_facts import (
    CodeFacts,
    HistoryFacts,
    JavaFound,
    MachineFacts,
    OutsideFacts,
    Package,
    Place,
    RequestFacts,
    StartFacts,
)
from dagster_ckpt.core.restore_point import At, Latest
from dagster_ckpt.errors import CheckpointError, InvalidRequest, Unavailable
from dagster_ckpt.spark.versions import refuse_streams
from scripts.start_checks import PAGE, page

PYTHONS = frozenset({"input"})
KNOWN = KnownHistory(pipeline="p", is_recorded=True, lineage="ours", epoch=3)  # type: ignore[arg-type]
NEWER = Seen(where="table /t", lineage="ours", epoch=4, checkpoint_id=9)


def code(*pipelines: str, **more: Any) -> CodeFacts:
    return CodeFacts(pipelines=pipelines, **{"stages": {}, "reserved": PYTHONS, **more})


def request(**more: Any) -> RequestFacts:
    return RequestFacts(job="p_restore", pipeline="p", **{"point": Latest(), **more})


def history(known: KnownHistory, *seen: Seen, **more: Any) -> HistoryFacts:
    return HistoryFacts(
        known=known, seen=seen, **{"point": Latest(), "adopt_history": False, "newest": "", **more}
    )


def fails() -> None:
    raise InvalidRequest("Checkpoint configuration is not valid: interval must be at least 0.01 s, got 0.0")


def away() -> None:
    raise Unavailable("the coordinator store at postgresql://host/db did not answer")


REFUSED: dict[str, Any] = {
    "one name, one pipeline": code("p", "p"),
    "word of a pipeline": code("a-b"),
    "length of a name": code("p" * 64),
    "word of a stage": code("p", stages={"p": ["input"]}),
    "name of a job": code("p", "p_restore", jobs={"p": frozenset({"p_restore"})}),
    "asset of a table": code("p", assets={("p", "a"): "x", ("p", "b"): "x"}),
    "key columns": code("p", keys={("p", "t"): ("a", "a")}),
    "settings": code("p", settings={"p": fails}),
    "folders": MachineFacts(
        places=[Place(setting="work_dir", path="/x", why="cannot be made, because / is no folder")]
    ),
    "packages": MachineFacts(
        missing=[Package(needed_by="sink 't'", name="pyiceberg", install="pip install pyiceberg")]
    ),
    "version of Spark": MachineFacts(spark=partial(refuse_streams, "4.1.4")),
    "Java": MachineFacts(java=JavaFound(looked="JAVA_HOME (/opt/java)", version=11)),
    "backfill": request(is_backfill=True),
    "a snapshot is chosen": request(chooses="name it", op="restore"),
    "the store answers": away,
    "lost record": history(KnownHistory(pipeline="p", is_recorded=False), NEWER),  # type: ignore[arg-type]
    "another history": history(KNOWN, Seen(where="table /t", lineage="theirs")),
    "older store": history(KNOWN, NEWER),
}
CHECKS = {check.name: check for check in START_CHECKS}


@pytest.mark.parametrize("name", REFUSED)
def test_a_check_refuses_with_the_sentence_that_its_page_has(name: str) -> None:
    check = CHECKS[name]
    with pytest.raises(CheckpointError) as refused:
        refuse_start(StartFacts(**{check.part.value: REFUSED[name]}))
    pattern = ".*".join(map(re.escape, check.sentence.split("…")))
    assert re.fullmatch(pattern, str(refused.value)), str(refused.value)


def test_what_is_not_refused_starts() -> None:
    refuse_start(
        StartFacts(
            code=code("p", "q", stages={"p": ["a"]}, keys={("p", "t"): ("a", "b")}),
            machine=MachineFacts(java=JavaFound(looked="the PATH", version=21)),
            request=request(chooses="name it", point=At("/chk-1")),
            history=history(KNOWN, NEWER, point=At("/chk-1")),
            outside=OutsideFacts(),
        )
    )


def test_the_first_reason_of_the_list_is_told_and_nobody_is_asked_after_it() -> None:
    asked: list[str] = []
    facts = StartFacts(
        code=code("p"),
        machine=MachineFacts(java=JavaFound(looked="the PATH", version=None)),
        store=lambda: asked.append("store"),
        outside=OutsideFacts(sinks=lambda: asked.append("sinks")),
    )
    with pytest.raises(InvalidRequest, match=r"Spark needs Java 17 or newer, and the PATH has none"):
        refuse_start(facts)
    assert asked == []


def test_parts_are_asked_one_after_the_other_and_every_check_has_its_own_name() -> None:
    order = list(Part)
    before_approval = [check.part for check in START_CHECKS]
    assert before_approval == sorted(before_approval, key=order.index)
    assert len(CHECKS) == len(START_CHECKS)


def test_the_page_is_made_of_the_list() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
