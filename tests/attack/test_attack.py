"""What is kept of a pipeline is put back, lost or swapped: its tables stay exact, or nothing runs and nothing changes.

``make attack`` tries hundreds of attacks; here is a sample of them, and every hole that was found, as small as it gets.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, LiteralString

import psycopg
import pytest

from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import CheckpointMetadata
from dagster_ckpt.core.request import Completed
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest
from dagster_ckpt.ext.tables.engine import Engine
from dagster_ckpt.spark.attempt.attempt import Attempt
from dagster_ckpt.spark.epoch.attempt import EpochAttempt, NotPublished
from tests.attack.definition import AS_BEGUN
from tests.attack.deployment import Deployment, Lines, PlayedGateway, RunFailed, dying_after
from tests.attack.judge import FINDINGS
from tests.attack.outsides import Kind, waiting
from tests.attack.parts import ON_STAGED, Action, Attack
from tests.attack.played import Killed, PlayedRun
from tests.attack.postgres import in_postgres
from tests.attack.trials import KILLS, SHAPES, Shape, attack, changed_after_kill
from tests.sweeps import IS_WHOLE, third


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Deployment]:
    """Two deployments of one pipeline on one source, that have run three times and twice, and a copy of each."""
    folder = tmp_path_factory.mktemp("deployments")
    found = {name: Deployment(folder / name) for name in ("ours", "theirs")}
    for name, arrivals in (("ours", (3, 7, 12)), ("theirs", (4, 9))):
        for number, arrived in enumerate(arrivals):
            found[name].epoch(f"{name}-{number}", arrived)
        found[name].copy_to(folder / f"copy-of-{name}")
    return found


def as_made(deployment: Deployment) -> Deployment:
    deployment.put_back_all(deployment.root.with_name(f"copy-of-{deployment.root.name}"))
    return deployment


@pytest.fixture
def ours(made: dict[str, Deployment]) -> Deployment:
    """A deployment that has run three times."""
    return as_made(made["ours"])


@pytest.fixture
def theirs(made: dict[str, Deployment]) -> Deployment:
    """Another one of the same pipeline, on the same source, that has run twice."""
    return as_made(made["theirs"])


@pytest.mark.slow
def test_the_played_pipeline_is_exact_however_its_runs_end(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "ours", with_stage=True)
    arrived = 0
    for number, end in enumerate(("clean", "in flight", "unpublished", "failed")):
        deployment.stream(f"stream-{number}", [arrived + 4, arrived + 6], end=end)
        arrived += 12
        deployment.epoch(f"epoch-{number}", arrived)
        assert deployment.tables == deployment.truth(arrived)
    for steps in (2, 9, 21):
        with pytest.raises(Killed):
            deployment.stream(
                f"killed-{steps}", [arrived + 4, arrived + 20], end="clean", step=dying_after(steps)
            )
        arrived += 20
        deployment.epoch(f"after-{steps}", arrived)
        assert deployment.tables == deployment.truth(arrived)


REFUSED_BY = [
    (["ALTER TABLE newest ADD CONSTRAINT small CHECK (v < 7)"], "ALTER TABLE newest DROP CONSTRAINT small"),
    (
        [
            "CREATE TABLE allowed (v BIGINT PRIMARY KEY)",
            "INSERT INTO allowed SELECT v FROM newest",
            "ALTER TABLE newest ADD CONSTRAINT known FOREIGN KEY (v) REFERENCES allowed (v)",
        ],
        "ALTER TABLE newest DROP CONSTRAINT known",
    ),
]
"""Statements by which a table refuses rows that only it can judge, and the one that mends it."""


def read_metadata(folder: str) -> CheckpointMetadata:
    return decode_metadata((Path(folder) / "_metadata").read_bytes(), name=folder)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_chain_is_exact_wherever_its_run_dies(tmp_path: Path) -> None:
    """At a third of its steps, in streams and epochs; the layout is the beginning's, whatever the option says since."""
    deployment = Deployment(tmp_path / "ours", with_stage=True, chained=True)
    deployment.epoch("first", 3)
    arrived, steps, is_over = 3, 0, False
    while not is_over:
        goes_on = Deployment(deployment.root, with_stage=True, chained=steps % 4 < 2)
        arrived += 5
        try:
            if steps % 2:
                goes_on.stream(f"{steps}", [arrived - 3, arrived], end="clean", step=dying_after(steps))
                is_over = True
            else:
                goes_on.epoch(f"{steps}", arrived, step=dying_after(steps))
        except Killed:
            pass
        goes_on.epoch(f"{steps}-after", arrived)
        assert goes_on.tables == goes_on.truth(arrived)
        steps += 1 if IS_WHOLE else 3
    assert steps > 20, "it died at every step"
    assert not list((deployment.root / "work/shop").glob("attempt-*/numbers")), "one query, one directory"


@pytest.mark.parametrize("chained", [False, True])
def test_who_restores_an_older_snapshot_restores_its_chains(tmp_path: Path, chained: bool) -> None:
    """The store knows the chains of the newest attempt only: a snapshot of another layout is opened again with its."""
    deployment = Deployment(tmp_path / "ours", with_stage=True, chained=chained)
    deployment.epoch("first", 3)
    other = Deployment(deployment.root, with_stage=True, chained=not chained)
    other.epoch("begins again", 7, restore_from="none")
    assert other.tables == other.truth(7)
    layouts = [
        bool(read_metadata(found).chains) for found in (deployment.snapshots()[0], other.snapshots()[-1])
    ]
    assert layouts == [chained, not chained]
    other.epoch("goes back", 9, restore_from=deployment.snapshots()[0])
    assert other.tables == other.truth(9)
    assert bool(read_metadata(other.snapshots()[-1]).chains) is chained


@pytest.mark.slow
@pytest.mark.parametrize("seed", third([0, 1, 2, 3, 4, 5, 6, 8, 9]))
def test_no_attack_and_no_change_ends_in_success_with_wrong_rows(tmp_path: Path, seed: int) -> None:
    """Seeds of which each kind of sink is attacked, and has its definition changed, once."""
    trials = attack(tmp_path, range(seed, seed + 1), 6, first=seed)
    found = [trial for trial in trials if set(trial.findings) & set(FINDINGS)]
    assert not found, "\n".join(map(str, found))


# --- holes that were found ------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "at", "shape"),
    [
        (*of, shape)
        for n, of in enumerate(itertools.product(Kind, KILLS))
        for shape in third(SHAPES, history=n)
    ],
    ids=str,
)
def test_a_sink_that_is_changed_after_a_kill_shows_exact_rows_or_says_the_way_out(
    tmp_path: Path, kind: Kind, at: str, shape: Shape
) -> None:
    found = list(changed_after_kill(tmp_path, kind, at, shape))
    assert not [str(trial) for trial in found if trial.findings]
    assert len({trial.first for trial in found}) > 1, "some changes go on, and some are refused"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("at", "shape"),
    [(at, shape) for n, at in enumerate(KILLS) for shape in third(SHAPES, history=n)],
    ids=str,
)
def test_a_table_of_postgres_is_as_exact_when_it_is_changed_after_a_kill(
    tmp_path: Path, postgres_url: str, at: str, shape: Shape
) -> None:
    with in_postgres(postgres_url):
        found = list(changed_after_kill(tmp_path, Kind.SQL, at, shape))
    assert not [str(trial) for trial in found if trial.findings]
    assert len({trial.first for trial in found}) > 1, "some changes go on, and some are refused"


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [Kind.OWN, Kind.ICEBERG, Kind.SQL, Kind.KAFKA])
@pytest.mark.parametrize(("refuse", "mend"), REFUSED_BY, ids=["check", "foreign key"])
def test_a_table_of_postgres_that_refuses_its_rows_holds_up_the_moment_of_all_and_nothing_else(
    tmp_path: Path, postgres_url: str, kind: Kind, refuse: Sequence[LiteralString], mend: LiteralString
) -> None:
    """The newest checkpoint that all show stays, and can be restored; what was refused is mended, or set aside."""
    with in_postgres(postgres_url), psycopg.connect(postgres_url, autocommit=True) as database:
        ours = Deployment(tmp_path / "ours", kind=Kind.SQL, defined=replace(AS_BEGUN, kind=kind))
        ours.epoch("first", 3)
        ours.epoch("second", 7)
        for statement in refuse:
            database.execute(statement)
        for owner, arrived in (("refused", 12), ("again", 14)):
            with pytest.raises(RunFailed, match=r"newest -f CODE\.py --yes"):
                ours.epoch(owner, arrived)
            assert (ours.record.shown_id, ours.tables["newest"]) == (2, ours.truth(7)["newest"])
        shown = next(one for one in ours.snapshots() if one.endswith("chk-2"))
        database.execute(mend)
        if kind is not Kind.KAFKA:
            ours.epoch("back", 15, restore_from=shown)
        ours.epoch("mended", 17)
        assert ours.tables == ours.truth(17)
        assert ours.record.shown_id == int(ours.snapshots()[-1].rpartition("-")[2])


def test_a_restore_that_one_table_refuses_leaves_the_others_as_they_were(ours: Deployment) -> None:
    shutil.rmtree(ours.root / "tables" / "newest")
    before = ours.tables
    for _ in range(2):  # also to a run that tries again: it worked on in the directory of the attempt before
        with pytest.raises(InvalidRequest, match="tables/newest has lost its rows"):
            ours.epoch("next", 14, restore_from=ours.snapshots()[0])
        assert ours.tables == before


def test_a_history_that_is_taken_over_is_compared_with_every_table(
    ours: Deployment, theirs: Deployment
) -> None:
    """With adopt_history the working directory was believed, whose tables these are not."""
    shutil.rmtree(theirs.root / "tables")
    shutil.copytree(ours.root / "tables", theirs.root / "tables")
    before = theirs.tables
    with pytest.raises(InvalidRequest, match=r"tables/rows\) belongs to another history"):
        theirs.epoch("next", 14)
    with pytest.raises(CheckpointError, match="tables/rows"):
        theirs.epoch("takes it over", 14, adopt_history=True)
    assert theirs.tables == before
    theirs.epoch("from the beginning", 14, adopt_history=True, restore_from="none")
    assert theirs.tables == theirs.truth(14)


def test_another_deployments_publish_of_the_same_number_is_not_taken_for_the_cut(
    tmp_path: Path, theirs: Deployment
) -> None:
    """The first checkpoint's rows have no publish before them, whose history could be compared."""
    deployment = Deployment(tmp_path / "young")
    deployment.epoch("first", 5)
    shutil.rmtree(deployment.root / "tables" / "newest")
    shutil.copytree(theirs.root / "tables" / "newest", deployment.root / "tables" / "newest")
    before = deployment.tables
    with pytest.raises(InvalidRequest, match=r"tables/newest.*another history"):
        deployment.epoch("next", 7, adopt_history=True)
    assert deployment.tables == before


def test_a_working_directory_whose_log_has_lost_its_last_batch_is_not_worked_on_in_again(
    ours: Deployment,
) -> None:
    """The barrier then named the batch before: its rows were not published, and the run succeeded."""
    ours.stream("stream", [14], end="unpublished")
    max((ours.root / "work/shop").glob("attempt-*/rows/log/0*.json")).unlink()
    ours.epoch("next", 19)
    assert ours.tables == ours.truth(19)


def test_a_working_directory_whose_query_has_lost_its_last_offsets_is_not_worked_on_in_again(
    ours: Deployment,
) -> None:
    """Spark plans the batch again, with another end; the log knows its number and leaves out the rows that are new."""
    offsets = ours.root / "work/shop/attempt-1/numbers/query/offsets"
    max(offsets.iterdir(), key=lambda path: int(path.name)).unlink()
    ours.epoch("next", 17)
    assert ours.tables == ours.truth(17)


@pytest.mark.parametrize("part", ["prepared/*.json", "published.json"])
def test_a_working_directory_that_has_lost_a_file_of_its_sink_is_not_worked_on_in_again(
    ours: Deployment, part: str
) -> None:
    """A batch without rows has no committable, so a lost one passed for that; without its note any table was right."""
    ours.stream("stream", [14], end="unpublished")
    for path in (ours.root / "work/shop").glob(f"attempt-*/rows/sink/{part}"):
        path.unlink()
    ours.epoch("next", 21)
    assert ours.tables == ours.truth(21)


class LastStep(EpochAttempt):
    """The last step of a run whose steps have processes of their own; its stages are played."""

    def __init__(self, attempt: Attempt[PlayedGateway], run: PlayedRun) -> None:
        self._attempt, self._run, self._closed = attempt, run, False
        self.coordinator, self.tables = attempt.coordinator, attempt.tables
        self._setup: Any = SimpleNamespace(reporter=Lines())
        self._drains: Any = SimpleNamespace(stop=lambda: None)

    def epoch(self, **_: Any) -> PlayedRun:
        return self._run


@pytest.mark.parametrize("is_mended", [True, False])
def test_the_last_step_of_a_run_shows_what_the_process_of_another_step_could_not(
    ours: Deployment, monkeypatch: pytest.MonkeyPatch, is_mended: bool
) -> None:
    """That a table was not published was known to the process of its own step only: the run succeeded without it."""

    publish = Engine.publish

    def refuses(*_: Any) -> None:
        raise OSError("the disk is away")

    monkeypatch.setattr(Engine, "publish", refuses)
    with ours.opened(owner="steps") as attempt:
        ours._run(attempt, "steps", 17, lambda _: None).run_missing()
        assert set(attempt.tables.unpublished) == {"rows", "newest"}
        attempt.coordinator.pass_on(until=0.0)
    assert ours.tables == ours.truth(12)
    if is_mended:
        monkeypatch.setattr(Engine, "publish", publish)
    with ours.opened(owner="steps") as attempt:
        last = LastStep(attempt, ours._run(attempt, "steps", 17, lambda _: None))
        if is_mended:
            assert isinstance(last.complete(), Completed)
            assert ours.tables == ours.truth(17)
        else:
            with pytest.raises(NotPublished, match="table rows does not show its rows yet: the disk is away"):
                last.complete()


def test_a_completion_that_nobody_was_told_of_is_published_before_the_run_succeeds(
    ours: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has completed the checkpoint and not answered: what follows from the completion was never done."""
    with ours.opened(owner="one") as attempt:
        run = ours._run(attempt, "one", 17, lambda _: None)
        with monkeypatch.context() as lost:
            lost.setattr(PlayedGateway, "notify_complete", lambda *_: None)
            run.run_missing()
        assert ours.tables == ours.truth(12)
        LastStep(attempt, run).complete()
    assert ours.tables == ours.truth(17)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "action"),
    third((kind, ON_STAGED[(n + m) % 3]) for n, kind in enumerate(Kind) for m in range(3)),
)
def test_staged_rows_that_were_lost_or_changed_are_told_at_the_start(
    tmp_path: Path, kind: Kind, action: Action
) -> None:
    """Changed ones were published; with lost ones of a database or a function a checkpoint completed, replaced the one
    before it, and could never be published."""
    deployment = Deployment(tmp_path / "ours", kind=kind, settings={"num_retained": 1})
    deployment.epoch("first", 3)
    deployment.epoch("second", 7)
    deployment.stream("stream", [10], end="unpublished")
    other = Deployment(tmp_path / "theirs", kind=kind)
    other.stream("stream", [4], end="unpublished")
    path = waiting(deployment.root, "rows")[-1]
    Attack("one waiting file of rows", action, path, other.root / waiting(other.root, "rows")[-1]).perform(
        deployment
    )
    before, newest = deployment.tables, deployment.snapshots()
    with pytest.raises(Corrupt, match="restore another checkpoint") as refused:
        deployment.epoch("next", 17)
    assert path.split("/")[-2] in str(refused.value)
    assert (deployment.tables, deployment.snapshots()) == (before, newest)
    deployment.epoch("from the checkpoint", 19)
    assert deployment.tables == deployment.truth(19)


@pytest.mark.parametrize("kind", [Kind.SQL, Kind.ICEBERG, Kind.FUNCTION, Kind.KAFKA])
def test_a_history_that_is_taken_over_is_compared_with_sinks_of_every_kind(
    tmp_path: Path, kind: Kind
) -> None:
    """Its snapshot's numbers were those of the other deployment's rows, which passed for the snapshot's."""
    ours, theirs = (Deployment(tmp_path / name, kind=kind) for name in ("ours", "theirs"))
    for number, (arrived, other) in enumerate(((3, 4), (7, 9), (12, 10))):
        ours.epoch(f"ours-{number}", arrived)
        theirs.epoch(f"theirs-{number}", other)
    for part in ("store", "work", "checkpoints"):
        shutil.rmtree(ours.root / part)
        shutil.copytree(theirs.root / part, ours.root / part)
    before = ours.tables
    with pytest.raises(CheckpointError):
        ours.epoch("takes it over", 14, adopt_history=True)
    assert ours.tables == before
