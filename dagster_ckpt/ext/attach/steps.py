"""Text of a program: the names that each statement binds and uses, and functions of one text told apart."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePath
from textwrap import dedent, indent
from types import FunctionType, MethodType, ModuleType

from dagster_ckpt.errors import InvalidRequest

DEPTH = 6
"""Functions within functions that are followed."""
_FOREIGN = frozenset({"builtins", "pyspark", "py4j", "logging", "threading"})
"""Packages whose objects say nothing of where rows go."""


def bound_values(function: object) -> list[object]:
    """Return the values that a function is bound to: texts and numbers, and mappings, lists and sets as they are."""
    return list(_bound(function, DEPTH))


def is_bound_alike(one: list[object], other: list[object]) -> bool:
    """Tell whether two functions are bound to the same: a list that one of them fills is the same list."""
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(a is b or (type(a) is type(b) and a == b) for a, b in pairs)


def lasting_values(function: object) -> list[str]:
    """Return of what a function is bound to what is the same in another process: texts, paths and numbers."""
    return [str(one) for one in bound_values(function) if isinstance(one, (str, int, PurePath))]


def _bound(value: object, depth: int) -> Iterator[object]:
    if isinstance(value, (str, int, PurePath, Mapping, list, set)):
        yield value
    elif depth == 0 or isinstance(value, (type, ModuleType)):
        return
    else:
        for one in _parts(value):
            yield from _bound(one, depth - 1)


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        yield from value
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, FunctionType):
        yield from (value.__defaults__ or (), *(value.__kwdefaults__ or {}).values())
        names = value.__code__.co_names
        yield from (value.__globals__[name] for name in names if name in value.__globals__)
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # nothing is in it yet
                continue
    elif type(value).__module__.partition(".")[0] not in _FOREIGN:
        texts = getattr(value, "__dict__", {}).values()
        yield from (one for one in texts if isinstance(one, (str, int, PurePath)))


SQL_NAMES = "what SQL calls by its name"
"""Stands for views and functions that a session registers: whoever writes SQL may use any of them."""
_REGISTERS = {"createOrReplaceTempView", "createTempView", "register", "createGlobalTempView"}
_WRITES_SQL = {"sql", "table", "expr", "selectExpr", "call_udf", "call_function"}
_CHANGES = {"add", "append", "extend", "insert", "pop", "setdefault", "update"}
_ONLY_LOOKS = {"writeStream", "printSchema", "explain", "show"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


def chain_of(node: ast.AST | None) -> tuple[ast.AST | None, list[tuple[str, ast.Call | None]]]:
    """Return where a chain such as ``df.writeStream.start()`` begins, and the names in it with their calls."""
    found: list[tuple[str, ast.Call | None]] = []
    while True:
        call = node if isinstance(node, ast.Call) else None
        target = call.func if call else node
        if not isinstance(target, ast.Attribute):
            return node, found[::-1]
        found.append((target.attr, call))
        node = target.value


def names_read(node: ast.AST) -> set[str]:
    """Return the names that a piece of the program reads."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    called = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)} | found
    return found | ({SQL_NAMES} if called & _WRITES_SQL else set())


def _stored(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, _DEFINITIONS):
            yield one.name
        start: ast.AST = one
        is_stored = isinstance(one, ast.Name | ast.Attribute | ast.Subscript) and not isinstance(
            one.ctx, ast.Load
        )
        while is_stored and isinstance(start, ast.Attribute | ast.Subscript):
            start = start.value
        if is_stored and isinstance(start, ast.Name):
            yield start.id


@dataclass(frozen=True)
class Statement:
    """Statement of the program, in the order in which it runs; a statement with a body is one step."""

    node: ast.stmt
    source: str

    @property
    def is_import(self) -> bool:
        """True for an import."""
        return isinstance(self.node, _IMPORTS)

    @cached_property
    def binds(self) -> frozenset[str]:
        """Names that it gives a value, or whose value it may change (``schema.add(…)``)."""
        if isinstance(self.node, _IMPORTS):
            return frozenset(one.asname or one.name.partition(".")[0] for one in self.node.names)
        if isinstance(self.node, _DEFINITIONS):
            return frozenset({self.node.name})
        found = set(_stored(self.node))
        alone = {name for name, _ in chain_of(getattr(self.node, "value", None))[1]}
        if isinstance(self.node, ast.Expr) and alone & _ONLY_LOOKS:
            return frozenset()
        is_value = isinstance(self.node, ast.Assign | ast.AnnAssign)
        for call in (one for one in ast.walk(self.node) if isinstance(one, ast.Call)):
            start, calls = chain_of(call)
            last = calls[-1][0] if calls else getattr(call.func, "id", "")
            found |= {SQL_NAMES} if last in _REGISTERS else set()
            if last != "print" and (not is_value or last in _CHANGES):
                found |= {one.id for one in (start, *call.args) if isinstance(one, ast.Name)}
        return frozenset(found)

    @cached_property
    def uses(self) -> set[str]:
        """Names that it reads; parameters and names of its own body, too."""
        return names_read(self.node)

    def text(self, prefix: str = "") -> str:
        """Return its lines as they stand, or, where another indentation would change them, as Python writes them."""
        lines = self.source.splitlines()
        first = min([self.node.lineno, *(one.lineno for one in getattr(self.node, "decorator_list", ()))]) - 1
        while first and lines[first - 1].strip().startswith("#") and not lines[first - 1].startswith("#!"):
            first -= 1
        text = indent(dedent("\n".join(lines[first : self.node.end_lineno])), prefix)
        try:
            body = ast.parse(f"if 1:\n{text}" if prefix else text).body
            found = body[0].body if prefix and isinstance(body[0], ast.If) else body
        except SyntaxError:
            found = []
        is_same = [ast.dump(one) for one in found] == [ast.dump(self.node)]
        return text if is_same else indent(ast.unparse(self.node), prefix)


class ProgramText:
    """Program as steps: `if __name__ == "__main__":`, and a `main()` without arguments, are opened where they run."""

    def __init__(self, file: Path) -> None:
        """Parse the file. Raises InvalidRequest for what is no Python."""
        try:
            self.source = file.read_text()
            self.tree = ast.parse(self.source)
        except (SyntaxError, ValueError) as error:
            raise InvalidRequest(f"{file} is no program in Python: {error}") from error
        for one in ast.walk(self.tree):
            if isinstance(one, ast.Global):
                raise InvalidRequest(
                    f"line {one.lineno} of {file} changes a global name: give values by arguments"
                )
        self.steps = [Statement(node, self.source) for node in self._opened()]
        self.bound = Counter(name for step in self.steps for name in step.binds)
        pairs = [(one.node.targets, one.node.value) for one in self.steps if isinstance(one.node, ast.Assign)]
        names = [
            (given[0].id, value) for given, value in pairs if isinstance(given[0], ast.Name) and not given[1:]
        ]
        self._values = {
            name: value for name, value in names if self.bound[name] == 1 and name not in names_read(value)
        }

    def _opened(self) -> Iterator[ast.stmt]:
        flat = [part for one in self.tree.body for part in _guarded(one)]
        called = [ast.unparse(one) for one in flat]
        names = Counter(one.id for one in ast.walk(self.tree) if isinstance(one, ast.Name))
        mains = {
            f"{one.name}()": one.body
            for one in flat
            if isinstance(one, ast.FunctionDef) and f"{one.name}()" in called and names[one.name] == 1
            if not ast.unparse(one.args) and not one.decorator_list
            if not any(isinstance(part, ast.Return | ast.Global | ast.Yield) for part in ast.walk(one))
        }
        for one in flat:
            if not (isinstance(one, ast.FunctionDef) and f"{one.name}()" in mains):
                yield from mains.get(ast.unparse(one), [one])

    def literal(self, node: ast.AST | None) -> str | None:
        """Return text that stands in the program: literals, names of such, put together; None: it is computed."""
        node = self._values.get(node.id) if isinstance(node, ast.Name) else node
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
            return str(node.value).lower() if isinstance(node.value, bool) else str(node.value)
        parts: list[ast.expr] = []
        if isinstance(node, ast.JoinedStr):
            parts = node.values
        elif isinstance(node, ast.FormattedValue) and node.format_spec is None and node.conversion == -1:
            parts = [node.value]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [node.left, node.right]
            parts = [] if any(not isinstance(getattr(one, "value", ""), str) for one in parts) else parts
        texts = [self.literal(one) for one in parts]
        return "".join(map(str, texts)) if texts and None not in texts else None

    def needed(self, names: Collection[str], before: int, apart: str) -> list[int]:
        """Return the places of the steps before one that names need, in order; ``apart``: a name given elsewhere."""
        wanted, chosen = set(names) - {apart}, set[int]()
        places = [place for place in range(before) if not self.steps[place].is_import]
        while more := {p for p in places if p not in chosen and self.steps[p].binds & wanted}:
            chosen |= more
            wanted |= {name for place in more for name in self.steps[place].uses} - {apart}
        return sorted(chosen)


def _guarded(node: ast.stmt) -> list[ast.stmt]:
    is_guard = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
    return node.body if is_guard and isinstance(node, ast.If) and not node.orelse else [node]
