"""A preview says what a restore does; what it says of tables is held against the roll-back itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    checkpointed_pipeline,
    spark_sink,
    spark_source,
)
from dagster_ckpt.core.config import ClaimMode, RestoreOptions
from dagster_ckpt.core.graph import Edge, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.model import FileKind, StageSnapshot
from dagster_ckpt.errors import NotFound
from dagster_ckpt.operations.readers.waiting import waiting_rows
from dagster_ckpt.operations.restores.parts import TableFate
from dagster_ckpt.operations.restores.preview import StageFate, preview_restore
from dagster_ckpt.sinks import DeltaTable, ForEachCheckpoint
from dagster_ckpt.spark.snapshot.state_files import planned
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot
from tests.operations.world import BASE, SALES, World, data_keys
from tests.tables import Attempt, Cut, files_in, pairs_in

TOTALS = StageUid("totals")


def graph(*stages: StageSpec, edges: tuple[tuple[str, str], ...] = ()) -> PipelineGraph:
    return PipelineGraph(
        pipeline=SALES,
        stages=stages,
        edges=tuple(Edge(upstream=StageUid(a), downstream=StageUid(b)) for a, b in edges),
    )


def options(text: str = "chk-1", **more: object) -> RestoreOptions:
    return RestoreOptions(restore_from=text, **more)  # type: ignore[arg-type]


# --- stages and replay --------------------------------------------------------------------------------------


def test_what_is_read_again_is_counted_from_the_restore_point_to_the_newest_snapshot(world: World) -> None:
    world.checkpoint(1)
    world.checkpoint(2, batches=5)
    found = preview_restore(world.deployment, options(), SALES)
    assert found.is_possible
    (replay,) = found.replay
    assert (replay.stage, replay.batches, replay.step.units) == ("totals", 5, 5)
    assert "chk-000002" in found.compared_with
    assert found.bytes == sum(s.bytes for s in found.stages) > 0


def test_stages_of_a_program_that_starts_its_queries_itself_have_no_sinks_to_ask(world: World) -> None:
    world.checkpoint(1)
    places = CheckpointCoordinatorResource(base_dir=str(world.folder))
    now = graph(StageSpec(uid=TOTALS, parallelism=2))
    program = CheckpointedPipeline(name=SALES, stages={}, upstream={}, program=("python", "job.py"))
    found = preview_restore(world.deployment, options(), SALES, graph=now, code=program, coordinator=places)
    assert found.is_possible


def test_a_working_directory_on_this_machine_says_where_the_source_is_now(world: World) -> None:
    world.checkpoint(1)
    world.query().commit(3)
    world.change(working_directory=str(world.folder))
    (replay,) = preview_restore(world.deployment, options(), SALES).replay
    assert (replay.batches, replay.step.units) == (3, 3)


def test_stages_are_matched_renamed_new_or_dropped(world: World) -> None:
    gone = StageSnapshot(uid="gone", parallelism=1, offsets={"0": "1"}, batch_id=1)
    world.checkpoint(1, others=(gone,), edges=(("totals", "gone"),))
    now = graph(StageSpec(uid=StageUid("sums"), previous_uids=(TOTALS,)), StageSpec(uid=StageUid("fresh")))
    refused = preview_restore(world.deployment, options(), SALES, graph=now)
    assert {s.uid: s.fate for s in refused.stages} == {
        "sums": StageFate.RENAMED,
        "fresh": StageFate.NEW,
        "gone": StageFate.DROPPED,
    }
    assert not refused.is_possible
    assert "allow_non_restored_state" in refused.refusals[0]
    allowed = preview_restore(world.deployment, options(allow_non_restored_state=True), SALES, graph=now)
    assert allowed.is_possible


def test_another_number_of_partitions_is_a_rescale(world: World) -> None:
    world.checkpoint(1)
    found = preview_restore(
        world.deployment, options(), SALES, graph=graph(StageSpec(uid=TOTALS, parallelism=5))
    )
    assert [(s.fate, s.partitions) for s in found.stages] == [(StageFate.RESCALED, (2, 5))]


def test_a_stage_with_other_inputs_is_refused(world: World) -> None:
    source = StageSnapshot(uid="orders", parallelism=1)
    world.checkpoint(1, others=(source,), edges=(("orders", "totals"),))
    now = graph(
        StageSpec(uid=StageUid("orders")),
        StageSpec(uid=StageUid("returns")),
        StageSpec(uid=TOTALS),
        edges=(("orders", "totals"), ("returns", "totals")),
    )
    found = preview_restore(world.deployment, options(), SALES, graph=now)
    assert any("had other inputs" in refusal for refusal in found.refusals)


def test_a_snapshot_with_missing_files_is_refused_by_name(world: World) -> None:
    world.query().commit(2).snapshot(2)
    stored = world.checkpoint(1)
    key = data_keys(stored)[0]
    del world.storage.contents[key]
    found = preview_restore(world.deployment, options(), SALES)
    assert found.refusals == (f"{key} is missing",)


def test_a_restore_point_that_does_not_exist_is_not_found(world: World) -> None:
    world.checkpoint(1)
    with pytest.raises(NotFound, match="There are: chk-000001"):
        preview_restore(world.deployment, options("chk-9"), SALES)


def test_another_pipelines_snapshot_is_refused_unless_it_is_a_fork(world: World) -> None:
    world.checkpoint(1)
    fork, uri = PipelineId("fork"), f"{BASE}/sales/chk-1"
    refused = preview_restore(world.deployment, options(uri), fork)
    assert "start a fork" in refused.refusals[0]
    assert preview_restore(world.deployment, options(uri, fork=True), fork).is_possible
    claimed = options("chk-1", fork=True, claim_mode=ClaimMode.CLAIM)
    assert not preview_restore(world.deployment, claimed, fork, snapshot_of=SALES).is_possible


def test_state_that_was_kept_in_another_way_is_named(world: World) -> None:
    world.checkpoint(1)
    world.query().write("state/0/0/_metadata/schema", "another schema")
    world.checkpoint(2)
    found = preview_restore(world.deployment, options(), SALES)
    assert [(m.stage, m.what) for m in found.schemas] == [("totals", "query/state/0/0/_metadata/schema")]
    assert preview_restore(world.deployment, options("chk-2"), SALES).schemas == ()


def test_without_the_code_the_preview_says_so(world: World) -> None:
    world.checkpoint(1)
    assert any(
        "code was not looked at" in w for w in preview_restore(world.deployment, options(), SALES).warnings
    )
    with_code = preview_restore(world.deployment, options(), SALES, graph=graph(StageSpec(uid=TOTALS)))
    assert with_code.warnings == ()


# --- tables -------------------------------------------------------------------------------------------------

KEYS = [pytest.param((), id="append"), pytest.param(("k",), id="upsert")]


class TableWorld:
    """Three checkpoints of a sink; each publishes what it contains, the last one has not yet."""

    def __init__(self, world: World, key: tuple[str, ...] = ()) -> None:
        self.world = world
        self.attempt = Attempt(world.folder / "totals", world.query().root, SALES, key)
        self.cuts: list[Cut] = []
        for number, rows in enumerate(
            [[(1, 1), (2, 1)], [(2, 2), (3, 2)], [(4, 3), (5, 3), (6, 3)]], start=1
        ):
            self.attempt.batch(rows)
            self.cuts.append(self.take(number))
            if number < 3:
                self.attempt.publish(self.cuts[-1])

    def take(self, number: int) -> Cut:
        cut = self.attempt.cut(number)
        root = self.world.query().root
        extra = tuple(planned(root, name, FileKind.COMMITTABLE) for name in cut.committables)
        self.world.checkpoint(number, batches=1, table=cut.snapshot, extra=extra)
        return cut

    def preview(self, number: int, **more: object) -> object:
        (table,) = preview_restore(self.world.deployment, options(f"chk-{number}", **more), SALES).tables
        return table


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_preview_of_a_table_says_what_the_roll_back_then_does(
    world: World, tmp_path: Path, key: tuple[str, ...], which: int
) -> None:
    shop = TableWorld(world, key)
    visible = pairs_in(shop.attempt.place)
    said = shop.preview(which)
    assert pairs_in(shop.attempt.place) == visible, "a preview changes nothing"
    cut = shop.cuts[which - 1]
    shop.attempt.restored(cut, tmp_path / "follower")
    assert pairs_in(shop.attempt.place) == cut.rows
    changed = cut.rows != visible
    assert said.fate is (TableFate.MOVES if changed else TableFate.UNCHANGED)  # type: ignore[attr-defined]
    assert said.rows_leaving == max(0, len(visible) - len(cut.rows))  # type: ignore[attr-defined]
    assert said.rows_returning == max(0, len(cut.rows) - len(visible))  # type: ignore[attr-defined]
    assert ("of keys that stay" in said.message) is (changed and bool(key))  # type: ignore[attr-defined]


def test_a_table_that_keeps_later_rows_says_how_many_come_twice(world: World) -> None:
    shop = TableWorld(world)
    preview = preview_restore(world.deployment, options("chk-1", roll_back_tables=False), SALES)
    (table,) = preview.tables
    assert (table.fate, table.rows_leaving) == (TableFate.KEEPS_ROWS, 2)
    assert any("in it twice" in warning for warning in preview.warnings)
    assert len(pairs_in(shop.attempt.place)) == 4


def test_the_table_of_a_fork_is_only_read(world: World) -> None:
    shop = TableWorld(world)
    assert shop.preview(1, fork=True).fate is TableFate.SEEDED  # type: ignore[attr-defined]


def sales_with(**sink: Any) -> CheckpointedPipeline:
    """The pipeline of that table, its sink set so."""

    @spark_source
    def numbers(spark: Any) -> Any: ...

    @spark_sink(**sink)
    def totals(numbers: Any) -> Any: ...

    @checkpointed_pipeline(name=SALES)
    def sales() -> None:
        totals(numbers())

    return sales


def resource_of(world: World, tables: Path) -> Any:
    """The coordinator resource of a world, as far as tables are asked of it."""
    return SimpleNamespace(
        resolved_work_dir=world.folder / "work",
        resolved_table_dir=lambda _: tables,
        deployment=lambda _: world.deployment,
    )


@pytest.mark.parametrize("sink", [{}, {"uid": "sums", "table": "totals", "previous_uids": ["totals"]}])
def test_rows_that_wait_in_a_checkpoint_are_found_under_former_names_of_their_sink(
    world: World, sink: dict[str, Any]
) -> None:
    """Nothing waited for a renamed one: `publish` and `set-aside` had nothing to do."""
    shop = TableWorld(world)
    [found] = waiting_rows(sales_with(**sink), resource_of(world, world.folder))
    assert (found.sink, found.rows, found.why) == (sink.get("uid", "totals"), 3, "")
    assert (found.place, found.batches) == (str(shop.attempt.place), (2,))


@pytest.mark.parametrize(
    ("target", "key", "refused"),
    [
        (None, (), ""),
        (DeltaTable("totals"), (), "would write to"),
        (ForEachCheckpoint(print), (), "cannot begin with the rows of"),
        (None, ("k",), "were written without"),
    ],
    ids=["as it was", "table of its origin", "function", "another key"],
)
def test_the_preview_of_a_fork_is_refused_as_its_run_is(
    world: World, target: Any, key: tuple[str, ...], refused: str
) -> None:
    shop = TableWorld(world)
    number = 3 if key else 1
    tables = world.folder / ("other" if target is None else "")
    sinks = {} if target is None else {"totals": target}
    fork = sales_with(key=[*key]).fork("fork", table_dir=str(tables), sinks=sinks)
    resource = resource_of(world, tables)
    wanted = options(f"{BASE}/sales/chk-{number}", fork=True, allow_non_restored_state=True)
    previewed = preview_restore(world.deployment, wanted, fork.name, code=fork, coordinator=resource)
    (table,) = previewed.tables
    assert table.fate is (TableFate.IMPOSSIBLE if refused else TableFate.SEEDED)
    assert refused in table.message
    assert previewed.is_possible is not bool(refused)
    assert pairs_in(shop.attempt.place) == shop.cuts[1].rows


@pytest.mark.parametrize(
    ("sink", "refused"),
    [
        ({}, ""),
        ({"to": DeltaTable("elsewhere")}, "has none of the rows of the restore point"),
        ({"to": ForEachCheckpoint(print)}, "which has none of the rows"),
        ({"key": ["k"]}, "were written without a key"),
        ({"uid": "sums"}, "shows rows of sink 'totals'"),
    ],
    ids=["as it was", "another table", "another kind", "another key", "another name"],
)
def test_the_preview_of_a_restore_is_refused_as_its_run_is(
    world: World, sink: dict[str, Any], refused: str
) -> None:
    """It said that a table moves, where the run was refused by its sink."""
    shop = TableWorld(world)
    sales = sales_with(**{"table": "totals"} | sink if "to" not in sink else sink)
    resource = resource_of(world, world.folder)
    found = preview_restore(
        world.deployment,
        options("chk-3", allow_non_restored_state=True),
        SALES,
        graph=graph(StageSpec(uid=StageUid(sink.get("uid", "totals")))),
        code=sales,
        coordinator=resource,
    )
    assert [refused in why for why in found.refusals] == [True] * bool(refused), found.refusals
    assert pairs_in(shop.attempt.place) == shop.cuts[1].rows


def test_a_table_whose_rows_are_gone_refuses_the_restore(world: World, tmp_path: Path) -> None:
    stored = TableWorld(world)
    for path in files_in(stored.attempt.place):
        path.unlink()
    preview = preview_restore(world.deployment, options("chk-1"), SALES)
    assert not preview.is_possible
    assert "is gone" in preview.refusals[0]
    assert stored.preview(1).fate is TableFate.IMPOSSIBLE  # type: ignore[attr-defined]


def test_a_table_that_was_never_made_is_no_obstacle_to_a_cut_without_rows(
    world: World, tmp_path: Path
) -> None:
    from dagster_ckpt.core.model import TableSnapshot

    stored: StoredSnapshot = world.checkpoint(
        1, table=TableSnapshot(uri=str(tmp_path / "nowhere"), sink="delta")
    )
    assert stored.metadata.stages[0].table is not None
    assert preview_restore(world.deployment, options(), SALES).is_possible
    world.checkpoint(2, table=TableSnapshot(uri=str(tmp_path / "nowhere"), head=1, sink="delta"))
    assert (
        "does not tell of checkpoint 1"
        in preview_restore(world.deployment, options("chk-2"), SALES).refusals[0]
    )
