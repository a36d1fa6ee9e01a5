"""Extensions: packages name what they add by entry points, and it is imported when it is asked for.

The library's own extensions (``ext/``) are registered like those of others, in ``pyproject.toml``.

| group | an entry is |
|---|---|
| ``dagster_ckpt.targets`` | a subclass of ``SinkTarget``; its name is the ``kind`` of the sink it opens |
| ``dagster_ckpt.commands`` | a command of the program ``dagster-ckpt``, made with click |
| ``dagster_ckpt.components`` | a function ``(file, *, name)`` that makes a pipeline of a file beside ``defs.yaml`` |
| ``dagster_ckpt.participants`` | a function ``(fn, uid, output_mode, settings)`` that makes a ``StageParticipant`` |
| ``dagster_ckpt.programs`` | a function ``(work, pipeline, asked)`` that restores, saves or adopts what no job runs |
| ``dagster_ckpt.sessions`` | a context manager that yields a Spark session for a run |
"""

from __future__ import annotations

from functools import cache
from typing import Any

from dagster_ckpt.errors import InvalidRequest

TARGETS = "dagster_ckpt.targets"
COMMANDS = "dagster_ckpt.commands"
COMPONENTS = "dagster_ckpt.components"
PARTICIPANTS = "dagster_ckpt.participants"
PROGRAMS = "dagster_ckpt.programs"
SESSIONS = "dagster_ckpt.sessions"


def extension_names(group: str) -> list[str]:
    """Return the names of a group's extensions, sorted; none is imported."""
    return sorted(_entries(group))


def extension(group: str, name: str) -> Any:
    """Return an extension, imported now.

    Raises InvalidRequest: none of that name is installed, two packages have one, or it cannot be imported.
    """
    entries = _entries(group).get(name, ())
    if not entries:
        there = ", ".join(extension_names(group)) or "nothing"
        raise InvalidRequest(
            f"no installed package has {name!r} in its entry points {group}, which have {there}: install the package "
            "that has it, and dagster-ckpt itself with pip (its folder on the path has no entry points)"
        )
    if len(entries) > 1:
        packages = " and ".join(sorted(entry.dist.name for entry in entries))
        raise InvalidRequest(f"{name!r} of {group} is in {packages}: uninstall one of them")
    try:
        return entries[0].load()
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(
            f"{name!r} of {group}, in package {entries[0].dist.name}, cannot be imported: {error}"
        ) from error


@cache
def _entries(group: str) -> dict[str, tuple[Any, ...]]:
    from importlib.metadata import entry_points

    found: dict[str, tuple[Any, ...]] = {}
    for entry in entry_points(group=group):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found
