"""Settings of an epoch run show their effect, from the resource, the pipeline and the run config alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt import CheckpointCoordinatorResource
from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage
from dagster_ckpt.ports import CheckpointStorage
from tests.spark.epoch.conftest import Lab, failure_text
from tests.spark.epoch.small_pipeline import Feed, shop

CALLS: list[int] = []
"""Number of files per deletion: resources are made anew from their settings in every run."""


class Counting(FsspecCheckpointStorage):
    """Notes how many files a call deletes."""

    def delete(self, keys: Sequence[str]) -> None:
        CALLS.append(len(keys))
        super().delete(keys)


class CountingResource(CheckpointCoordinatorResource):
    """Its storages count."""

    def open_storage(self, uri: str) -> CheckpointStorage:
        return Counting(uri)


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    made = Feed(tmp_path / "feed")
    made.customer("ann", "fr")
    made.order(("ann", 5))
    return made


def files_of(lab: Lab, checkpoint: int) -> int:
    """Files that a checkpoint has stored beside its manifests."""
    folder = Path(lab.coordinator.resolved_checkpoint_dir) / "shop" / "shared"
    return sum(p.is_file() for stage in folder.iterdir() for p in (stage / str(checkpoint)).rglob("*"))


@pytest.mark.parametrize("lab", [{"data_inline_threshold": 0, "incremental": False}], indirect=True)
def test_the_run_config_beats_the_pipeline_and_the_pipeline_the_resource(lab: Lab, feed: Feed) -> None:
    assert lab.run(shop(feed.folder)).success
    nothing_inlined = files_of(lab, 1)
    assert nothing_inlined > 0, "as the resource says"

    inlining = shop(feed.folder, data_inline_threshold="1 mb")
    feed.order(("ann", 6))
    assert lab.run(inlining).success
    assert files_of(lab, 2) < nothing_inlined, "as the pipeline says"

    feed.order(("ann", 7))
    result = lab.run(inlining, checkpointing={"execution.checkpointing.data-inline-threshold": "0 kb"})
    assert result.success, failure_text(result)
    assert files_of(lab, 3) >= nothing_inlined, "as the run says"


@pytest.mark.parametrize("in_parallel", [True, False])
def test_the_files_of_a_subsumed_checkpoint_go_together_or_one_after_another(
    lab: Lab, feed: Feed, in_parallel: bool
) -> None:
    lab.kind = CountingResource
    lab.settings = {"num_retained": 1, "data_inline_threshold": 0, "cleaner_parallel_mode": in_parallel}
    CALLS.clear()
    for amount in range(2):
        feed.order(("ann", amount))
        assert lab.run(shop(feed.folder), checkpointing={"incremental": False}).success
    assert sum(CALLS) > 3
    assert (max(CALLS) > 1) is in_parallel


def test_a_run_ends_with_so_many_checkpoints_of_its_pipelines_history(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    for _ in range(2):
        assert lab.run(pipeline).success
    shown = lab.run(pipeline, checkpointing={"web.checkpoints.history": 2})
    assert [row["snapshot"] for row in history(shown)] == ["`chk-000003`", "`chk-000002`"]
    assert [row["status"] for row in history(shown)] == ["completed", "completed"]
    assert history(lab.run(pipeline, checkpointing={"history_size": 0})) == []


def history(result: Any) -> list[dict[str, str]]:
    [output] = [
        e.step_output_data for e in result.all_events if e.is_successful_output and e.step_key == "complete"
    ]
    table = output.metadata.get("history")
    return rows_of(table.value) if table else []


def rows_of(table: str) -> list[dict[str, str]]:
    """Return the rows of a Markdown table by heading."""
    heads, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines())
    return [dict(zip(heads, row, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("run_config", "why"),
    [
        ({"checkpointing": {"num_retaned": 3}}, "`num_retaned`: did you mean `num_retained`?"),
        ({"checkpointing": {"timeout": "soon"}}, "timeout: should be a duration"),
        ({"claim_mode": "keep"}, "Run config of op 'restore': .*claim_mode: Input should be"),
        (
            {"checkpointing": {"execution.state-recovery.claim-mode": "KEEP"}},
            "Run config of op 'restore': .*claim-mode: Input should be",
        ),
    ],
)
def test_settings_of_a_run_that_cannot_be_are_refused_before_anything_starts(
    lab: Lab, feed: Feed, run_config: dict[str, Any], why: str
) -> None:
    result = lab.run(shop(feed.folder), **run_config)
    assert not result.success
    assert re.search(why.replace("?", r"\?"), failure_text(result))
    assert lab.partitions(shop(feed.folder)) == []


def test_a_run_takes_flinks_keys_for_what_it_starts_from(lab: Lab, feed: Feed) -> None:
    pipeline = shop(feed.folder)
    for _ in range(2):
        assert lab.run(pipeline).success
    keys = {"execution.state-recovery.path": "chk-1", "execution.state-recovery.claim-mode": "NO_CLAIM"}
    result = lab.run(pipeline, checkpointing=keys)
    assert result.success, failure_text(result)
    assert lab.record(pipeline).restored_id == 1
