"""Our resources outside of a Dagster run: read as Dagster reads them, and light where Dagster is not needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource
from dagster_ckpt.dagster.resources.pipeline import opened

SETTINGS: list[Any] = [
    CheckpointCoordinatorResource(base_dir="/data"),
    CheckpointCoordinatorResource(
        base_dir="/data", interval="10 s", num_retained=3, storage_options={"key": "k"}, snapshot_retries=4
    ),
    CheckpointCoordinatorResource(**{"base_dir": "/data", "execution.checkpointing.timeout": "5 min"}),
    SparkSessionResource(master="local[1]", conf={"spark.ui.enabled": "false"}, warm_engine_idle=30),
]


@pytest.mark.parametrize("resource", SETTINGS)
def test_the_settings_are_those_that_dagster_opens_it_with(resource: Any) -> None:
    with opened(resource) as ours, resource.process_config_and_initialize_cm() as theirs:
        assert ours is not resource
        for name in type(resource).model_fields:
            assert getattr(ours, name) == getattr(theirs, name), name


def test_variables_of_the_environment_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("KEPT", "4")
    monkeypatch.setenv("WHO", "me")
    coordinator = CheckpointCoordinatorResource(
        base_dir=dg.EnvVar("FOLDER"),
        num_retained=dg.EnvVar.int("KEPT"),
        storage_options={"key": dg.EnvVar("WHO")},
    )
    with opened(coordinator) as ready:
        assert (ready.base_dir, ready.num_retained) == (str(tmp_path), 4)
        assert ready.storage_options == {"key": "me"}


def test_a_subclass_is_set_up_by_dagster() -> None:
    class Own(SparkSessionResource):
        def setup_for_execution(self, context: dg.InitResourceContext) -> None:
            assert context.instance is not None

    with opened(Own(master="local[1]")) as ready:
        assert isinstance(ready, Own)


def test_what_a_run_opens_is_closed(tmp_path: Path) -> None:
    coordinator = CheckpointCoordinatorResource(base_dir=str(tmp_path))
    with opened(coordinator) as ready:
        store = ready.store()
        assert ready.store() is store
    assert ready.store() is not store
    with opened(coordinator) as another:
        assert another.store() is not store


def test_a_plain_program_opens_them_without_an_instance(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from dagster_ckpt import CheckpointCoordinatorResource\n"
        "from dagster_ckpt.dagster.resources.pipeline import opened\n"
        f"with opened(CheckpointCoordinatorResource(base_dir={str(tmp_path)!r})) as ready:\n"
        "    ready.store()\n"
        "print(sorted({'dagster._daemon', 'dagster._core.storage.event_log', 'rich'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
