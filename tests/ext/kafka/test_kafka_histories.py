"""Pipelines into topics of a real broker: killed, restored, renamed, forked, given other topics; queries are played."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest
from tests.attack.definition import Definition
from tests.attack.deployment import Deployment
from tests.attack.kafka import Topics, at_broker
from tests.attack.outsides import Kind
from tests.attack.played import Killed
from tests.attack.trials import Run, dying_at

pytestmark = [pytest.mark.nightly, pytest.mark.slow]


@pytest.fixture
def topics(kafka_servers: str, tmp_path: Path) -> Iterator[Topics]:
    with at_broker(kafka_servers, f"{abs(hash(tmp_path))}-") as found:
        yield found


def into_topics(folder: Path, **defined: object) -> Deployment:
    return Deployment(folder, kind=Kind.KAFKA, defined=replace(Definition(), **defined))  # type: ignore[arg-type]


@pytest.mark.parametrize("dies_as", Run)
@pytest.mark.parametrize("at", ["completed", "published"])
def test_a_run_that_dies_beside_its_transactions_has_sent_each_row_once(
    topics: Topics, tmp_path: Path, at: str, dies_as: Run
) -> None:
    topics.make("rows", 3)
    topics.make("newest", 2, **{"cleanup.policy": "compact"})
    topics.make("rows.dagster_ckpt", 4, **{"cleanup.policy": "compact"})
    ours = into_topics(tmp_path / "ours", name="stall")  # whose key is not in the first partition
    ours.epoch("first", 3)
    run = (
        partial(ours.epoch, "dies", 7)
        if dies_as is Run.EPOCH
        else partial(ours.stream, "dies", [7], end="clean")
    )
    with pytest.raises(Killed):
        run(step=dying_at(at))
    older, newest = ours.snapshots()
    ours.epoch("goes on", 9, restore_from=newest)
    assert ours.tables == ours.truth(9)
    with pytest.raises(CheckpointError):
        ours.epoch("goes back", 12, restore_from=older)
    assert ours.tables == ours.truth(9)
    ours.epoch("later", 12)
    assert ours.tables == ours.truth(12)


@pytest.mark.parametrize("name", ["rows", "rows.dagster_ckpt"])
def test_a_topic_that_is_made_again_while_rows_wait_is_told_and_kept_as_it_is_on_demand(
    topics: Topics, tmp_path: Path, name: str
) -> None:
    ours = into_topics(tmp_path / "ours")
    ours.epoch("first", 3)
    ours.stream("stream", [5], end="unpublished")
    topics.delete(name)
    topics.make(name, **({} if name == "rows" else {"cleanup.policy": "compact"}))
    left = ours.tables
    for options, refused in (({}, Corrupt), ({"restore_from": ours.snapshots()[-1]}, InvalidRequest)):
        with pytest.raises(refused, match="shows n"):
            ours.epoch("next", 12, **options)
        assert ours.tables == left
    shown = [row for row in ours.truth(5)["rows"] if row not in left["rows"]]
    ours.epoch("as it is", 12, restore_from=ours.snapshots()[-1], keep_rows_of=("rows",))
    ours.epoch("later", 14)
    rows = [row for row in ours.truth(14)["rows"] if row not in shown]
    assert ours.tables == {**ours.truth(14), "rows": rows}


def test_topics_and_names_that_change_while_rows_wait_are_exact_or_refused(
    topics: Topics, tmp_path: Path
) -> None:
    ours = into_topics(tmp_path / "ours")
    ours.epoch("first", 3)
    ours.stream("stream", [5], end="unpublished")
    before = ours.tables
    stranger = into_topics(tmp_path / "ours", name="stall")
    for changed, why in (
        (into_topics(tmp_path / "ours", place="others"), "has none of the rows that were published"),
        (into_topics(tmp_path / "ours", uid="lines"), "name its old uid in previous_uids"),
        (stranger, r"name the old one \(previous_names=\['shop'\]\) and restore its newest snapshot"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            changed.epoch("changed", 12)
        assert ours.tables == before
    topics.spelled = topics.servers.replace("127.0.0.1", "localhost")
    renamed = into_topics(tmp_path / "ours", uid="lines", previous_uids=("rows",))
    renamed.epoch("another address, another uid", 12)
    assert renamed.tables == ours.truth(12)
    called_otherwise = into_topics(
        tmp_path / "ours", name="stall", uid="lines", previous_uids=("rows",), previous_names=("shop",)
    )
    called_otherwise.epoch("another name", 14, restore_from=renamed.snapshots()[-1])
    assert called_otherwise.tables == ours.truth(14)
    with pytest.raises(CheckpointError):
        renamed.epoch("the old name", 16)
    assert renamed.tables == ours.truth(14)


@pytest.mark.parametrize("kind", [Kind.KAFKA, Kind.FUNCTION])
def test_a_fork_and_its_fork_begin_without_rows_that_cannot_be_copied(
    topics: Topics, tmp_path: Path, kind: Kind
) -> None:
    """The way out that the refusal named did not exist."""
    origin, has, kept = Deployment(tmp_path / "origin", kind=kind), 7, ("rows", "newest")
    if kind is Kind.FUNCTION:
        kept = kept[:1]
    origin.epoch("first", 7)
    with pytest.raises(InvalidRequest, match="savepoint of the idle origin, for which no rows wait"):
        forked(tmp_path, "early", kind).epoch(
            "fork", 9, fork=True, restore_from=origin.snapshots()[-1], keep_rows_of=kept
        )
    for number in range(2):
        origin.epoch("idle", has)
        fork = forked(tmp_path, f"fork_{number}", kind)
        begins = {"fork": True, "restore_from": origin.snapshots()[-1]}
        with pytest.raises(InvalidRequest, match=r"begin without them, as it is \(keep_rows_of\)"):
            fork.epoch("fork", has + 2, **begins)
        fork.epoch("begins", has + 2, **begins, keep_rows_of=kept)
        fork.epoch("goes on", has + 4)
        assert fork.tables["rows"] == fork.truth(has + 4)["rows"][has:]
        origin, has = fork, has + 4


def forked(folder: Path, name: str, kind: Kind) -> Deployment:
    place = "rows" if kind is Kind.FUNCTION else f"rows_{name}"
    return Deployment(
        folder / name,
        kind=kind,
        defined=replace(Definition(), name=name, place=place, place_by_key=f"newest_{name}"),
    )
