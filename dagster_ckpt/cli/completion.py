"""Completion in a shell: names of pipelines and keys of snapshots that the store knows; never an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from dagster_ckpt.cli.locations import Locations

if TYPE_CHECKING:
    from dagster_ckpt.operations.deployment import Deployment


def pipelines_known(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the pipelines of the store that begin so."""
    return _asked(context, incomplete, lambda found: map(str, found.store.pipelines()))


def snapshots_known(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the keys of what can be restored that begin so: of the pipeline named, else of all."""
    from dagster_ckpt.core.ids import pipeline_id
    from dagster_ckpt.operations.snapshots.catalog import list_snapshots

    chosen = str(context.params.get("pipeline") or "")

    def keys(found: Deployment) -> Iterable[str]:
        yield "latest"
        for name in [pipeline_id(chosen)] if chosen else found.store.pipelines():
            yield from (summary.key for summary in list_snapshots(found, name))

    return _asked(context, incomplete, keys)


def _asked(context: click.Context, incomplete: str, ask: Callable[[Deployment], Iterable[str]]) -> list[str]:
    """Ask the deployment that the options typed so far name, or the environment."""
    given = context.params
    places: dict[str, Any] = {
        name: given.get(name) or "" for name in ("base", "store", "storage", "savepoints")
    }
    try:
        found = Locations(**places).open()
        try:
            names = list(dict.fromkeys(ask(found)))
        finally:
            if hasattr(found.store, "close"):
                found.store.close()
    except Exception:  # a shell that completes shows no error: the command itself will
        return []
    return [name for name in names if name.startswith(incomplete)]
