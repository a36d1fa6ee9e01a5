"""Names of pipelines that Dagster can carry: jobs, ops and resources are named after them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import permutations

from dagster._core.definitions.utils import DISALLOWED_NAMES

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.dagster import names as of
from dagster_ckpt.errors import InvalidRequest


def refuse_names(pipelines: Sequence[str], *, forks: Collection[str] = ()) -> None:
    """Raise InvalidRequest for a name Dagster cannot carry, or one that is the name of another pipeline's job."""
    for name in pipelines:
        if not name.isidentifier() or name in DISALLOWED_NAMES:
            better = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
            better = (
                better
                if better != name and better.isidentifier()
                else f"{of.PIPELINE_TAG.split('/')[1]}_{better}"
            )
            raise InvalidRequest(
                f"pipeline {name!r} cannot be carried by Dagster, which names its jobs after it: use letters, digits "
                f"and '_', beginning with a letter and no word of Dagster's own, such as name={better!r}"
            )
    for one, other in permutations(pipelines, 2):
        jobs = _JOBS if one in forks else _JOBS - _OF_FORKS
        if other.startswith(f"{one}_") and other.removeprefix(f"{one}_") in jobs:
            raise InvalidRequest(
                f"pipeline {other!r} has the name of a job of pipeline {one!r}: give it another name"
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
