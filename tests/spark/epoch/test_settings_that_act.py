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
from tests.lab.lab import Lab
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


def files_of(lab: Lab, checkpoint: int) -> int:
    """Files that a checkpoint has stored beside its manifests."""
    folder = Path(lab.coordinator.resolved_checkpoint_dir) / "shop" / "shared"
    return sum(p.is_file() for stage in folder.iterdir() for p in (stage / str(checkpoint)).rglob("*"))


@pytest.mark.parametrize("lab", [{"incremental": True}], indirect=True)
@pytest.mark.usefixtures("nothing_inlined")
def test_the_run_config_beats_the_pipeline_and_the_pipeline_the_resource(lab: Lab, small_feed: Feed) -> None:
    lab.succeeds(shop(small_feed.folder))
    everything = files_of(lab, 1)

    small_feed.order(("ann", 6))
    lab.succeeds(shop(small_feed.folder))
    assert files_of(lab, 2) < everything, "as the resource says"

    full = shop(small_feed.folder, incremental=False)
    small_feed.order(("ann", 7))
    lab.succeeds(full)
    assert files_of(lab, 3) >= everything, "as the pipeline says"

    small_feed.order(("ann", 8))
    lab.succeeds(full, checkpointing={"execution.checkpointing.incremental": "true"})
    assert files_of(lab, 4) < files_of(lab, 3), "as the run says"


@pytest.mark.nightly
@pytest.mark.usefixtures("nothing_inlined")
def test_the_files_of_a_subsumed_checkpoint_go_together(lab: Lab, small_feed: Feed) -> None:
    lab.kind = CountingResource
    lab.settings = {"num_retained": 1}
    CALLS.clear()
    for amount in range(2):
        small_feed.order(("ann", amount))
        lab.succeeds(shop(small_feed.folder), checkpointing={"incremental": False})
    assert sum(CALLS) > 3
    assert max(CALLS) > 1


def test_a_run_ends_with_the_latest_checkpoints_of_its_pipelines_history(lab: Lab, small_feed: Feed) -> None:
    pipeline = shop(small_feed.folder)
    lab.succeeds(pipeline)
    shown = lab.run(pipeline)
    assert [row["snapshot"] for row in history(shown)] == ["`chk-000002`", "`chk-000001`"]
    assert [row["status"] for row in history(shown)] == ["completed", "completed"]


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
    lab: Lab, small_feed: Feed, run_config: dict[str, Any], why: str
) -> None:
    result = lab.fails(shop(small_feed.folder), **run_config)
    assert re.search(why.replace("?", r"\?"), result)
    assert lab.partitions(shop(small_feed.folder)) == []


@pytest.mark.nightly
def test_a_run_takes_flinks_keys_for_what_it_starts_from(lab: Lab, small_feed: Feed) -> None:
    pipeline = shop(small_feed.folder)
    for _ in range(2):
        lab.succeeds(pipeline)
    keys = {"execution.state-recovery.path": "chk-1", "execution.state-recovery.claim-mode": "NO_CLAIM"}
    lab.succeeds(pipeline, checkpointing=keys)
    assert lab.record(pipeline).restored_id == 1
