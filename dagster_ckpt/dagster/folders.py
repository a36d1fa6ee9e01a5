"""Folders of a run, by the setting that names them: those that cannot be made, and those that go with a container."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import InvalidRequest

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.dagster.resources import CheckpointCoordinatorResource


def refuse_impossible(resource: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline) -> None:
    """Raise InvalidRequest for a local folder of a run that is not there and cannot be made."""
    for name, place in _places(resource, pipeline).items():
        given = getattr(resource, name) or (name == "table_dir" and pipeline.table_dir)
        refuse_folder(place, setting=name if given or not resource.base_dir else "base_dir")


def _places(resource: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline) -> dict[str, str]:
    return {
        "store_url": _file_of(resource.resolved_store_url),
        "work_dir": str(resource.resolved_work_dir),
        "table_dir": str(resource.resolved_table_dir(pipeline)),
        "checkpoint_dir": resource.resolved_checkpoint_dir,
        "savepoint_dir": resource.resolved_savepoint_dir,
    }


# --- what a container takes with it -----------------------------------------------------------------------------

MOUNTS = Path("/proc/self/mountinfo")
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
_OF_CONTAINER = frozenset({"overlay", "tmpfs", "fuse-overlayfs", "aufs"})
_EMPTY_DIR = "kubernetes.io~empty-dir"


def gone_with_container(
    resource: CheckpointCoordinatorResource,
    pipeline: CheckpointedPipeline,
    *,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Return which places that must outlive a run are of this container, in a sentence; empty: none, or no container.

    A working directory may go: the next run builds it from a checkpoint.
    """
    if not environment.get("KUBERNETES_SERVICE_HOST") and not any(mark.exists() for mark in CONTAINER_MARKS):
        return ""
    mounts = _mounts()
    places = {name: place for name, place in _places(resource, pipeline).items() if name != "work_dir"}
    lost = [
        f"{name} ({place})" for name, place in places.items() if _goes(place.removeprefix("file://"), mounts)
    ]
    if not lost:
        return ""
    return (
        f"{', '.join(lost)}: on a disk of this container, which goes with it. A run in another one does not find "
        "what this one leaves: name a volume that lasts, a database (store_url), an object store (checkpoint_dir, "
        "savepoint_dir)"
    )


def _mounts() -> dict[str, bool]:
    """Return whether what is mounted goes with this container, by where it is mounted."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        fields, _, kind = line.partition(" - ")
        root, point = fields.split(" ")[3:5]
        found[point.replace("\\040", " ")] = kind.split(" ")[0] in _OF_CONTAINER or _EMPTY_DIR in root
    return found


def _goes(place: str, mounts: Mapping[str, bool]) -> bool:
    if not place or "://" in place:
        return False
    path = Path(os.path.realpath(place))
    return next((mounts[str(above)] for above in (path, *path.parents) if str(above) in mounts), False)


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
