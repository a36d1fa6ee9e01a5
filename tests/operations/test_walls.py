"""Operations are functions: they know neither Dagster nor the command line; only those that read keys need Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dagster_ckpt
from tests.test_architecture import imports, rooms_reached, sources

OPERATIONS = Path(dagster_ckpt.__file__).parent / "operations"
ROOMS = {"core", "errors", "ports", "digests", "runtime", "authoring", "spark", "operations"}


def test_operations_import_no_dagster_no_click_and_no_adapter() -> None:
    found = [item for file in sources(OPERATIONS) for item in imports(file)]
    assert found
    outside = [item for item in found if item.top in {"dagster", "click", "rich", "sqlalchemy", "fsspec"}]
    assert not outside, "\n".join(map(str, outside))
    wrong = [item for item in found if item.top == "dagster_ckpt" and not set(rooms_reached(item)) <= ROOMS]
    assert not wrong, "\n".join(map(str, wrong))


def test_looking_and_tidying_load_no_pyspark_and_no_dagster() -> None:
    program = (
        "import sys\n"
        "from tests.cli.reference_page import commands\n"
        "assert len(commands()) > 10\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'pyspark', 'dagster', 'sqlalchemy'}, loaded & {'pyspark', 'dagster', 'sqlalchemy'}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_is_run_in_loops_loads_no_arrow() -> None:
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from dagster_ckpt.cli.app import main\n"
        "for name in ('list', 'show', 'history'):\n"
        "    assert CliRunner().invoke(main, [name, '--help']).exit_code == 0\n"
        "assert 'pyarrow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_package_says_what_each_of_its_files_owns() -> None:
    for package in ("operations", "cli"):
        folder = OPERATIONS.parent / package
        text = (folder / "__init__.py").read_text()
        missing = [
            p.stem for p in folder.glob("*.py") if f"``{p.stem}``" not in text and not p.stem.startswith("__")
        ]
        assert not missing, f"{package}: {missing}"
