"""Writes docs/reference/python.md from the sources' own docstrings: python -m scripts.python_reference.

Read from the syntax tree, so that annotations appear as their authors wrote them.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType

from dagster_ckpt import testing

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "dagster_ckpt"
PAGE = ROOT / "docs" / "reference" / "python.md"

HEAD = """\
# Python names

Everything that may be imported from `dagster_ckpt`, and the stand-ins of `dagster_ckpt.testing`. Made from the sources
by `python -m scripts.python_reference`; a test holds the two together. Names that are not here are internal.
"""
TESTING = ROOT / "docs" / "reference" / "testing.md"
TESTING_HEAD = """
## For tests

[testing.md](testing.md) shows how names of `dagster_ckpt.testing` are used. Beside those that it explains:

"""
_FOR_USERS = {
    "CheckpointedPipeline": ("fork",),
    "KafkaTopics": (),
    "CheckpointCoordinatorResource": ("held", "store", "storage", "deployment"),
    "SparkSessionResource": ("session", "held"),
    "PipelineOptions": (),
    "SavepointSchedule": (),
    "RestartPolicy": (),
    "Launch": (),
    "AlarmPolicy": (),
    "CheckpointKind": (),
    "CheckpointMetadata": ("stage",),
    "CheckpointConfig": ("of",),
}
"""Methods that programs call, of classes whose other methods are for Dagster and the library."""

_SETTINGS = ("CheckpointCoordinatorResource", "CheckpointedPipelineComponent", "CheckpointConfig")
"""Classes that have the same settings; the first describes them."""
_REASONS = "CheckpointFailureReason"
"""Enum whose members have a page of their own."""
_FOR_THE_LIBRARY = frozenset(
    {
        "model_config",
        "opened_by",
        "derived",
        "after_publish",
        "master_states",
        "first_number",
        "unchained",
        "forked_from",
    }
)
"""Attributes that authors do not read."""

Definition = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class Public:
    """A public name and the module that owns it."""

    name: str
    module: str
    group: str


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    group = ""
    for public in public_names():
        if public.group != group:
            group = public.group
            parts.append(f"\n## {group[0].upper()}{group[1:]}\n")
        parts.append(described(public.name, _definition(_path(public.module), public.name)))
    parts.append(TESTING_HEAD)
    explained = TESTING.read_text()
    for name, node in testing_names():
        if name not in explained:
            summary = (ast.get_docstring(node) or "").partition("\n\n")[0]
            parts.append(f"* `{name}`: {_cell(summary)}\n")
    return "".join(parts)


# --- which names ----------------------------------------------------------------------------------------------


def public_names() -> list[Public]:
    """Return the table of public names, with the comment above each as its group."""
    source = (LIBRARY / "__init__.py").read_text()
    table = source[source.index("_HOMES: dict[str, str] = {") :]
    table = table[: table.index("\n}\n")]
    found: list[Public] = []
    group = ""
    for line in table.splitlines():
        if comment := re.fullmatch(r"    # (.+)", line):
            group = comment[1]
        elif entry := re.fullmatch(r'    "(\w+)": "([\w.]+)",', line):
            found.append(Public(entry[1], entry[2], group))
    return found


def testing_names() -> Iterator[tuple[str, Definition]]:
    """Yield the classes and functions that ``dagster_ckpt.testing`` publishes."""
    for name, home in testing._HOMES.items():
        if isinstance(getattr(testing, name), type | FunctionType):
            yield name, _definition(_path(home), name)


def _path(module: str) -> Path:
    file = LIBRARY / f"{module.replace('.', '/')}.py"
    return file if file.exists() else file.with_suffix("") / "__init__.py"


def _definition(file: Path, name: str) -> Definition:
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, Definition) and node.name == name:
            return node
    raise LookupError(f"{file.relative_to(ROOT)} does not define {name}")


# --- how one is described -------------------------------------------------------------------------------------


def described(name: str, node: Definition) -> str:
    """Return the entry of one name."""
    body = [f"\n### `{name}`\n"]
    if isinstance(node, ast.FunctionDef):
        body.append(f"```text\n{_signature(node)}\n```\n")
    body.append(_prose(ast.get_docstring(node) or "", _typed(node)))
    if name == _REASONS:
        body.append("Each member, when it comes, and what to do: [a page](failure-reasons.md).\n")
    elif isinstance(node, ast.ClassDef):
        told = _settings() if name in _SETTINGS[1:] else frozenset()
        body += [_attributes(node, told), _methods(node)]
    return "\n".join(part for part in body if part)


def _signature(node: ast.FunctionDef) -> str:
    arguments = [part for part in _arguments(node.args) if part not in ("self", "cls")]
    if arguments and arguments[0] == "/":
        arguments = arguments[1:]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if "\nArgs:\n" in (ast.get_docstring(node) or ""):  # which says their types and defaults
        arguments = [re.match(r"[*/]*\w*", argument)[0] for argument in arguments]  # type: ignore[index]
        if "*" in arguments[:-1]:
            arguments = [*arguments[: arguments.index("*") + 1], "…"]
        line = f"{node.name}({', '.join(arguments)}){returns}"
        return "\n".join(textwrap.wrap(line, 100, subsequent_indent="    ", break_on_hyphens=False))
    line = f"{node.name}({', '.join(arguments)}){returns}"
    if len(line) <= 100:
        return line
    inner = "".join(f"    {argument},\n" for argument in arguments)
    return f"{node.name}(\n{inner}){returns}"


def _typed(node: Definition) -> dict[str, str]:
    """Return a function's arguments as an attribute is written: with type and default."""
    if isinstance(node, ast.ClassDef):
        return {}
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    return {
        argument.arg: f"{argument.arg}{_type(argument.annotation)}{_default(default)}"
        for argument, default in zip(
            [*positional, *given.kwonlyargs], [*defaults, *given.kw_defaults], strict=True
        )
    }


def _arguments(given: ast.arguments) -> Iterator[str]:
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    for number, (argument, default) in enumerate(zip(positional, defaults, strict=True), start=1):
        yield _argument(argument, default)
        if number == len(given.posonlyargs):
            yield "/"
    if given.vararg:
        yield f"*{_argument(given.vararg, None)}"
    elif given.kwonlyargs:
        yield "*"
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _argument(argument, default)
    if given.kwarg:
        yield f"**{_argument(given.kwarg, None)}"


def _named(given: ast.arguments) -> list[str]:
    """Return the names of a method's arguments; its types are in the sources."""
    named = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in named if name not in ("self", "cls")]


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    if default is None:
        return f"{argument.arg}{annotation}"
    return f"{argument.arg}{annotation}{' = ' if annotation else '='}{ast.unparse(default)}"


def _prose(docstring: str, typed: dict[str, str]) -> str:
    """Return a docstring as Markdown: its sections become lists, of arguments with their types."""
    lines: list[str] = []
    in_section = False
    for line in docstring.replace("``", "`").splitlines():
        if line in ("Args:", "Raises:", "Returns:"):
            in_section = True
            lines += [] if line == "Args:" else [f"**{line[:-1]}**", ""]
        elif in_section and (entry := re.fullmatch(r"    ([\w, ]+?): (.*)", line)):
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            names = f"`{typed[entry[1]]}`" if entry[1] in typed else names
            lines.append(f"* {names}: {entry[2]}")
        elif in_section and line.startswith("        "):
            lines[-1] += f" {line.strip()}"
        else:
            in_section = in_section and not line
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n" if lines else ""


@cache
def _settings() -> frozenset[str]:
    """Return the settings that the first of their classes describes."""
    [home] = [public.module for public in public_names() if public.name == _SETTINGS[0]]
    return frozenset(name for name, _ in map(_assigned, _definition(_path(home), _SETTINGS[0]).body) if name)


def _attributes(node: ast.ClassDef, told_elsewhere: frozenset[str]) -> str:
    lines = []
    settings = []
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        name, default = _assigned(statement)
        if not name or name.startswith("_") or name in _FOR_THE_LIBRARY:
            continue
        if name in told_elsewhere:
            settings.append(f"`{name}{default}`")
            continue
        told = _cell(_said(statement, following))
        lines.append(f"* `{name}{_kind(statement)}{default}`{': ' if told else ''}{told}\n")
    if settings:
        lines.append(f"\nAs of [`{_SETTINGS[0]}`](#{_SETTINGS[0].lower()}): {', '.join(settings)}.\n")
    return "".join(lines)


def _kind(statement: ast.stmt) -> str:
    return _type(statement.annotation) if isinstance(statement, ast.AnnAssign) else ""


def _type(annotation: ast.expr | None) -> str:
    return f": {ast.unparse(annotation)}".replace(" | ", "|") if annotation else ""


def _assigned(statement: ast.stmt) -> tuple[str, str]:
    """Return name and default of a class attribute; of an enum's member, name and value."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return name, _default(value)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, _default(value)
    return "", ""


def _default(value: ast.expr | None) -> str:
    match value:
        case None:
            return ""
        case ast.Call(func=ast.Name(id="Field" | "field"), keywords=keywords):
            named = {k.arg: k.value for k in keywords}
            if "default" in named:
                return f"={ast.unparse(named['default'])}"
            return f"={ast.unparse(named['default_factory'])}()" if "default_factory" in named else ""
        case _:
            return f"={ast.unparse(value)}"


def _said(statement: ast.stmt, following: ast.stmt | None) -> str:
    """Return the string below an attribute, or the description in its ``Field``."""
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return _cell(str(following.value.value))
    value = statement.value if isinstance(statement, ast.AnnAssign) else None
    if isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg == "description":
                return _cell(str(ast.literal_eval(keyword.value)))
    return ""


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def _methods(node: ast.ClassDef) -> str:
    lines = []
    for statement in node.body:
        if not isinstance(statement, ast.FunctionDef) or statement.name.startswith("_"):
            continue
        if statement.name in _FOR_USERS.get(node.name, (statement.name,)):
            first = (ast.get_docstring(statement) or "").replace("``", "`").partition("\n\n")[0]
            said = " ".join(first.split())
            is_property = any(ast.unparse(d).endswith("property") for d in statement.decorator_list)
            name = statement.name if is_property else f"{statement.name}({', '.join(_named(statement.args))})"
            lines.append(f"* `{name}`{': ' if said else ''}{said}\n")
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
