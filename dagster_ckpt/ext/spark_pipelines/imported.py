"""Modules of a project that its definition files import: what its graph is made from beside them."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from types import ModuleType

from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import InvalidRequest

__all__ = ["imported_below", "refuse_old_imports"]

_seen: dict[Path, tuple[ModuleType, str]] = {}
"""What a file was when its module was first found imported."""


def imported_below(root: Path) -> list[str]:
    """Return the files of imported modules, by path below the project; a virtual environment there is none of it."""
    return [str(file.relative_to(root)) for file in _modules_below(root)]


def refuse_old_imports(root: Path, files: Collection[str]) -> None:
    """Raise InvalidRequest where a module was imported by this process and its file was changed since."""
    for file, module in _modules_below(root).items():
        if str(file.relative_to(root)) not in files or not file.is_file():
            continue
        now = digest_file(file).checksum
        earlier, was = _seen.get(file, (None, ""))
        if earlier is module and was != now and module.__name__ != "__main__":
            raise InvalidRequest(
                f"{file} has changed since this process imported it, so that its flows would run as they were before: "
                "start a new process"
            )
        _seen[file] = (module, now)


def _modules_below(root: Path) -> dict[Path, ModuleType]:
    environments = [
        place
        for place in map(Path, (sys.prefix, sys.base_prefix))
        if place != root and place.is_relative_to(root)
    ]
    found: dict[Path, ModuleType] = {}
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "")
        is_ours = file.is_relative_to(root) and "site-packages" not in file.parts
        if is_ours and not any(file.is_relative_to(place) for place in environments):
            found[file] = module
    return found
