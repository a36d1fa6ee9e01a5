"""Deployment of attached programs, and snapshots while one does not run: directories are read as they lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dagster_ckpt.cli.context import Locations, StoreExpectation
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.paths import local_folder
from dagster_ckpt.core.request import CheckpointRequest, Completed
from dagster_ckpt.errors import Declined, InvalidRequest, NotFound
from dagster_ckpt.ext.attach.attempt import ProgramAttempt
from dagster_ckpt.ext.attach.owner import ProgramOwner
from dagster_ckpt.ext.attach.program import ProgramDirectory
from dagster_ckpt.ext.attach.restore import was_interrupted
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.runtime.record_store import RecordStore

DEFAULTS = {
    "incremental": True,
    "num_retained": 3,
    "externalized_checkpoint_retention": "retain_on_cancellation",
}
"""As the coordinator resource has them."""


def program_deployment(base_dir: str) -> tuple[Deployment, Path]:
    """Return the deployment in a folder, and its folder of programs. Raises InvalidRequest."""
    base = Path(local_folder(base_dir, setting="base_dir")).expanduser().absolute()
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(
            f"base_dir: the folder {base} cannot be made, because {error.strerror}: name another one"
        ) from error
    deployment = Locations(base=str(base)).open(StoreExpectation.MAY_BEGIN)
    migrate: Callable[[], None] = getattr(deployment.store, "migrate")  # noqa: B009 - of SQL stores
    migrate()
    return deployment, base / "programs"


def snapshot_of_idle(
    deployment: Deployment, pipeline: PipelineId, request: CheckpointRequest, *, programs: Path
) -> Completed:
    """Take a checkpoint or savepoint of a program that does not run.

    Raises NotFound where none was ever attached under the name; Fenced where it runs; Declined where it failed, or a
    restore was begun and has not ended.
    """
    directory = ProgramDirectory(programs / pipeline)
    program = directory.load()
    if not program.stages:
        raise NotFound(f"no program was ever attached as {pipeline!r} in {programs}")
    owner = ProgramOwner.here(directory.owner)
    owner.wait(lambda: RecordStore(deployment.store).record(pipeline))
    record = RecordStore(deployment.store).record(pipeline)
    if record is None or was_interrupted(record):
        raise Declined(
            f"a restore of {pipeline!r} was interrupted: start the program, which does it again, or restore it again"
        )
    attempt = ProgramAttempt(
        deployment=deployment,
        pipeline=pipeline,
        directory=directory,
        config=CheckpointConfig.layered(DEFAULTS, {"savepoint_dir": deployment.savepoint_dir}).of_stream,
        owner=owner,
        root=record.root,  # the same try: a restore that was made once is not made again after this
        is_periodic=False,
    )
    attempt.change(program)
    try:
        return attempt.confirmed(request)
    finally:
        attempt.close(is_last=False)
