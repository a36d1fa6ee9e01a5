"""Resources of one pipeline, where a code location has several with different ones, and the folders that they name.

A job carries its own, under the keys people spell in run configs (``checkpoint_coordinator``, ``spark``). Checks and
tables of all pipelines share one job of Dagster's, in which a key means one thing: there a pipeline's resources have
keys of its own (``orders__spark``). Code of stages and hooks reads the first kind in both.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.dagster.names import COORDINATOR_KEY, SPARK_KEY, own_resource_key
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.spark import SparkSessionResource
from dagster_ckpt.errors import CheckpointError


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


_OURS = frozenset({COORDINATOR_KEY, SPARK_KEY})


def own_keys(pipeline: PipelineId, keys: Iterable[str]) -> set[str]:
    """Return resource keys for a check or an asset: ours as the pipeline's own."""
    return {own_resource_key(pipeline, key) if key in _OURS else key for key in keys}


def own_resources(pipeline: PipelineId, resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same resources, under the pipeline's own keys."""
    return {own_resource_key(pipeline, key): resource for key, resource in resources.items()}


class PipelineResources:
    """View of an op's resources: ``.spark`` is the pipeline's, whatever its key."""

    def __init__(self, resources: Any, pipeline: PipelineId) -> None:
        self._resources = resources
        self._pipeline = pipeline

    def __getattr__(self, key: str) -> Any:
        own = own_resource_key(self._pipeline, key)
        return getattr(self._resources, own if key in _OURS and hasattr(self._resources, own) else key)


def resources_of(context: Any, pipeline: PipelineId) -> PipelineResources:
    """Return the resources of a running op or check of a pipeline."""
    return PipelineResources(context.resources, pipeline)


def coordinator_of(context: Any, pipeline: PipelineId) -> CheckpointCoordinatorResource:
    """Return the coordinator resource of a running op or check of a pipeline."""
    resource: CheckpointCoordinatorResource = getattr(resources_of(context, pipeline), COORDINATOR_KEY)
    return resource


def spark_of(context: Any, pipeline: PipelineId) -> SparkSessionResource:
    """Return the session resource of a running op or check of a pipeline."""
    resource: SparkSessionResource = getattr(resources_of(context, pipeline), SPARK_KEY)
    return resource


def serving_now(coordinator: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline) -> str:
    """Return the pipeline whose tables readers find; where the store cannot be asked, as if nobody had swapped."""
    from dagster_ckpt.operations.readers.blue_green import who_serves

    try:
        return who_serves(coordinator.deployment(pipeline), pipeline)
    except CheckpointError:
        return pipeline.name if not pipeline.origins else pipeline.origins[-1].name


_VARIABLES = (dg.EnvVar, type(dg.EnvVar.int("NUMBER")))
OurResource = TypeVar("OurResource", CheckpointCoordinatorResource, SparkSessionResource)


@contextmanager
def opened(resource: OurResource) -> Iterator[OurResource]:
    """Yield a copy of a resource, ready for one run; what that run leaves open is closed at the end.

    Dagster makes an instance in memory for this, half a second of imports in a plain program. That is left out where
    the resource takes nothing from it: one of ours, not of a subclass, whose settings name no environment variables.
    """
    settings = {name: getattr(resource, name) for name in resource.model_fields_set}
    kind = type(resource)
    if kind in (CheckpointCoordinatorResource, SparkSessionResource) and not has_variables(settings):
        ready = kind(**settings)
        with ready.held():
            yield ready
    else:
        with resource.process_config_and_initialize_cm() as prepared:
            yield cast("OurResource", prepared)


def has_variables(value: Any) -> bool:
    """Tell whether a setting names a variable of the environment, which is known in a run only."""
    if isinstance(value, Mapping):
        return any(map(has_variables, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(map(has_variables, value))
    return isinstance(value, _VARIABLES)
