"""Facts of a snapshot that a plan of an upgrade compares: no state, no rows, no credentials, and nothing to reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from dagster_ckpt.core.json_text import first_problem, parse_json
from dagster_ckpt.core.model import CheckpointMetadata, FileKind, Record, StageSnapshot
from dagster_ckpt.core.units import size
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot
from dagster_ckpt.operations.snapshots.contents import prepared_batches_of
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.spark.directories import PLAN
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot

MOST_BYTES = 16 << 20
"""Bytes of a facts file that are read; files of this library have some kilobytes a stage."""


class StageFacts(Record):
    """Facts of one stage's query."""

    plan: dict[str, Any] = Field(default_factory=dict)
    """What its state and positions depend on (``plan.json``); empty: nobody wrote it down."""
    prepared: tuple[PreparedBatch, ...] = ()
    """Batches that its sink had staged at the cut, without the names of their files."""
    rows_in_channel: bool = False
    """Rows of its inputs that it had not read are part of the snapshot."""


class ExportedFacts(Record):
    """Facts of one snapshot, as ``dagster-ckpt export`` writes them."""

    format_version: Literal[1] = 1
    snapshot: str
    """As people are told of it."""
    uri: str
    metadata: CheckpointMetadata
    """Without file lists, and without what hooks keep."""
    is_shown: bool = False
    """All tables show its rows: none of them wait."""
    stages: dict[str, StageFacts] = Field(default_factory=dict)


def facts_of_snapshot(stored: StoredSnapshot, shown: int | None = None) -> ExportedFacts:
    """Return the facts of a stored snapshot. Raises Corrupt, NotFound, Unavailable.

    ``shown``: the newest checkpoint that all tables of its pipeline show; None: it is not known.
    """
    metadata = stored.metadata
    bare = metadata.model_copy(
        update={
            "stages": tuple(_bare(stage) for stage in metadata.stages),
            "master_states": dict.fromkeys(metadata.master_states, ""),
        }
    )
    return ExportedFacts(
        snapshot=stored.describe(),
        uri=stored.uri,
        metadata=bare,
        is_shown=metadata.kind.publishes and shown is not None and shown >= metadata.checkpoint_id,
        stages={stage.uid: _stage_facts(stored, stage) for stage in metadata.stages},
    )


def write_facts(deployment: Deployment, found: FoundSnapshot, target: str) -> int:
    """Write a snapshot's facts to a file, a path or a URI; return its bytes. Raises Corrupt, NotFound, Unavailable."""
    content = facts_of_found(deployment, found).model_dump_json(exclude_defaults=True, indent=1).encode()
    folder, _, name = (target if "://" in target else str(Path(target).absolute())).rpartition("/")
    storage = deployment.open_storage(folder)
    storage.delete([name])
    storage.create(name, content)
    return len(content)


def facts_of_found(deployment: Deployment, found: FoundSnapshot) -> ExportedFacts:
    """Return the facts of a snapshot, of which the coordinator store knows whether its rows are shown."""
    record = RecordStore(deployment.store).record(found.pipeline)
    return facts_of_snapshot(found.stored, None if record is None else record.shown_id)


def _bare(stage: StageSnapshot) -> StageSnapshot:
    return stage.model_copy(update={"manifest": None, "subtask_handles": None, "coordinator_state": None})


def _stage_facts(stored: StoredSnapshot, stage: StageSnapshot) -> StageFacts:
    entries = stored.entries(stage)
    written = next((entry for entry in entries if entry.path == PLAN), None)
    try:
        plan = {} if written is None else parse_json(stored.read(stage, written))
    except ValueError as error:
        raise Corrupt(f"{PLAN} of stage {stage.uid} of {stored.describe()} is no JSON") from error
    return StageFacts(
        plan=plan if isinstance(plan, dict) else {},
        prepared=tuple(
            batch.model_copy(update={"files": ()}) for batch in prepared_batches_of(stored, stage)
        ),
        rows_in_channel=any(entry.kind is FileKind.CHANNEL for entry in entries),
    )


def facts_in(file: Path) -> ExportedFacts:
    """Return the facts in a file. Raises InvalidRequest for one that cannot be read, Corrupt for another content."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise Corrupt(f"{file} has over {size(MOST_BYTES)}: it holds no facts of a snapshot")
        return ExportedFacts.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error}") from error
    except ValidationError as error:
        raise Corrupt(
            f"{file} does not hold facts that this version understands ({first_problem(error)}): write it again with "
            "dagster-ckpt export SNAPSHOT FILE --facts"
        ) from error
