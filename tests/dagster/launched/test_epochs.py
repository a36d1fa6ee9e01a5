"""Epochs in a launched program: the run shows what it shows of stages in its own process, and ends as they end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.pipes.context import PipesMessageHandler
from dagster_pipes import PipesMessage, PipesParams

from dagster_ckpt.core.request import RunStatus
from dagster_ckpt.operations.snapshots.export import facts_in
from tests.dagster.launched.conftest import Site, client
from tests.lab.lab import WITHOUT_CAPTURE
from tests.spark.epoch.small_pipeline import Feed, read_lines

SUCCESS, FAILURE = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE


def acknowledged(lines: list[str]) -> list[str]:
    return sorted(
        line.split(" after ")[0]
        for line in lines
        if line.startswith("checkpoint ") and " acknowledged " in line
    )


@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")  # whose JVM has the connectors that later tests need
def test_a_launched_epoch_shows_what_one_in_the_runs_own_process_shows_and_restores_from_its_link(
    warm_site: Site, feed: Feed, tmp_path: Path
) -> None:
    site = replace(warm_site, options={"publish_facts": str(tmp_path / "facts.json")})
    first = site.run()
    assert first.status is SUCCESS, first.failure
    assert read_lines(site.tables) == feed.expected_lines()
    record = site.record()
    assert record is not None
    assert (record.owner, record.status) == (first.run_id, RunStatus.SUSPENDED)
    with dg.instance_for_test(overrides=WITHOUT_CAPTURE) as instance:
        options = {"publish_facts": str(feed.folder / "no" / "folder" / "facts.json")}
        here = Site(tmp_path / "here", feed, instance, elsewhere=False, options=options).run()
        assert here.status is SUCCESS, here.failure
        assert first.events() == here.events()
        assert acknowledged(first.lines) == acknowledged(here.lines)
    assert facts_in(tmp_path / "facts.json").metadata.checkpoint_id == 1
    assert facts_in(Path(options["publish_facts"])).metadata.checkpoint_id == 1
    [told] = site.materializations()
    assert "/locations/here/jobs/shop/playground/setup?config=" in str(told.metadata["restore"].value)

    feed.order(("ann", 3))
    back = site.run(restore={"restore_from": "chk-1"})
    assert back.status is SUCCESS, back.failure
    assert any(line.startswith("restoring chk-000001") for line in back.lines)
    feed.check(site.tables)
    wrong = site.run(restore={"restore_from": "savepoint-9"})
    assert wrong.status is FAILURE
    assert "savepoint-9" in wrong.failure


class Truncated(dg.PipesTempFileMessageReader):
    """Loses all messages but the first few."""

    kept = 4

    @contextmanager
    def read_messages(self, handler: PipesMessageHandler) -> Iterator[PipesParams]:
        handle, left = handler.handle_message, [self.kept]

        def some(message: PipesMessage) -> None:
            left[0] -= 1
            if left[0] >= 0:
                handle(message)

        handler.handle_message = some  # type: ignore[method-assign]
        with super().read_messages(handler) as params:
            yield params


@pytest.mark.nightly
@pytest.mark.spark
def test_messages_that_are_lost_cost_no_row_and_the_checkpoint_is_told_from_storage(
    warm_site: Site, feed: Feed
) -> None:
    site = warm_site
    site.client = client(message_reader=Truncated())
    ran = site.run()
    assert ran.status is SUCCESS, ran.failure
    assert read_lines(site.tables) == feed.expected_lines()
    assert site.partitions() == ["chk-000001"]
    [told] = site.materializations()
    assert told.partition == "chk-000001"
    assert any("last messages did not arrive" in line for line in ran.lines)


@pytest.mark.nightly
@pytest.mark.spark
def test_a_program_that_is_killed_fails_its_run_and_the_next_run_takes_over_at_once(
    site: Site, feed: Feed, engine: str
) -> None:
    def claimed() -> bool:
        record = site.record() if site.lab.exists() else None
        return record is not None and bool(record.owner)

    def kill() -> None:
        os.kill(int(site.pid() or 0), signal.SIGKILL)

    killer = site.during(claimed, kill)
    dead = site.run()
    killer.join()
    assert dead.status is FAILURE
    assert "failed with code -9" in dead.failure
    feed.order(("bob", 4))
    site.engine = engine
    after = site.run()
    assert after.status is SUCCESS, after.failure
    assert not any("waiting: run" in line for line in after.lines)
    feed.check(site.tables)


@pytest.mark.nightly
@pytest.mark.spark
def test_a_program_with_another_store_never_makes_a_green_run(warm_site: Site, tmp_path: Path) -> None:
    site = warm_site
    site.program_lab = tmp_path / "other"
    ran = site.run()
    assert ran.status is FAILURE
    assert ran.failure == (
        "the program ran the pipeline, but in another store: the store of this code location has no run of the "
        "pipeline. Give its coordinator the store_url of the code location"
    )


def test_a_program_that_never_calls_us_never_makes_a_green_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Site, "command", lambda _: [sys.executable, "-c", "pass"])
    ran = site.run()
    assert ran.status is FAILURE
    assert ran.failure == (
        "the program ended, but the store of this code location has no run of the pipeline, not this one "
        f"({ran.run_id}): does it call run_launched(shop, ...), and is its coordinator's store_url that of the code "
        "location?"
    )


@pytest.mark.nightly
@pytest.mark.spark
def test_tables_that_are_materialized_are_results_of_the_launched_epoch(warm_site: Site, feed: Feed) -> None:
    site = warm_site
    site.options = {"tables": "materializable"}
    definitions = site.definitions()
    job = definitions.resolve_implicit_global_asset_job_def()
    keys = [dg.AssetKey(["shop", "lines"]), dg.AssetKey(["shop", "totals"])]
    result = job.get_subset(asset_selection=set(keys)).execute_in_process(
        instance=site.instance, raise_on_error=False
    )
    assert result.success
    told = {e.asset_key: e for e in result.get_asset_materialization_events()}
    assert set(keys) <= set(told)
    assert read_lines(site.tables) == feed.expected_lines()
