"""What a user gets from the wheel, in an interpreter that has never seen the checkout."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dagster_ckpt.adapters.remote_keys import EXTRAS
from dagster_ckpt.errors import install_extra
from scripts import wheel
from tests.root import ROOT

HEAVY = ("dagster", "pyspark", "sqlalchemy", "alembic", "pandas", "pyarrow", "fsspec", "pydantic")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.clean_interpreter(built, tmp_path_factory.mktemp("clean") / "venv")


def version_in_pyproject() -> str:
    with (wheel.ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def test_what_is_downloaded_cannot_be_another_thing_tomorrow() -> None:
    """Actions are named by their commits, Maven refuses a jar whose checksum differs, the rest has a version."""
    workflows = "".join(path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    used = re.findall(r"uses: (\S+)", workflows)
    assert used
    assert not [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)]
    bootstrap = (ROOT / "scripts" / "bootstrap").read_text()
    assert not [line for line in re.findall(r".*\bmvn -.*", bootstrap) if " -C " not in line]
    assert "azurite@$azurite_version" in bootstrap
    assert not re.findall(r"curl .*\| *(?:ba)?sh", bootstrap)


def test_the_wheel_installs_the_package_and_nothing_else(built: Path) -> None:
    assert wheel.top_level(built) == ["dagster_ckpt", f"dagster_ckpt-{version_in_pyproject()}.dist-info"]


def test_the_clean_interpreter_imports_the_wheel_and_not_the_checkout(python: Path) -> None:
    where, roots = wheel.run_clean(
        python,
        "import dagster_ckpt, importlib.util as u; print(dagster_ckpt.__file__);"
        "print([n for n in ('assets', 'resources', 'sensors', 'scripts') if u.find_spec(n)])",
    ).splitlines()
    assert str(python.parent.parent) in where
    assert roots == "[]"


def test_importing_the_package_imports_none_of_its_dependencies(python: Path) -> None:
    code = f"import sys, dagster_ckpt; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    assert wheel.run_clean(python, code).strip() == "[]"


def test_every_public_name_is_there_when_it_is_asked_for(python: Path) -> None:
    code = "import dagster_ckpt as d; print(len([getattr(d, name) for name in d.__all__]), len(d.__all__))"
    found, named = wheel.run_clean(python, code).split()
    assert found == named != "0"


def test_public_names_do_not_need_pyspark_until_they_are_used(python: Path) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import dagster_ckpt as d; [getattr(d, name) for name in d.__all__]; print('fine')"
    )
    assert wheel.run_clean(python, code).strip() == "fine"


def test_an_unknown_name_is_an_attribute_error(python: Path) -> None:
    code = "import dagster_ckpt as d\ntry:\n    d.nothing\nexcept AttributeError as error:\n    print(error)"
    assert wheel.run_clean(python, code).strip() == "module 'dagster_ckpt' has no attribute 'nothing'"


def test_every_entry_point_can_be_loaded(python: Path) -> None:
    code = (
        "from importlib.metadata import distribution\n"
        "for point in distribution('dagster-ckpt').entry_points:\n    point.load()\nprint('fine')"
    )
    assert wheel.run_clean(python, code).strip() == "fine"


def test_the_version_is_the_one_that_was_built(python: Path) -> None:
    assert wheel.run_clean(python, "import dagster_ckpt as d; print(d.__version__)").strip() == (
        version_in_pyproject()
    )


def test_the_package_says_that_it_is_typed(built: Path) -> None:
    listing = subprocess.check_output([sys.executable, "-m", "zipfile", "-l", str(built)], text=True)
    assert "dagster_ckpt/py.typed" in listing


def test_a_missing_extra_is_told_with_a_command_that_works_however_the_library_was_installed() -> None:
    library = "\n".join(path.read_text() for path in (ROOT / "dagster_ckpt").rglob("*.py"))
    assert "install 'dagster-ckpt[" not in library  # is on no index: pip would find nothing
    named = set(re.findall(r"""install_extra\(['"](\w+)['"]\)""", library)) | set(EXTRAS.values())
    assert len(named) >= 8
    for extra in named:
        assert install_extra(extra).endswith(f"  # dagster-ckpt[{extra}]")
        command, *packages = shlex.split(install_extra(extra), comments=True)[1:]
        assert command == "install"
        assert [Requirement(package).name for package in packages], extra
