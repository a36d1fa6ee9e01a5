"""Is there what the tables showed at a snapshot, which holds none of their rows? They are asked, and not changed."""

from __future__ import annotations

from dataclasses import replace

from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.model import StageSnapshot
from dagster_ckpt.errors import CheckpointError, Corrupt
from dagster_ckpt.operations.readers.load_table import cut_of
from dagster_ckpt.operations.snapshots.verify import FileProblem, ProblemKind, Verified
from dagster_ckpt.spark.sink.opening import open_at
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot


def with_tables(verified: Verified, source: StoredSnapshot) -> Verified:
    """Add what is gone of the tables that the snapshot's sinks write, and which could not be asked.

    Staged rows are read, of published files the size is compared: their content is the table format's own.
    """
    problems: list[FileProblem] = []
    remarks: list[str] = []
    for stage in source.metadata.stages:
        cut = stage.table
        if cut is None or (cut.head is None and not cut.prepared):
            continue
        try:
            sink = open_at(cut.uri, cut.sink, PipelineId(source.metadata.pipeline), StageUid(stage.uid))
            found = None if sink is None else sink.difference(cut_of(source, stage, cut))
        except Corrupt as error:
            problems.append(_problem(stage, cut.uri, str(error)))
        except CheckpointError as error:
            remarks.append(f"the table of stage {stage.uid} ({cut.uri}) could not be asked: {error}")
        else:
            if found is None:
                remarks.append(
                    f"the table of stage {stage.uid} ({cut.uri}) was not asked: its next run does that"
                )
    return replace(
        verified,
        problems=tuple(sorted((*verified.problems, *problems), key=lambda p: (p.stage, p.path))),
        remarks=(*verified.remarks, *remarks),
    )


def _problem(stage: StageSnapshot, path: str, message: str) -> FileProblem:
    return FileProblem(stage=stage.uid, path=path, problem=ProblemKind.MISSING, message=message)
