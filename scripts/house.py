"""Measures the library as a house: rooms, floors, arrows, circles, lines. ``python -m scripts.house [CHECKOUT …]``.

The rooms of a package are its folders and the modules beside them. An arrow says that a room imports another, wherever
the import stands (in a function, under ``TYPE_CHECKING``). A room's floor is one above the highest room it imports;
rooms that import each other in a circle share one. ``tests/test_architecture.py`` reads imports by the same
functions.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "dagster_ckpt"
KERNEL = {"core", "errors", "ports", "digests", "runtime", "adapters", "authoring", "running", "spark"}

Graph = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Import:
    """One imported module, and where."""

    file: Path
    line: int
    module: str
    names: tuple[str, ...]
    for_types_only: bool

    @property
    def top(self) -> str:
        """The distribution's module."""
        return self.module.split(".")[0]


def sources(folder: Path) -> list[Path]:
    """Return the Python files below a folder."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def tree_of(file: Path) -> ast.Module:
    """Return a file's syntax tree; parsed once."""
    return ast.parse(file.read_text())


@cache
def imports(file: Path, root: Path) -> tuple[Import, ...]:
    """Return the imports of a file, wherever they stand."""
    return tuple(imports_below(file, root, tree_of(file), for_types_only=False))


def imports_below(file: Path, root: Path, node: ast.AST, *, for_types_only: bool) -> Iterator[Import]:
    """Yield the imports below one node of a file's syntax tree."""
    match node:
        case ast.Import():
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, (), for_types_only)
        case ast.ImportFrom():
            names = tuple(alias.name for alias in node.names)
            yield Import(file, node.lineno, _absolute(file, root, node), names, for_types_only)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            for statement in node.body:
                yield from imports_below(file, root, statement, for_types_only=True)
            for statement in node.orelse:
                yield from imports_below(file, root, statement, for_types_only=for_types_only)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from imports_below(file, root, child, for_types_only=for_types_only)


def _absolute(file: Path, root: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = file.relative_to(root).with_suffix("").parts[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


# --- graphs ----------------------------------------------------------------------------------------------------


def module_graph(root: Path) -> Graph:
    """Return every module of the library with the modules of the library it imports.

    Packages are modules too: importing one of their names imports the package.
    """
    files = {module_name(file, root): file for file in sources(root / PACKAGE)}
    return {
        name: frozenset(target for found in imports(file, root) for target in _targets(found, files)) - {name}
        for name, file in files.items()
    }


def module_name(file: Path, root: Path) -> str:
    """Return the dotted name of a file's module."""
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _targets(found: Import, files: Mapping[str, Path]) -> Iterator[str]:
    if found.top != PACKAGE:
        return
    below = [f"{found.module}.{name}" for name in found.names if f"{found.module}.{name}" in files]
    yield from below
    if found.module in files and len(below) < max(1, len(found.names)):
        yield found.module


def level(modules: Graph, package: str) -> Graph:
    """Return the rooms directly in a package with those they import: its folders, and its modules beside them.

    The package's own ``__init__`` is left out: it publishes names, and docstrings are its other use.
    """
    inside = f"{package}."

    def room(name: str) -> str | None:
        return name[len(inside) :].split(".", maxsplit=1)[0] if name.startswith(inside) else None

    rooms: dict[str, set[str]] = {here: set() for name in modules if (here := room(name))}
    for name, targets in modules.items():
        if here := room(name):
            rooms[here] |= {there for target in targets if (there := room(target)) and there != here}
    return {name: frozenset(targets) for name, targets in rooms.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of nodes that reach each other, sorted (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in graph[node]:
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in order:
            visit(node)
    return sorted(found)


def floors(graph: Graph) -> dict[str, int]:
    """Return each node's floor, from 1; those in a circle stand on one."""
    group = {node: "+".join(circle) for circle in circles(graph) for node in circle}
    named = {node: group.get(node, node) for node in graph}
    merged: dict[str, set[str]] = {name: set() for name in named.values()}
    for node, targets in graph.items():
        merged[named[node]] |= {named[target] for target in targets} - {named[node]}

    @cache
    def floor(name: str) -> int:
        return 1 + max((floor(target) for target in merged[name]), default=0)

    return {node: floor(named[node]) for node in graph}


# --- the table -------------------------------------------------------------------------------------------------


PACKAGES = (PACKAGE, *(f"{PACKAGE}.{name}" for name in ("core", "runtime", "spark", "dagster")))


def measured(root: Path) -> dict[str, int | str]:
    """Return the figures of a checkout."""
    modules = module_graph(root)
    files = sources(root / PACKAGE)
    lines = [len(file.read_text().splitlines()) for file in files]
    figures: dict[str, int | str] = {
        "files": len(files),
        "lines": sum(lines),
        "lines of the kernel": sum(
            len(file.read_text().splitlines())
            for file in files
            if file.relative_to(root / PACKAGE).with_suffix("").parts[0] in KERNEL
        ),
        "lines of the longest file": max(lines),
        "files under 60 lines": sum(
            count < 60 and file.stem != "__init__" for file, count in zip(files, lines, strict=True)
        ),
        "modules of the biggest folder": max(modules_by_folder(root).values()),
    }
    figures["lines of the longest function"] = max(_function_lengths(files))
    figures["words of docs/"] = sum(
        any(map(str.isalnum, word))  # bars of tables, stars of lists and signs of code are no words
        for page in (root / "docs").rglob("*.md")
        for word in page.read_text().split()
    )
    figures["modules in circles"] = sum(map(len, circles(modules)))
    figures["callers of compare_and_set"] = len(callers(root, "compare_and_set"))
    for package in PACKAGES:
        rooms = level(modules, package)
        figures[f"`{package.replace('.', '/')}/`: rooms, floors, arrows, rooms in circles"] = (
            f"{len(rooms)}, {max(floors(rooms).values())}, {sum(map(len, rooms.values()))}, "
            f"{sum(map(len, circles(rooms)))}"
            if rooms
            else "-"
        )
    return figures


def modules_by_folder(root: Path) -> Counter[str]:
    """Return how many modules lie in each folder of the library, packages below it not counted."""
    files = [file for file in sources(root / PACKAGE) if file.stem != "__init__"]
    return Counter(file.parent.relative_to(root).as_posix() for file in files)


def _function_lengths(files: Iterable[Path]) -> Iterator[int]:
    for file in files:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (node.end_lineno or node.lineno) - node.lineno + 1


def callers(root: Path, method: str) -> set[Path]:
    """Return the files outside adapters and test doubles that call a method."""
    folders = [folder for folder in (root / PACKAGE).iterdir() if folder.name not in ("adapters", "testing")]
    return {
        file
        for folder in folders
        for file in (sources(folder) if folder.is_dir() else [folder])
        if file.suffix == ".py"
        and any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
            for node in ast.walk(tree_of(file))
        )
    }


def main() -> None:
    """Print a table with a column for each checkout."""
    roots = [Path(argument).resolve() for argument in sys.argv[1:]] or [Path.cwd()]
    columns = [measured(root) for root in roots]
    print("| | " + " | ".join(root.name for root in roots) + " |")
    print("|---|" + "---|" * len(roots))
    for figure in columns[0]:
        print(f"| {figure} | " + " | ".join(str(column[figure]) for column in columns) + " |")


if __name__ == "__main__":
    main()
