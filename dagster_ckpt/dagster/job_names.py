"""Names that Dagster can carry: jobs, ops, resources and assets are named after pipelines and stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from dagster._core.definitions.utils import DISALLOWED_NAMES

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.dagster import names as of
from dagster_ckpt.dagster.asset import checkpoints_asset_key
from dagster_ckpt.dagster.table_assets import table_asset_key
from dagster_ckpt.errors import InvalidRequest

LONGEST_PIPELINE = 63
"""Most characters of a tag's value in Dagster; runs are found by the tag that names their pipeline."""


def refuse_names(pipelines: Sequence[CheckpointedPipeline]) -> None:
    """Raise InvalidRequest for a name that Dagster cannot carry, or that something else of the code location has."""
    for pipeline in pipelines:
        _refuse_name(pipeline.name)
        for uid in pipeline.stages:
            if uid in DISALLOWED_NAMES:
                raise InvalidRequest(
                    f"stage {uid!r} of pipeline {pipeline.name!r} cannot be carried by Dagster, which names its op "
                    f"after it: it is a word of Dagster's or Python's own; use another, such as "
                    f"uid={_better(uid, 'stage')!r} (previous_uids=({uid!r},) keeps its state)"
                )
    for one, other in permutations(pipelines, 2):
        jobs = _JOBS if one.origins else _JOBS - _OF_FORKS
        if other.name.startswith(f"{one.name}_") and other.name.removeprefix(f"{one.name}_") in jobs:
            raise InvalidRequest(
                f"pipeline {other.name!r} has the name of a job of pipeline {one.name!r}: give it another name"
            )
    _refuse_assets(pipelines)


def _refuse_name(name: str) -> None:
    if not name.isidentifier() or name in DISALLOWED_NAMES:
        raise InvalidRequest(
            f"pipeline {name!r} cannot be carried by Dagster, which names its jobs after it: use letters, digits "
            f"and '_', beginning with a letter and no word of Dagster's own, such as name={_better(name, 'pipeline')!r}"
        )
    if len(name) > LONGEST_PIPELINE:
        raise InvalidRequest(
            f"the name of pipeline {name!r} has {len(name)} characters, and Dagster tags runs with it, by at most "
            f"{LONGEST_PIPELINE}: give it a shorter name"
        )


def _better(name: str, kind: str) -> str:
    better = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return better if better != name and better.isidentifier() else f"{kind}_{better}"


def _refuse_assets(pipelines: Sequence[CheckpointedPipeline]) -> None:
    """Raise InvalidRequest where the table of a sink would be the same asset as another table, or as checkpoints."""
    owners = {
        checkpoints_asset_key(one.name): f"the checkpoints of pipeline {one.name!r}" for one in pipelines
    }
    for pipeline in pipelines:
        for uid, stage in pipeline.stages.items():
            if stage.table is None:
                continue
            key = table_asset_key(pipeline, uid)
            owner = owners.setdefault(key, f"the table of sink {uid!r} of pipeline {pipeline.name!r}")
            if owner != f"the table of sink {uid!r} of pipeline {pipeline.name!r}":
                raise InvalidRequest(
                    f"sink {uid!r} of pipeline {pipeline.name!r} has the asset {key.to_user_string()!r}, and that is "
                    f"{owner}: give the sink another uid, or an asset of its own (asset='.../{uid}')"
                )


_JOBS = {
    name("").removeprefix("_")
    for label, name in vars(of).items()
    if label.endswith("_job_name") and label != "epoch_job_name"
}
_OF_FORKS = {
    name(PipelineId("")).removeprefix("_")
    for name in (of.compare_job_name, of.swap_job_name, of.replay_job_name)
}
