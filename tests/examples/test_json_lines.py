"""A package of somebody else, installed: its sink, its command and its pipelines are found by entry points alone."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dagster_ckpt import CheckpointCoordinatorResource, CheckpointedPipeline, InvalidRequest, run_epoch
from dagster_ckpt import extensions as found_by
from dagster_ckpt.authoring.targets import target_at
from dagster_ckpt.cli.app import main
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.spark.sink.opening import open_at
from tests.root import ROOT

PACKAGE = ROOT / "examples" / "json_lines"


def register(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a package's entry points be found as ``pip install --editable`` leaves it: no index is asked."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    about = tmp_path / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, names in groups for line in (f"[{group}]", *map(" = ".join, names.items()))]
    (about / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(about.parent))
    found_by._entries.cache_clear()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package, installed."""
    register(PACKAGE, tmp_path, monkeypatch)
    monkeypatch.syspath_prepend(str(PACKAGE))
    for name in [name for name in sys.modules if name.partition(".")[0] == "json_lines"]:
        monkeypatch.delitem(sys.modules, name)  # another test's, made of the page
    yield
    found_by._entries.cache_clear()


def made_of(folder: Path) -> CheckpointedPipeline:
    file = folder / "orders.toml"
    file.write_text(
        f'read = "{folder / "landing"}"\ncolumns = "k string, v int"\nwrite = "{folder / "shown"}"\n'
    )
    made = found_by.extension(found_by.COMPONENTS, "json-lines")(file, name="orders")
    assert isinstance(made, CheckpointedPipeline)
    return made


def test_without_the_package_nothing_of_it_is_there() -> None:
    assert target_at("json-lines:/shown", "json-lines") is None
    assert "No such command" in CliRunner().invoke(main, ["json-lines", "/"]).output
    with pytest.raises(InvalidRequest, match="install the package"):
        found_by.extension(found_by.COMPONENTS, "json-lines")


@pytest.mark.usefixtures("installed")
def test_its_tables_are_opened_by_the_kind_that_a_snapshot_has(tmp_path: Path) -> None:
    sink = open_at(f"json-lines:{tmp_path}", "json-lines", PipelineId("orders"), StageUid("copied"))
    assert sink is not None
    assert (sink.kind, sink.place, sink.position()) == ("json-lines", f"json-lines:{tmp_path}", None)


@pytest.mark.usefixtures("installed")
def test_its_command_is_listed_and_told() -> None:
    said = CliRunner().invoke(main, ["--help"]).output
    assert "rows of each checkpoint in a folder of JSON lines" in said


@pytest.mark.usefixtures("installed")
def test_a_file_that_lacks_something_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text('read = "landing"\ncolumns = "k string"\n')
    with pytest.raises(InvalidRequest, match="has no write"):
        found_by.extension(found_by.COMPONENTS, "json-lines")(file)


@pytest.mark.usefixtures("spark", "installed")
def test_a_pipeline_of_a_file_shows_its_rows_checkpoint_by_checkpoint(tmp_path: Path) -> None:
    pipeline, landing = made_of(tmp_path), tmp_path / "landing"
    landing.mkdir()
    coordinator = CheckpointCoordinatorResource(base_dir=str(tmp_path / "state"))
    for rows in (2, 1):
        text = "".join(f'{{"k": "{n}", "v": {n}}}\n' for n in range(rows))
        (landing / f"{rows}.json").write_text(text)
        run_epoch(pipeline, coordinator=coordinator)
    said = CliRunner().invoke(main, ["json-lines", str(tmp_path / "shown")])
    shown = [line for line in said.output.splitlines() if not line.endswith(" 0 rows")]
    assert shown == ["checkpoint 1: 2 rows", "checkpoint 2: 1 rows"], said.output
