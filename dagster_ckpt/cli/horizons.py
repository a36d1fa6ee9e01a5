"""For how long snapshots can be restored, with the coordinator resource that the code declares."""

from __future__ import annotations

import time

from dagster_ckpt.cli.code_location import CodeOptions, declared_in, job_in
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.restore.horizon import Horizon


def horizons_in(code: CodeOptions, pipeline: PipelineId) -> tuple[Horizon, ...]:
    """Return for how long each retained snapshot can be restored, newest first. Raises NotFound, InvalidRequest."""
    import dagster as dg

    from dagster_ckpt.dagster.names import COORDINATOR_KEY, care_job_name
    from dagster_ckpt.operations.restores.horizon import (
        restorability,  # a third of what a plain `list` would import
    )

    declared = declared_in(code, pipeline)
    assert declared is not None
    job = job_in(code, care_job_name(pipeline))
    with dg.build_resources({COORDINATOR_KEY: job.resource_defs[COORDINATOR_KEY]}) as resources:
        return restorability(declared, getattr(resources, COORDINATOR_KEY), now=time.time())
