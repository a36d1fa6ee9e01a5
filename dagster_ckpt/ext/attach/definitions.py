"""``attached_program``: a program that starts its queries itself, operated from Dagster as pipelines are."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.config import CheckpointConfig
from dagster_ckpt.core.graph import PipelineGraph
from dagster_ckpt.core.ids import pipeline_id
from dagster_ckpt.core.paths import local_folder
from dagster_ckpt.core.request import CheckpointRequest
from dagster_ckpt.dagster.definitions import build_pipeline_definitions
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.attach.idle import program_deployment, snapshot_of_idle
from dagster_ckpt.ext.attach.program import ProgramDirectory

if TYPE_CHECKING:
    import dagster as dg

    from dagster_ckpt.dagster.options import PipelineOptions


@dataclass(frozen=True, kw_only=True)
class AttachedPipeline(CheckpointedPipeline):
    """Pipeline whose stages are the queries that a program has started."""

    directory: ProgramDirectory

    @property
    def graph(self) -> PipelineGraph:
        """The stages there are by now. Raises InvalidRequest before the first."""
        return self.directory.load().graph(self.name)

    def snapshot_of_idle(self, request: CheckpointRequest) -> tuple[int, str]:
        """Read the directories of its queries as they lie. Raises NotFound, Fenced, Declined."""
        deployment, programs = program_deployment(str(self.directory.root.parents[1]))
        done = snapshot_of_idle(deployment, self.name, request, programs=programs)
        return int(done.metadata.checkpoint_id), done.location.uri


def attached_program(
    program: str | Path,
    *,
    base_dir: str,
    name: str = "",
    arguments: Sequence[str] = (),
    options: PipelineOptions | None = None,
    **settings: Any,
) -> dg.Definitions:
    """Return the definitions that operate a program as it is from Dagster: jobs, asset, sensors and schedules.

    The job ``name`` runs it in a process beside the run, attached, until it ends; ``<name>_restore`` runs it from a
    snapshot, ``<name>_savepoint`` takes one while it runs, ``<name>_care`` reads one back.

    Args:
        program: file of the program.
        base_dir: folder that keeps its checkpoints, on a local disk; as ``attach`` has it.
        name: of the pipeline; default: the file's.
        arguments: of the program.
        options: as of ``build_pipeline_definitions``. With ``launch`` your own client and command run it: that calls
            ``attach``, or is ``dagster-ckpt run``.
        settings: how checkpoints are taken, as in ``CheckpointConfig`` (``interval="1 min"``).

    Raises:
        InvalidRequest: no such file, or a setting that cannot be.
    """
    pipeline = attached_pipeline(
        Path(program),
        name=name or Path(program).stem,
        base_dir=base_dir,
        arguments=arguments,
        settings=settings,
    )
    return build_pipeline_definitions(
        pipeline,
        coordinator=CheckpointCoordinatorResource(base_dir=str(pipeline.directory.root.parents[1])),
        options=options,
    )


def attached_pipeline(
    program: Path,
    *,
    name: str,
    base_dir: str,
    arguments: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> AttachedPipeline:
    """Return a program as a pipeline. Raises InvalidRequest."""
    if not program.is_file():
        raise InvalidRequest(f"there is no program {program}: give the path of its file")
    if not base_dir:
        raise InvalidRequest(f"base_dir: say in which folder the checkpoints of {program.name} are to be")
    base = Path(local_folder(base_dir, setting="base_dir")).expanduser().absolute()
    own = pipeline_id(name)
    CheckpointConfig.of(**(settings or {}))
    command = (sys.executable, "-m", "dagster_ckpt.cli", "run", str(program.absolute()))
    return AttachedPipeline(
        name=own,
        stages={},
        upstream={},
        checkpointing=dict(settings or {}),
        description=f"Program `{program.name}`, as it is.",
        program=(*command, "-p", own, "--base-dir", str(base), "--", *arguments),
        directory=ProgramDirectory(base / "programs" / own),
    )
