"""Folders of a run, by the setting that names them: those that cannot be made, and those that go with a container."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
    from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource


def places_of(resource: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline) -> dict[str, str]:
    """Return the places of a run, by the setting that names them: the first of those that ``base_dir`` names."""
    found: dict[str, str] = {}
    for name, place in _places(resource, pipeline).items():
        given = getattr(resource, name) or (name == "table_dir" and pipeline.table_dir)
        setting = name if given or not resource.base_dir else "base_dir"
        if setting not in found or (why_not_written(place) and not why_not_written(found[setting])):
            found[setting] = place
    return found


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


def why_not_written(place: str) -> str:
    """Return why a local folder cannot be made, or written; empty: it can, or is in no file system. Nothing is made."""
    path = place.removeprefix("file://")
    if not path or "://" in path:
        return ""
    folder = next(one for one in (Path(path).absolute(), *Path(path).absolute().parents) if one.exists())
    made = "be written" if folder == Path(path).absolute() else "be made"
    if not folder.is_dir():
        return f"cannot {made}, because {folder} is no folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"cannot {made}, because nothing can be written in {folder}"
    return ""


def _file_of(store_url: str) -> str:
    kind, _, path = store_url.partition(":///")
    return str(Path(path).parent) if kind.startswith("sqlite") and path not in ("", ":memory:") else ""
