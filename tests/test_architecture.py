"""The walls of docs/architecture.md, enforced: who may import what, and how large a room may grow.

Imports are read from the source, wherever they stand (also inside functions); those under ``TYPE_CHECKING``
count for the library's own rooms and not for third parties.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import dagster_ckpt
from dagster_ckpt import sinks
from scripts import capabilities, house
from scripts.house import Import, sources, tree_of
from tests.root import ROOT

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
    "version": room(""),
    "core": room("core errors", "pydantic"),
    "extensions": room("errors"),
    "ports": room("core errors"),
    "digests": room("core errors", "xxhash"),
    "authoring": room("core errors extensions authoring", "pyspark"),
    "sinks": room("authoring spark ext"),
    "runtime": room("core errors ports digests runtime"),
    "adapters": room("core errors ports digests adapters", "sqlalchemy alembic fsspec"),
    "spark": room(
        "core errors version ports digests runtime authoring spark",
        "pyspark py4j pyarrow pydantic",
    ),
    "ext": room(
        "core errors extensions version ports digests runtime authoring spark running operations page cli dagster "
        "pipes programs ext",
        "pyspark pyarrow pydantic yaml deltalake pyiceberg sqlalchemy confluent_kafka prometheus_client "
        "opentelemetry click",
    ),
    "testing": room("core errors ports digests runtime authoring spark testing", "pyarrow pytest"),
    "operations": room("core errors ports digests runtime authoring spark operations", "pyspark pydantic"),
    "page": room("core errors operations page"),
    "dagster": room(
        "core errors ports digests runtime adapters authoring spark running operations page extensions dagster",
        "dagster dagster_pipes pydantic pyspark yaml",
    ),
    "running": room("core errors version ports runtime authoring spark", "pyspark"),
    "programs": room("core errors runtime authoring spark running dagster", "dagster pyspark"),
    "pipes": room("core errors runtime authoring spark running dagster programs", "dagster_pipes pyspark"),
    "cli": room(
        "core errors adapters operations page extensions authoring spark dagster cli",
        "click rich pydantic yaml sqlalchemy pyspark dagster dagster_graphql",
    ),
}
"""What each room may import. Of Dagster know only the room named after it, the command line and plain programs."""

FLOORS = {
    "dagster_ckpt": (
        "errors version",
        "core extensions",
        "authoring digests ports",
        "adapters runtime",
        "spark",
        "operations running testing",
        "page",
        "dagster",
        "cli programs",
        "pipes",
        "ext",
        "sinks",
    ),
    "dagster_ckpt.core": (
        "flink_options ids json_text units",
        "model settings",
        "graph messages metadata_text paths",
        "chains restore_point",
        "config",
        "alignment request",
        "files restore subtask",
        "checkpoint",
        "coordinator supervision",
    ),
    "dagster_ckpt.runtime": (
        "driver record_store stored",
        "engine files",
        "attempt_setup",
        "effects relocation turn",
        "loop restore_facts",
        "claim status",
        "coordinator",
        "mailbox",
    ),
    "dagster_ckpt.spark": (
        "files java quoting stage_report versions worker_start",
        "directories exchange",
        "cluster snapshot",
        "channel session source",
        "plan sink",
        "attempt",
        "epoch streaming",
    ),
    "dagster_ckpt.ext": (
        "kafka metrics quarantine sql tables warm wrapped",
        "attach delta iceberg upgrade_plan",
        "spark_pipelines",
    ),
    "dagster_ckpt.dagster": (
        "console names reporting supervision",
        "launchpad options",
        "reports resources",
        "checks start",
        "runs",
        "launched",
        "jobs",
        "sensors tables",
        "pipeline_jobs",
        "definitions",
        "components",
    ),
}
"""From the ground up: a room imports from the floors below its own, and nothing from its own floor."""

COMMAND_LINE = "cli"

FORBIDDEN_EVERYWHERE = {"pickle", "cloudpickle", "dill", "shelve", "marshal"}
NO_MOCKS = ("core", "coordinator", "contract", "model", "crash", "testing")


HOME_OF = {name: home.split(".")[0] for name, home in dagster_ckpt._HOMES.items()}


def imports(file: Path) -> tuple[Import, ...]:
    return house.imports(file, ROOT)


def rooms_reached(found: Import) -> list[str]:
    """Rooms of the library an import reaches."""
    if found.top != "dagster_ckpt":
        return []
    parts = found.module.split(".")
    return [parts[1]] if len(parts) > 1 else [HOME_OF.get(name, name) for name in found.names or ("",)]


def room_of(file: Path) -> str:
    return file.relative_to(LIBRARY).with_suffix("").parts[0]


def library_imports(name: str) -> list[Import]:
    return [found for file in sources(LIBRARY) if room_of(file) == name for found in imports(file)]


def wrong(found: Import, allowed: Room) -> bool:
    if found.top == "dagster_ckpt":
        return not set(rooms_reached(found)) <= allowed.rooms
    return not (found.for_types_only or found.top in sys.stdlib_module_names | allowed.third_party)


def listed(items: Iterable[Import]) -> str:
    return "\n".join(f"{i.file.relative_to(ROOT)}:{i.line} imports {i.module} {i.names}" for i in items)


# --- who imports what -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_a_room_imports_only_what_the_map_allows(name: str) -> None:
    found = library_imports(name)
    assert found or not ROOMS[name].rooms, f"no module of the room {name} imports anything: has it moved?"
    offences = [item for item in found if wrong(item, ROOMS[name])]
    assert not offences, listed(offences)


@pytest.mark.parametrize("package", FLOORS)
def test_no_arrow_runs_up(package: str) -> None:
    floor_of = {name: floor for floor, row in enumerate(FLOORS[package]) for name in row.split()}
    rooms = house.level(house.module_graph(ROOT), package)
    assert set(rooms) == set(floor_of), "a room is new, or gone: give it a floor"
    up = [f"{a} -> {b}" for a, there in rooms.items() for b in there if floor_of[b] >= floor_of[a]]
    assert not up, f"{package}: {sorted(up)}"


def test_no_module_imports_itself_in_a_circle() -> None:
    assert house.circles(house.module_graph(ROOT)) == []


def test_every_room_is_on_the_map() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for name in ROOMS:
        assert re.search(rf"`dagster_ckpt/{name}(\.py|/)`", page), (
            f"docs/architecture.md has no row for {name}"
        )


def test_the_map_says_what_the_lines_are_for() -> None:
    """Figures are rounded; a third off, and the table is to be made again (``scripts.capabilities``)."""
    table = (ROOT / "docs" / "architecture.md").read_text().split("<!-- capabilities")[1]
    for capability, (code, tests) in capabilities.figures().items():
        [row] = [line for line in table.splitlines() if line.startswith(f"| {capability.what} |")]
        told = [int(cell.replace(",", "")) for cell in re.findall(r" ([\d,]+) ", row)]
        assert told == pytest.approx([code, tests], rel=1 / 3, abs=100), row
        assert code, capability.what
    owned = [path for _, chapter in capabilities.CHAPTERS for each in chapter for path in each.code]
    assert not [path for path in owned if not (LIBRARY / path).exists()]


def test_the_reading_order_names_forty_files_there_are() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    order = page.split("## Reading order")[1].split("## ")[0]
    files = re.findall(r"`([a-z_/]+\.py)`", order)
    assert len(set(files)) == len(files) == 40
    assert not [file for file in files if not (LIBRARY / file).exists()]


FACADES = {"__init__.py", "sinks.py"}
"""Tables of public names, each loaded when it is first used; they may name extensions."""
CLIENTS = (
    *(
        "deltalake",
        "pyiceberg",
        "confluent_kafka",
        "prometheus_client",
        "opentelemetry",
        "psycopg",
        "psycopg2",
    ),
    *("yaml", "s3fs", "adlfs", "gcsfs", "pandas", "duckdb", "polars", "dagster_ckpt.ext"),
)
"""What extensions import, with themselves: the kernel does without."""
KERNEL = ("core", "runtime", "adapters", "authoring", "spark", "testing", "operations", "page")


def test_nothing_outside_of_extensions_names_them() -> None:
    """Neither by an import nor by a text that one is made of; public names apart."""
    offences = [
        f"{file.relative_to(ROOT)}:{node.lineno} names {name}"
        for file in sources(LIBRARY)
        if room_of(file) != "ext" and file.relative_to(LIBRARY).as_posix() not in FACADES
        for node in ast.walk(tree_of(file))
        for name in names_in(node)
        if name.startswith("dagster_ckpt.ext.") or name == "dagster_ckpt.ext"
    ]
    assert not offences, "\n".join(offences)


def names_in(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            return [f"{node.module}.{alias.name}" for alias in node.names]
        case ast.Constant(value=str(text)):
            return [text]
    return []


def test_the_kernel_is_imported_without_what_extensions_need() -> None:
    modules = [
        house.module_name(file, ROOT)
        for folder in KERNEL
        for file in sources(LIBRARY / folder)
        if "migrations" not in file.parts and file.stem != "sitecustomize"
    ]
    program = (
        "import importlib, sys\n"
        "class Wall:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if any(f'{{name}}.'.startswith(f'{{client}}.') for client in {CLIENTS!r}):\n"
        "            raise ModuleNotFoundError(f'{name} is behind the wall', name=name)\n"
        "sys.meta_path.insert(0, Wall())\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "print(len(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_nothing_but_itself_and_commands_of_extensions_imports_the_command_line() -> None:
    offences = [
        found
        for file in sources(LIBRARY)
        for found in imports(file)
        if COMMAND_LINE in rooms_reached(found) and room_of(file) not in (COMMAND_LINE, "ext")
    ]
    assert not offences, listed(offences)


def test_the_library_never_imports_the_reference_deployment() -> None:
    banned = {*DEPLOYMENT, "definitions", "tests", "benchmarks", "scripts"}
    offences = [found for file in sources(LIBRARY) for found in imports(file) if found.top in banned]
    assert not offences, listed(offences)


def deployment_files() -> list[Path]:
    files = [file for folder in DEPLOYMENT for file in sources(ROOT / folder)]
    return [*files, *(path for path in [ROOT / "definitions.py"] if path.exists())]


def test_the_reference_deployment_uses_only_public_names() -> None:
    public = {"dagster_ckpt": set(dagster_ckpt.__all__), "dagster_ckpt.sinks": set(sinks._HOMES)}
    ours = [found for file in deployment_files() for found in imports(file) if found.top == "dagster_ckpt"]
    assert ours, "the reference deployment does not use the library"
    offences = [item for item in ours if not set(item.names) <= public.get(item.module, set())]
    assert not offences, listed(offences)


def test_the_reference_deployment_imports_its_own_modules_at_the_top_only() -> None:
    """Dagster has the folder on sys.path only while it loads the definitions."""
    offences = []
    for file in deployment_files():
        tree = tree_of(file)
        at_top = {
            i.line for node in tree.body for i in house.imports_below(file, ROOT, node, for_types_only=False)
        }
        inside = {
            found.line
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for found in house.imports_below(file, ROOT, function, for_types_only=False)
        }
        ours = [found for found in imports(file) if found.top in {*DEPLOYMENT, "definitions"}]
        offences += [found for found in ours if found.line in inside or found.line not in at_top]
    assert not offences, listed(offences)


# --- what nobody may import -------------------------------------------------------------------------------


def test_the_record_store_alone_writes_the_record() -> None:
    """Stores themselves, and the test doubles around them, apart."""
    callers = house.callers(ROOT, "compare_and_set")
    assert {file.relative_to(LIBRARY).as_posix() for file in callers} == {"runtime/record_store.py"}


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


KNOW_A_SINK = {"ext/spark_pipelines/adoption.py", "ext/spark_pipelines/left/table_rows.py"}
"""Modules beside the extensions that ask what kind of sink they have; none may come."""


def test_nobody_asks_what_kind_of_sink_it_has() -> None:
    """What differs between sinks is a method of the port: an extension of a stranger's answers it too."""
    asking = {
        file.relative_to(LIBRARY).as_posix()
        for file in sources(LIBRARY)
        if file.relative_to(LIBRARY).parts[0] != "ext"
        for node in ast.walk(tree_of(file))
        if is_kind_of_sink(node)
    }
    assert asking <= KNOW_A_SINK, f"give the port of sinks a method: {sorted(asking - KNOW_A_SINK)}"


def is_kind_of_sink(node: ast.AST) -> bool:
    """True for ``isinstance(x, SomeSink)`` and ``case SomeSink():``."""
    match node:
        case ast.Call(func=ast.Name("isinstance"), args=[_, kinds]):
            asked = [one.id for one in ast.walk(kinds) if isinstance(one, ast.Name)]
        case ast.MatchClass(cls=ast.Name(name)):
            asked = [name]
        case _:
            asked = []
    return any(name.endswith("Sink") and name != "Sink" for name in asked)


PRIVATE_JAVA = re.compile(r"_(j[a-z]*|jsparkSession|gateway|active_spark_context|instantiated\w+)")
"""Attributes of PySpark's objects behind which its Java is."""


def test_private_java_is_called_in_one_room() -> None:
    """A new version of Spark breaks one room, and each call there says what it asks."""
    calls = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.attr}"
        for file in sources(LIBRARY)
        if not file.is_relative_to(LIBRARY / "spark" / "java")
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute) and PRIVATE_JAVA.fullmatch(node.attr)
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]
    assert not calls, "give dagster_ckpt/spark/java a function:\n" + "\n".join(calls)


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
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
        and not is_dispatch_table(node)
    ]
    assert not long, "\n".join(long)


def is_dispatch_table(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True for a function that is one ``match`` of one-statement cases ending in ``assert_never``: read as a table."""
    match [item for item in function.body if not isinstance(item, ast.Expr)]:
        case [ast.Match(cases=[*cases, ast.match_case(body=[ast.Expr(ast.Call(ast.Name("assert_never")))])])]:
            return all(
                len(case.body) == 1 and isinstance(case.body[0], ast.Return | ast.Expr) for case in cases
            )
    return False


@pytest.mark.parametrize(
    ("body", "is_one"),
    [
        ("case 1:\n   return f(x)\n  case _:\n   assert_never(x)", True),
        ("case 1:\n   return f(x)\n  case 2:\n   return g(x)", False),
        ("case 1:\n   y = 1\n   return f(y)\n  case _:\n   assert_never(x)", False),
        ("case 1:\n   return f(x)\n  case _:\n   assert_never(x)\n return 1", False),
    ],
)
def test_a_dispatch_table_is_told_from_other_functions(body: str, is_one: bool) -> None:
    function = ast.parse(f'def t(x):\n "Table."\n match x:\n  {body}').body[0]
    assert isinstance(function, ast.FunctionDef)
    assert is_dispatch_table(function) is is_one


def test_every_port_has_under_six_methods() -> None:
    tree = tree_of(LIBRARY / "ports.py")
    protocols = {
        node.name: [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
    }
    assert len(protocols) == 4
    assert not {name: methods for name, methods in protocols.items() if len(methods) >= 6}


MOST_MODULES = 20
"""In a folder: so many names a stranger reads before opening the one that is meant."""


def test_no_folder_has_more_modules_than_a_stranger_reads() -> None:
    found = house.modules_by_folder(ROOT)
    assert not {folder: count for folder, count in found.items() if count > MOST_MODULES}


# --- the public surface -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "facade"), [("__init__.py", dagster_ckpt), ("sinks.py", sinks)])
def test_type_checkers_see_the_same_public_names_as_programs(file: str, facade: ModuleType) -> None:
    for_checkers = {
        name: found.module.removeprefix("dagster_ckpt.")
        for found in imports(LIBRARY / file)
        if found.for_types_only
        for name in found.names
    }
    assert for_checkers == facade._HOMES
    assert all(getattr(facade, name) is not None for name in for_checkers)


def test_importing_the_package_starts_nothing_heavy() -> None:
    allowed = {"importlib", "typing", "__future__", "dagster_ckpt.version"}
    loaded = [item for item in imports(LIBRARY / "__init__.py") if not item.for_types_only]
    assert {item.module for item in loaded} <= allowed, listed(loaded)


def test_a_plain_list_imports_neither_what_authors_write_with_nor_what_runs_it() -> None:
    """It is run in loops: half a second of processor time, most of it SQLAlchemy and dataclasses."""
    asked = "import dagster_ckpt.cli.commands.list, dagster_ckpt.adapters.sql_store, sys; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-I", "-c", asked], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = ("dagster", "pyspark", "pyarrow", "alembic", "yaml", "dagster_ckpt.authoring")
    heavy += ("dagster_ckpt.operations.readers.load_table", "dagster_ckpt.runtime.coordinator")
    assert not set(heavy) & set(found)


PACKAGES = (
    *(
        "",
        "authoring",
        "core",
        "core/alignment",
        "runtime",
        "adapters",
        "spark",
        "spark/java",
        "spark/streaming",
        "testing",
        "testing/sinks",
    ),
    *(
        "operations",
        "operations/snapshots",
        "operations/readers",
        "operations/restores",
        "operations/care",
        "ext/spark_pipelines",
        "ext/spark_pipelines/left",
        "cli",
        "cli/commands",
        "dagster",
        "dagster/jobs",
        "dagster/checks",
        "dagster/sensors",
        "dagster/components",
        "dagster/reports",
        "dagster/resources",
        "dagster/runs",
    ),
)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_each_of_its_files_owns(package: str) -> None:
    folder = LIBRARY / package
    text = ast.get_docstring(tree_of(folder / "__init__.py")) or ""
    named = set(re.findall(r"``([A-Za-z_]+)/?``", text))
    modules = {path.stem for path in folder.glob("*.py")} | {
        path.name for path in folder.iterdir() if path.is_dir() and (path / "__init__.py").exists()
    }
    missing = sorted(name for name in modules - {"__init__", "__main__"} if name not in named)
    assert not missing, (
        f"dagster_ckpt/{package}: say in the docstring of __init__.py what these own: {missing}"
    )


def test_a_number_in_a_name_is_made_of_decimal_digits_only() -> None:
    """``'²'.isdigit()`` is true, and ``int('²')`` raises: a file of somebody else's may be called so."""
    found = [file for file in sources(LIBRARY) if ".isdigit()" in file.read_text()]
    assert not found, f"isdecimal() is meant: {found}"


WITHOUT_A_NOUN = re.compile(
    r"(?:(?:Return|Yield|Give|Tell|Ask|Say) (?:for |again )?"
    r"(?:what|those|it|them|whatever|one(?= (?:of|that|which|who|whose|as|by|for|from|in|to|with)\b|[.,:;]))"
    r"|What|Those|It|Which|Who|That|Whoever|Whatever)\b"
)


def test_a_docstring_begins_with_a_noun() -> None:
    """*What it holds* has to be looked up in the signature; *files of a checkpoint* says it."""
    found = [
        f"{file.relative_to(ROOT)}: {text.splitlines()[0]}"
        for file in [*shipped_files(), *sources(ROOT / "scripts")]
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
        and WITHOUT_A_NOUN.match(text)
    ]
    assert not found, "name the thing of the domain first:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("first_line", "is_found"),
    [
        ("Return what a file imports.", True),
        ("Yield those that wait, oldest first.", True),
        ("Return one of them.", True),
        ("What a checkpoint holds.", True),
        ("Return one row per subtask.", False),
        ("Return the files of a checkpoint.", False),
    ],
)
def test_a_first_line_without_a_noun_is_told_from_others(first_line: str, is_found: bool) -> None:
    assert bool(WITHOUT_A_NOUN.match(first_line)) is is_found


def test_classes_of_different_things_have_different_names() -> None:
    """Delta and Iceberg name the same things alike: a format's lake, its commits, its garbage."""
    homes: dict[str, list[Path]] = {}
    for file in sources(LIBRARY):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(file.relative_to(LIBRARY))
    formats = [Path("ext/delta"), Path("ext/iceberg")]
    found = {
        name: list(map(str, files))
        for name, files in homes.items()
        if len(files) > 1 and sorted(file.parent for file in files) != formats
    }
    assert not found
