"""Code on pages: it is Python or YAML, its names and arguments of the library exist, and what needs no more is run."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.root import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<kind>python|yaml)[^\n]*\n(?P<code>.*?)^ *```$", re.MULTILINE | re.DOTALL
)


def blocks(kind: str) -> Iterator[Any]:
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            if found["kind"] == kind:
                line = text[: found.start()].count("\n") + 1
                yield pytest.param(textwrap.dedent(found["code"]), id=f"{page.relative_to(ROOT)}:{line}")


def imported(tree: ast.AST) -> dict[str, Any]:
    """Return what a block imports from the library, by the name it has there. Raises for what there is not."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dagster_ckpt":
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                found[alias.asname or alias.name] = getattr(module, alias.name)
    return found


@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_on_a_page_calls_the_library_as_it_is(code: str) -> None:
    tree = ast.parse(code)
    known = imported(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known):
            continue
        accepted = inspect.signature(known[node.func.id]).parameters
        if any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            accepted = getattr(known[node.func.id], "model_fields", None)  # a resource says its fields
            if accepted is None:
                continue
        wrong = [k.arg for k in node.keywords if k.arg is not None and k.arg not in accepted]
        assert not wrong, f"{node.func.id} takes no {wrong[0]}"


@pytest.mark.parametrize("text", list(blocks("yaml")))
def test_yaml_on_a_page_can_be_read(text: str) -> None:
    assert list(yaml.safe_load_all(text))


def test_there_is_code_on_pages() -> None:
    assert len(list(blocks("python"))) > 30
    assert len(list(blocks("yaml"))) > 5


def test_the_page_about_launching_gives_a_code_location_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "my_project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "pipelines.py").write_text(
        "from pathlib import Path\nfrom tests.spark.epoch.small_pipeline import shop as made\n"
        f"shop = made(Path({str(tmp_path)!r}))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    page = (ROOT / "docs" / "how-to" / "run-elsewhere.md").read_text()
    [code] = [found["code"] for found in BLOCK.finditer(page) if "defs = " in found["code"]]
    made: dict[str, Any] = {}
    exec(compile(code.replace("/data/shop", str(tmp_path)), "run-elsewhere.md", "exec"), made)
    job = made["defs"].resolve_job_def("shop")
    assert {node.name for node in job.nodes} == {"restore", "launch"}
    assert "shop_streaming" in {each.name for each in made["defs"].resolve_all_job_defs()}
