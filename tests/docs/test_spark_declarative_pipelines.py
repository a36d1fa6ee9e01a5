"""The pages on Spark declarative pipelines: the table is of the installed PySpark, the steps are followed."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import pipelines

from dagster_ckpt.ext.spark_pipelines import graph
from tests.root import ROOT

TABLE = (ROOT / "docs" / "reference" / "spark-declarative-pipelines.md").read_text()
STEPS = (ROOT / "docs" / "extensions" / "spark-declarative-pipelines.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (`\w+`(?:, `\w+`)*) \| (\w+) \|", re.MULTILINE)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_decorator_and_option_of_the_installed_pyspark_has_a_row() -> None:
    found = [(name, option) for name, row, _ in ROW.findall(TABLE) for option in re.findall(r"`(\w+)`", row)]
    names: Any = {name: inspect.signature(getattr(pipelines, name)) for name in pipelines.__all__}
    assert sorted(found) == sorted(
        (name, option) for name, of in names.items() for option in of.parameters if option != "func"
    )
    assert {word for _, _, word in ROW.findall(TABLE)} == {"supported", "differs", "refused"}


def test_every_field_of_a_spec_file_has_a_row() -> None:
    fields = TABLE.partition("## The spec file")[2]
    assert {
        name
        for row in re.findall(r"^\| (`.*?) \|", fields, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    } == set(graph._FIELDS)


@pytest.mark.nightly
@pytest.mark.spark
def test_the_steps_can_be_followed(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    env.pop("DAGSTER_HOME", None)
    for block in BLOCK.finditer(STEPS):
        language, content = block.groups()
        if language != "console":
            named = re.search(r"`([\w./-]+)`:\s*\Z", STEPS[: block.start()])
            assert named, f"which file is this?\n{content}"
            file = tmp_path / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
            continue
        for part in content.removeprefix("$ ").split("\n$ "):
            command, *shown = part.strip().splitlines()
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            for line in shown:
                assert line.strip() in done.stdout, f"{command}\n{line}\nis not in\n{done.stdout}"
