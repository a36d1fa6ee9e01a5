"""The table of options, held against the settings, and the page against the table."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.config import CheckpointConfig, RestoreOptions
from dagster_ckpt.core.flink_options import DURATIONS, FLINK_OPTIONS, OURS
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from scripts.flink_options import rendered
from tests.root import ROOT

PAGE = ROOT / "docs" / "reference" / "configuration.md"
SETTINGS = {**CheckpointConfig.model_fields, **RestoreOptions.model_fields}


def test_every_setting_has_a_row_and_every_row_names_a_setting() -> None:
    named = {option.here for option in FLINK_OPTIONS if option.here} | set(OURS)
    assert set(SETTINGS) <= named
    assert named <= set(SETTINGS) | set(CheckpointCoordinatorResource.model_fields)


@pytest.mark.parametrize(
    ("field", "flinks"),
    [
        ("interval", None),
        ("interval_during_backlog", None),
        ("mode", "exactly_once"),
        ("timeout", 600.0),
        ("min_pause", 0.0),
        ("max_concurrent_checkpoints", 1),
        ("tolerable_failed_checkpoints", 0),
        ("externalized_checkpoint_retention", "no_externalized_checkpoints"),
        ("num_retained", 1),
        ("incremental", False),
        ("checkpoints_after_tasks_finish", True),
        ("aligned_checkpoint_timeout", 0.0),
        ("unaligned", False),
        ("local_backup", False),
        ("pause_sources_until_first_checkpoint", False),
        ("claim_mode", "no_claim"),
        ("allow_non_restored_state", False),
        ("without_channel_state_of", None),
    ],
)
def test_the_cores_defaults_are_flinks(field: str, flinks: object) -> None:
    assert SETTINGS[field].default == flinks


def test_what_has_a_unit_in_flink_may_have_one_here() -> None:
    durations = {name for name in DURATIONS if CheckpointConfig.of(**{name: "700 s"})}
    assert durations == {option.here for option in FLINK_OPTIONS if option.here in DURATIONS}
    numbers = {n for n, f in CheckpointConfig.model_fields.items() if "float" in str(f.annotation)}
    assert numbers - set(OURS) == durations, "every duration of Flink's is known as one"


def test_a_default_of_the_resource_that_differs_is_said_in_the_table() -> None:
    resource = CheckpointCoordinatorResource()
    remarks = {
        option.here: option.note for option in FLINK_OPTIONS if "the resource's default" in option.note
    }
    settings = {
        name: getattr(resource, name)
        for name in CheckpointConfig.model_fields
        if name not in ("interval", "savepoint_dir", "tolerable_failed_checkpoints")
        and hasattr(resource, name)
    }
    read = CheckpointConfig.of(**settings)
    differing = {
        name for name in settings if getattr(read, name) != CheckpointConfig.model_fields[name].default
    }
    assert differing == set(remarks)


def test_the_page_shows_the_table_as_it_is() -> None:
    assert rendered() in PAGE.read_text()
