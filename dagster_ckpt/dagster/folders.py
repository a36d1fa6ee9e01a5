"""Folders that cannot be made: told before a run claims its pipeline, by the setting that names them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.dagster.resources import CheckpointCoordinatorResource


def refuse_impossible(resource: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline) -> None:
    """Raise InvalidRequest for a local folder of a run that is not there and cannot be made."""
    places = {
        "store_url": _file_of(resource.resolved_store_url),
        "work_dir": str(resource.resolved_work_dir),
        "table_dir": str(resource.resolved_table_dir(pipeline)),
        "checkpoint_dir": resource.resolved_checkpoint_dir,
        "savepoint_dir": resource.resolved_savepoint_dir,
    }
    for name, place in places.items():
        given = getattr(resource, name) or (name == "table_dir" and pipeline.table_dir)
        refuse_folder(place, setting=name if given or not resource.base_dir else "base_dir")


def refuse_folder(place: str, *, setting: str) -> None:
    """Raise InvalidRequest where a local folder cannot be made; nothing is made, and what is there is not looked at."""
    path = place.removeprefix("file://")
    if not path or "://" in path or Path(path).exists():
        return
    folder = next(above for above in Path(path).absolute().parents if above.exists())
    why = ""
    if not folder.is_dir():
        why = f"{folder} is no folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = f"nothing can be written in {folder}"
    if why:
        raise InvalidRequest(
            f"`{setting}`: the folder {path} cannot be made, because {why}: name another one"
        )


def _file_of(store_url: str) -> str:
    kind, _, path = store_url.partition(":///")
    return str(Path(path).parent) if kind.startswith("sqlite") and path not in ("", ":memory:") else ""
