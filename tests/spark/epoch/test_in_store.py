"""Real runs whose checkpoints are rows of the coordinator store."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.core import config
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.paths import StoreLimits
from dagster_ckpt.operations.care.clean import plan_cleaning
from dagster_ckpt.operations.care.doctor import diagnose
from dagster_ckpt.operations.restores.preview import preview_restore
from dagster_ckpt.operations.snapshots.catalog import find_snapshot
from dagster_ckpt.operations.snapshots.contents import verify_snapshot
from dagster_ckpt.operations.snapshots.export import export_snapshot
from tests.lab.child import kill_epoch_when
from tests.lab.lab import Lab, failure_text
from tests.removal import remove_tree
from tests.spark.epoch.small_pipeline import SHOP_IN, Feed, read_lines, shop

pytestmark = pytest.mark.usefixtures("nothing_inlined")

SHOP = PipelineId("shop")
IN_STORE = {"checkpoint_storage": "store", "num_retained": 2}


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    made = Feed(tmp_path / "feed")
    made.customer("ann", "fr")
    made.order(("ann", 5), ("bob", 7))
    return made


@pytest.mark.parametrize("lab", [IN_STORE], indirect=True)
def test_a_pipeline_lives_from_its_store_alone_and_older_checkpoints_leave_it(lab: Lab, feed: Feed) -> None:
    """Restored by latest with the working directory lost, and by URI; then exported, and restored from that."""
    pipeline = shop(feed.folder)
    for who, country in (("bob", "de"), ("eve", "it"), ("kim", "kr")):
        if (lab.folder / "work").exists():
            remove_tree(lab.folder / "work")
        lab.succeeds(pipeline)
        feed.customer(who, country)
        feed.order((who, 50), ("ann", 1))
    assert not (lab.folder / "checkpoints").exists()
    record = lab.record(pipeline)
    assert [c.location.uri for c in record.completed] == [
        "store://checkpoints/shop/chk-2",
        "store://checkpoints/shop/chk-3",
    ]
    lab.succeeds(pipeline, restore_from="store://checkpoints/shop/chk-2")
    feed.check(lab.tables)

    deployment = lab.coordinator.deployment(pipeline)
    there = {o.key.split("/")[1] for o in deployment.storage.list("shop")}
    assert there == {"chk-3", "chk-4", "shared"}, "what was subsumed is gone"
    plan = plan_cleaning(deployment, SHOP)
    assert plan.classified
    assert not plan.files
    found = find_snapshot(deployment, "latest", SHOP)
    assert verify_snapshot(found.stored).is_intact
    assert diagnose(deployment, now=0.0).findings == ()
    assert preview_restore(deployment, RestoreOptions(restore_from="chk-3"), SHOP).is_possible

    copy = export_snapshot(found.stored, deployment.open_storage(str(lab.folder / "exported")))
    deployment.store.close()  # type: ignore[attr-defined]
    for path in (lab.folder / "work", lab.folder / "coordinator.db"):
        remove_tree(path) if path.is_dir() else path.unlink()
    feed.order(("kim", 9))
    lab.succeeds(pipeline, restore_from=copy.uri)
    assert read_lines(lab.tables) == feed.expected_lines()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "lab",
    [{**IN_STORE, "tolerable_failed_checkpoints": 1}],
    indirect=True,
)
def test_state_the_store_is_not_to_hold_is_declined_with_the_way_out_which_works(
    lab: Lab, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "STORE_LIMITS", StoreLimits(per_object=5 * 1024**2, per_checkpoint=8 * 1024))
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    record = lab.record(pipeline)
    assert record.completed == ()
    assert record.failed[-1].reason == "CHECKPOINT_DECLINED"
    message = record.failed[-1].message
    assert "holds checkpoints of up to 8 kb" in message
    assert "set checkpoint_storage to filesystem and checkpoint_dir" in message
    feed.order(("ann", 1))
    failed = lab.run(pipeline)
    assert not failed.success, "two failures in a row are one more than is tolerable"
    assert "does not fit into the coordinator store" in failure_text(failed)

    lab.settings = {"checkpoint_dir": str(lab.folder / "elsewhere")}
    lab.succeeds(pipeline)
    assert (lab.folder / "elsewhere/shop").is_dir()
    feed.check(lab.tables)


@pytest.mark.nightly
def test_a_pipeline_moves_into_the_store_and_out_again_and_leaves_nothing_behind(
    lab: Lab, feed: Feed
) -> None:
    lab.settings = {"num_retained": 1}
    for kind in ("filesystem", "store", "filesystem"):
        pipeline = shop(feed.folder, checkpoint_storage=kind)
        feed.order(("ann", 1))
        lab.succeeds(pipeline)
        remove_tree(lab.folder / "work")
    rows = list(lab.coordinator.open_storage("store://checkpoints").list(""))
    assert rows == []
    folders = {p.parts[-1] for p in (lab.folder / "checkpoints/shop").glob("chk-*")}
    uploads = {p.parts[-1] for p in (lab.folder / "checkpoints/shop/shared").glob("*/*")}
    assert (folders, uploads) == ({"chk-3"}, {"3"})
    assert read_lines(lab.tables) == feed.expected_lines()


@pytest.mark.nightly
@pytest.mark.parametrize("lab", [IN_STORE], indirect=True)
def test_a_savepoint_goes_to_a_folder_and_never_into_the_store(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    lab.succeeds(pipeline, job="shop_savepoint")
    assert lab.record(pipeline).savepoints[0].location.base_uri == f"file://{lab.folder}/savepoints"
    ops = {"savepoint": {"target": "store://savepoints"}}
    lab.fails(
        pipeline, "a savepoint is yours to keep and needs a folder or bucket", job="shop_savepoint", ops=ops
    )


# What an aborted checkpoint uploaded for sharing goes when a newer one is the oldest that is retained.
@pytest.mark.nightly
@pytest.mark.parametrize("lab", [{**IN_STORE, "num_retained": 1}], indirect=True)
def test_a_run_killed_while_it_uploads_leaves_rows_that_the_next_one_removes(
    lab: Lab, feed: Feed, tmp_path: Path
) -> None:
    pipeline = shop(feed.folder)
    lab.succeeds(pipeline)
    rows = lab.coordinator.open_storage("store://checkpoints")
    feed.customer("bob", "de")
    kill_epoch_when(
        tmp_path,
        SHOP_IN,
        lambda: any(rows.list("shop/shared/matched/2")),
        "the upload",
        checkpoint_storage="store",
    )
    assert lab.record(pipeline).pending[0].checkpoint_id == 2
    lab.succeeds(pipeline, concurrent_runs="take_over")
    assert not [stored for uid in pipeline.stages for stored in rows.list(f"shop/shared/{uid}/2")]
    assert not list(rows.list("shop/chk-2"))
    feed.check(lab.tables)
