"""The walls of docs/architecture.md, enforced: who may import what, and how large a room may grow.

Imports are read from the source, wherever they stand (also inside functions); those under ``TYPE_CHECKING``
count for the library's own rooms and not for third parties.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import dagster_ckpt

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "dagster_ckpt"
DEPLOYMENT = ("assets", "resources", "sensors")
ANYTHING = frozenset({"*"})
MOST_LINES = 400
MOST_LINES_OF_A_FUNCTION = 60


@dataclass(frozen=True)
class Room:
    """What one room may import: rooms of the library, and distributions beside the standard library."""

    rooms: frozenset[str]
    third_party: frozenset[str]


def room(rooms: str, third_party: str = "") -> Room:
    return Room(frozenset(rooms.split()), frozenset(third_party.split()))


ROOMS = {
    "errors": room(""),
    "core": room("core errors ports", "pydantic"),
    "ports": room("core errors"),
    "digests": room("core errors ports", "xxhash"),
    "runtime": room("core errors ports digests runtime"),
    "adapters": room("core errors ports digests adapters", "sqlalchemy alembic fsspec"),
    "stages": room("core errors stages", "pyspark"),
    "pipeline": room("core errors stages", ""),
    "spark": room("core errors ports digests runtime stages pipeline spark", "pyspark pyarrow pydantic"),
    "testing": room("core errors ports digests runtime testing", "hypothesis"),
    "operations": room("core errors ports digests runtime spark operations", "pyspark pydantic"),
    "cli": room(
        "core errors adapters operations pipeline spark assets cli",
        "click rich pydantic yaml sqlalchemy pyspark dagster dagster_graphql",
    ),
    "checks": room(
        "core errors operations pipeline spark assets attempt resources sensors checks", "dagster pyspark"
    ),
    "sensors": room(
        "core errors ports runtime pipeline spark assets asset_events attempt jobs restore_job savepoint_job "
        "streaming_job resources sensors",
        "dagster pydantic",
    ),
    "components": room("core errors pipeline options resources definitions components", "dagster pydantic"),
}
"""Every room but the outermost: modules of the Dagster layer, which may import all but the command line."""

COMMAND_LINE = "cli"

FORBIDDEN_EVERYWHERE = {"pickle", "cloudpickle", "dill", "shelve", "marshal"}
NO_MOCKS = ("core", "contract", "model", "crash")


@dataclass(frozen=True)
class Import:
    """One imported module, and where."""

    file: Path
    line: int
    module: str
    names: tuple[str, ...]
    for_types_only: bool

    def __str__(self) -> str:
        names = f" ({', '.join(self.names)})" if self.names else ""
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}{names}"

    @property
    def top(self) -> str:
        return self.module.split(".")[0]

    @property
    def rooms(self) -> Iterator[str]:
        """Rooms of the library this import reaches."""
        if self.top != "dagster_ckpt":
            return
        parts = self.module.split(".")
        yield from [parts[1]] if len(parts) > 1 else [HOME_OF.get(name, name) for name in self.names or ("",)]


HOME_OF = {name: home.split(".")[0] for name, home in dagster_ckpt._HOMES.items()}


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def imports(file: Path) -> list[Import]:
    return list(_imports(file, ast.parse(file.read_text()), for_types_only=False))


def _imports(file: Path, node: ast.AST, *, for_types_only: bool) -> Iterator[Import]:
    match node:
        case ast.Import():
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, (), for_types_only)
        case ast.ImportFrom():
            names = tuple(alias.name for alias in node.names)
            yield Import(file, node.lineno, _absolute(file, node), names, for_types_only)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            for statement in node.body:
                yield from _imports(file, statement, for_types_only=True)
            for statement in node.orelse:
                yield from _imports(file, statement, for_types_only=for_types_only)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _imports(file, child, for_types_only=for_types_only)


def _absolute(file: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = file.relative_to(ROOT).with_suffix("").parts[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def room_of(file: Path) -> str:
    return file.relative_to(LIBRARY).with_suffix("").parts[0]


def library_imports(name: str) -> list[Import]:
    return [found for file in sources(LIBRARY) if room_of(file) == name for found in imports(file)]


def wrong(found: Import, allowed: Room) -> bool:
    if found.top == "dagster_ckpt":
        return not set(found.rooms) <= allowed.rooms
    return not (found.for_types_only or found.top in sys.stdlib_module_names | allowed.third_party)


def listed(items: list[Import]) -> str:
    return "\n".join(str(item) for item in items)


# --- who imports what -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_a_room_imports_only_what_the_map_allows(name: str) -> None:
    found = library_imports(name)
    assert found, f"no module of the room {name} imports anything: has it moved?"
    offences = [item for item in found if wrong(item, ROOMS[name])]
    assert not offences, listed(offences)


def test_every_room_is_on_the_map() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for name in ROOMS:
        assert re.search(rf"`dagster_ckpt/{name}(\.py|/)`", page), (
            f"docs/architecture.md has no row for {name}"
        )


def test_nothing_but_itself_imports_the_command_line() -> None:
    offences = [
        found
        for file in sources(LIBRARY)
        for found in imports(file)
        if COMMAND_LINE in found.rooms and room_of(file) != COMMAND_LINE
    ]
    assert not offences, listed(offences)


def test_ports_and_core_do_not_import_each_other_when_they_are_loaded() -> None:
    """``ports`` names core's messages for type checkers only: otherwise neither could be imported first."""
    modules = {found.module: found.for_types_only for found in library_imports("ports")}
    assert modules["dagster_ckpt.core.messages"] is True


def test_the_library_never_imports_the_reference_deployment() -> None:
    banned = {*DEPLOYMENT, "definitions", "tests", "benchmarks", "scripts"}
    offences = [found for file in sources(LIBRARY) for found in imports(file) if found.top in banned]
    assert not offences, listed(offences)


def deployment_files() -> list[Path]:
    files = [file for folder in DEPLOYMENT for file in sources(ROOT / folder)]
    return [*files, *(path for path in [ROOT / "definitions.py"] if path.exists())]


def test_the_reference_deployment_uses_only_public_names() -> None:
    public = set(dagster_ckpt.__all__)
    ours = [found for file in deployment_files() for found in imports(file) if found.top == "dagster_ckpt"]
    assert ours, "the reference deployment does not use the library"
    offences = [item for item in ours if item.module != "dagster_ckpt" or not set(item.names) <= public]
    assert not offences, listed(offences)


def test_the_reference_deployment_imports_its_own_modules_at_the_top_only() -> None:
    """Dagster has the folder on sys.path only while it loads the definitions."""
    offences = []
    for file in deployment_files():
        tree = ast.parse(file.read_text())
        at_top = {found.line for node in tree.body for found in _imports(file, node, for_types_only=False)}
        inside = {
            found.line
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for found in _imports(file, function, for_types_only=False)
        }
        ours = [found for found in imports(file) if found.top in {*DEPLOYMENT, "definitions"}]
        offences += [found for found in ours if found.line in inside or found.line not in at_top]
    assert not offences, listed(offences)


# --- what nobody may import -------------------------------------------------------------------------------


def test_nothing_is_pickled() -> None:
    files = [*sources(LIBRARY), *deployment_files()]
    offences = [found for file in files for found in imports(file) if found.top in FORBIDDEN_EVERYWHERE]
    assert not offences, listed(offences)


def test_the_protocol_is_tested_with_fakes_and_not_with_mocks() -> None:
    files = [file for folder in NO_MOCKS for file in sources(ROOT / "tests" / folder)]
    offences = [
        found
        for file in files
        for found in imports(file)
        if found.module.startswith(("unittest.mock", "mock", "pytest_mock"))
        or (found.module == "unittest" and "mock" in found.names)
    ]
    assert not offences, listed(offences)


# --- how large things are ---------------------------------------------------------------------------------


def shipped_files() -> list[Path]:
    return [*sources(LIBRARY), *deployment_files()]


def test_no_module_is_longer_than_one_idea() -> None:
    lines = {file: len(file.read_text().splitlines()) for file in shipped_files()}
    assert not {str(file.relative_to(ROOT)): n for file, n in lines.items() if n > MOST_LINES}


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name} has {length} lines"
        for file in shipped_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    ]
    assert not long, "\n".join(long)


def test_every_port_has_under_six_methods() -> None:
    tree = ast.parse((LIBRARY / "ports.py").read_text())
    protocols = {
        node.name: [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
    }
    assert len(protocols) == 4
    assert not {name: methods for name, methods in protocols.items() if len(methods) >= 6}


# --- the public surface -----------------------------------------------------------------------------------


def test_type_checkers_see_the_same_public_names_as_programs() -> None:
    for_checkers = {
        name: found.module.removeprefix("dagster_ckpt.")
        for found in imports(LIBRARY / "__init__.py")
        if found.for_types_only
        for name in found.names
    }
    assert for_checkers == dagster_ckpt._HOMES


def test_importing_the_package_starts_nothing_heavy() -> None:
    allowed = {"importlib", "typing", "__future__"}
    loaded = [item for item in imports(LIBRARY / "__init__.py") if not item.for_types_only]
    assert {item.top for item in loaded} <= allowed, listed(loaded)


PACKAGES = (
    *("", "core", "runtime", "adapters", "spark", "testing"),
    *("operations", "cli", "checks", "sensors", "components"),
)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_each_of_its_files_owns(package: str) -> None:
    folder = LIBRARY / package
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    named = set(re.findall(r"``([A-Za-z_]+)/?``", text))
    modules = {path.stem for path in folder.glob("*.py")} | {
        path.name for path in folder.iterdir() if path.is_dir() and (path / "__init__.py").exists()
    }
    missing = sorted(name for name in modules - {"__init__", "__main__"} if name not in named)
    assert not missing, (
        f"dagster_ckpt/{package}: say in the docstring of __init__.py what these own: {missing}"
    )
