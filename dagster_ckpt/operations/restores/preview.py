"""Preview of a restore, decided by the same functions as the restore itself; nothing is changed, no Spark started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.core.chains import with_kept_chains
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.graph import Edge, PipelineGraph, StageSpec
from dagster_ckpt.core.ids import PipelineId, StageUid
from dagster_ckpt.core.model import CheckpointMetadata, FileKind, StageSnapshot
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.core.restore.choice import newest_on_line
from dagster_ckpt.core.restore.from_snapshot import planned_restore
from dagster_ckpt.core.restore.matching import (
    MatchedStages,
    NonRestoredState,
    StageMatch,
    match_stages,
    other_inputs,
)
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.operations.readers.open_sink import Coordinator, pipeline_sinks
from dagster_ckpt.operations.restores.parts import (
    HookPreview,
    TableFate,
    TablePreview,
    late_readers,
    of_fork,
    preview_hooks,
    preview_sources,
    preview_table,
    refused_by_sinks,
    table_plan,
)
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.operations.snapshots.contents import missing_files, operators_of, readers_of
from dagster_ckpt.operations.snapshots.diff import OffsetStep, step_between
from dagster_ckpt.runtime.record_store import RecordStore
from dagster_ckpt.runtime.restore_facts import facts_of
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.snapshot.capture import latest_committed_batch, read_offsets
from dagster_ckpt.spark.snapshot.stored import StoredSnapshot, open_snapshot
from dagster_ckpt.spark.source.positions import SourceLag

if TYPE_CHECKING:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


class StageFate(StrEnum):
    """Fate of a stage in a restore."""

    RESTORED = "restored"
    RENAMED = "renamed"
    """Its state was saved under an earlier uid."""
    RESCALED = "rescaled"
    """Its state is spread over another number of partitions."""
    NEW = "new"
    """It begins without state."""
    DROPPED = "dropped"
    """Saved, and no longer in the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePreview:
    """One stage; sizes in bytes."""

    uid: str
    fate: StageFate
    saved_uid: str = ""
    batch_id: int | None = None
    partitions: tuple[int, int] | None = None
    """State partitions as saved and as wanted, where they differ."""
    bytes: int = 0
    files: int = 0
    formats: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Replay of a source stage: what it reads again."""

    stage: str
    step: OffsetStep
    """From the restore point to where the source is now."""
    batches: int | None
    """Micro-batches since; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaMismatch:
    """State as it was saved, and as the pipeline kept it when it last ran."""

    stage: str
    what: str
    saved: str
    current: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePreview:
    """The answer. ``refusals`` empty: the restore can be made right."""

    pipeline: PipelineId
    snapshot: str
    uri: str
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    compared_with: str
    """What "now" means in ``replay`` and ``schemas``."""
    stages: tuple[StagePreview, ...]
    replay: tuple[Replay, ...]
    tables: tuple[TablePreview, ...]
    schemas: tuple[SchemaMismatch, ...]
    hooks: tuple[HookPreview, ...] = ()
    positions: tuple[SourceLag, ...] = ()
    """Where sources would read on in their topics."""
    completed_at: float = 0.0

    @property
    def is_possible(self) -> bool:
        """True where the restore would not be refused."""
        return not self.refusals

    @property
    def bytes(self) -> int:
        """Size of the state that is brought back."""
        return sum(stage.bytes for stage in self.stages if stage.fate is not StageFate.DROPPED)


def preview_restore(
    deployment: Deployment,
    options: RestoreOptions,
    pipeline: PipelineId,
    *,
    graph: PipelineGraph | None = None,
    hooks: Sequence[str] | None = None,
    code: CheckpointedPipeline | None = None,
    coordinator: Coordinator | None = None,
    snapshot_of: PipelineId | None = None,
) -> RestorePreview:
    """Preview a start of ``pipeline`` with ``options``.

    ``graph``: the pipeline as its code has it now; without it, as it last ran. ``hooks``: their uids; without these
    their states are not compared. ``code``: the pipeline itself, whose sources are asked whether they can read on.
    ``coordinator``: where its tables are: its sinks are asked whether they can show, or begin with, such rows.
    ``snapshot_of``: whose keys ``restore_from`` has (a fork). Raises NotFound, Corrupt, InvalidRequest, Unavailable.
    """
    found = find_snapshot(deployment, options.restore_from, snapshot_of or pipeline)
    record = _record_or_empty(deployment, pipeline)
    now = _Now.of(deployment, record)
    wanted = graph or _graph_of(pipeline, now.metadata or found.stored.metadata)
    refusals, decision, metadata = [*_missing(found.stored)], None, found.stored.metadata
    try:
        wanted = with_kept_chains(wanted, metadata.chains) if graph else wanted
        decision = planned_restore(facts_of(record), found.location.uri, metadata, options, wanted)
    except CheckpointError as error:
        refusals.append(str(error))
    matched_hooks, hook_refusal = preview_hooks(hooks, metadata, options)
    refusals += hook_refusal
    stages = _matched(wanted, metadata)
    matches = stages.matches if stages is not None else ()
    sources = preview_sources(deployment, found.stored, code, options, matches)
    refusals += sources.refusals
    refusals += [reason for match in matches if (reason := other_inputs(match))]
    refusals += late_readers(wanted, stages, code)
    sinks = None if code is None or coordinator is None or code.program else pipeline_sinks(code, coordinator)
    tables = _tables(found.stored, matches, wanted, options, sinks)
    if decision is not None and graph is not None and sinks is not None:
        refusals += refused_by_sinks(found.stored, decision, sinks, options, record)
    refusals += [
        f"table {t.uri} of stage {t.stage!r}: {t.message}" for t in tables if t.fate is TableFate.IMPOSSIBLE
    ]
    return RestorePreview(
        pipeline=pipeline,
        snapshot=found.stored.describe(),
        uri=found.location.uri,
        refusals=tuple(dict.fromkeys(refusals)),
        warnings=(*_warnings(found, tables, graph), *sources.warnings),
        compared_with=now.name,
        stages=tuple(_stages(stages, metadata)),
        replay=tuple(_replay(wanted, matches, now, found.stored)),
        tables=tuple(tables),
        schemas=tuple(_schemas(found.stored, matches, now)),
        hooks=matched_hooks,
        positions=sources.lags,
        completed_at=metadata.completed_at,
    )


def _tables(
    stored: StoredSnapshot,
    matches: Sequence[StageMatch],
    wanted: PipelineGraph,
    options: RestoreOptions,
    sinks: PipelineSinks | None,
) -> list[TablePreview]:
    """Preview every matched stage's table; the tables of a fork's beginning are the fork's own."""
    is_own = stored.metadata.pipeline in (wanted.pipeline, *wanted.previous_names)
    is_beginning = not is_own and not options.fork
    previews = (
        (match.uid, preview_table(stored, match, table_plan(options, match.uid), sinks)) for match in matches
    )
    return [
        of_fork(preview, wanted.pipeline, uid, table_plan(options, uid)) if is_beginning else preview
        for uid, preview in previews
        if preview is not None
    ]


def _record_or_empty(deployment: Deployment, pipeline: PipelineId) -> CoordinatorRecord:
    known = RecordStore(deployment.store).record(pipeline)  # none of a fork that has not run yet
    return CoordinatorRecord(pipeline=pipeline) if known is None else known


def _graph_of(pipeline: PipelineId, metadata: CheckpointMetadata) -> PipelineGraph:
    """Return the graph a snapshot was taken of."""
    return PipelineGraph(
        pipeline=pipeline,
        stages=tuple(
            StageSpec(uid=StageUid(s.uid), parallelism=s.parallelism, max_parallelism=s.max_parallelism)
            for s in metadata.stages
        ),
        edges=tuple(Edge(upstream=StageUid(a), downstream=StageUid(b)) for a, b in metadata.edges),
    )


# --- would it be refused? -------------------------------------------------------------------------------------


def _missing(source: StoredSnapshot) -> Iterator[str]:
    try:
        missing = missing_files(source)
    except Corrupt as error:
        yield str(error)
        return
    yield from missing[:5]
    if len(missing) > 5:
        yield f"{len(missing) - 5} more files are missing"


def _matched(graph: PipelineGraph, metadata: CheckpointMetadata) -> MatchedStages | None:
    try:
        return match_stages(graph, metadata, non_restored=NonRestoredState.SKIP)
    except InvalidRequest:
        return None  # it is among the refusals


def _warnings(found: FoundSnapshot, tables: list[TablePreview], graph: PipelineGraph | None) -> Iterator[str]:
    if graph is None:
        yield "the pipeline's code was not looked at: stages are compared with those of its last snapshot"
    for stage in found.stored.metadata.stages:
        if stage.own_sink:
            yield f"stage {stage.uid}: {stage.own_sink}"
    if found.known is None:
        yield "the coordinator store does not know this snapshot: nobody keeps it from being deleted"
    for table in tables:
        if table.fate is TableFate.KEEPS_ROWS:
            yield f"table {table.uri} keeps rows past the restore point: what is read again is in it twice"


# --- what it brings -------------------------------------------------------------------------------------------


def _stages(matched: MatchedStages | None, metadata: CheckpointMetadata) -> Iterator[StagePreview]:
    if matched is None:
        yield from (_stage(s, s.uid, StageFate.RESTORED) for s in metadata.stages)
        return
    for match in matched.matches:
        fate = StageFate.RENAMED if match.renamed else StageFate.RESTORED
        rescaled = match.parallelism > 1 and match.rescaled
        partitions = (match.snapshot.parallelism, match.parallelism) if rescaled else None
        yield _stage(match.snapshot, match.uid, StageFate.RESCALED if rescaled else fate, partitions)
    yield from (StagePreview(uid=uid, fate=StageFate.NEW) for uid in matched.new)
    for uid in matched.skipped:
        saved = metadata.stage(uid)
        if saved is not None:
            yield _stage(saved, uid, StageFate.DROPPED)


def _stage(
    saved: StageSnapshot, uid: str, fate: StageFate, partitions: tuple[int, int] | None = None
) -> StagePreview:
    return StagePreview(
        uid=uid,
        fate=fate,
        saved_uid=saved.uid,
        batch_id=saved.batch_id,
        partitions=partitions,
        bytes=saved.metrics.bytes_full,
        files=saved.metrics.files_full,
        formats=saved.state_formats,
    )


# --- where the pipeline is now --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Now:
    """Present state of the pipeline: its working directory if on this machine, else its newest snapshot."""

    name: str
    metadata: CheckpointMetadata | None
    newest: StoredSnapshot | None
    directory: Path | None

    @classmethod
    def of(cls, deployment: Deployment, record: CoordinatorRecord) -> _Now:
        """Look for both."""
        entry = newest_on_line(facts_of(record))
        newest: StoredSnapshot | None = None
        if entry is not None:
            with suppress(NotFound, Corrupt):
                storage = deployment.open_storage(entry.location.base_uri)
                newest = open_snapshot(storage, entry.location.folder, recorded=entry.metadata_checksum)
        directory = Path(record.working_directory) if record.working_directory else None
        there = directory if directory is not None and directory.is_dir() else None
        name = "nothing: it has not run yet"
        if there is not None:
            name = f"its working directory {there}"
        elif entry is not None and newest is not None:
            name = f"its newest snapshot, {entry.key}"
        return cls(name=name, metadata=newest.metadata if newest else None, newest=newest, directory=there)

    def position(self, uid: str) -> tuple[int | None, Mapping[str, str]] | None:
        """Return last committed batch and offsets of a stage; None: not known."""
        if self.directory is not None:
            query = StageDirectory(self.directory / uid).query
            batch = latest_committed_batch(query)
            if batch is not None:
                try:
                    return batch, read_offsets(query, batch)
                except CheckpointError:
                    pass  # removed at this moment: the newest snapshot is the next best
        saved = self.metadata.stage(uid) if self.metadata else None
        return None if saved is None else (saved.batch_id, saved.offsets)


def _replay(
    graph: PipelineGraph, matches: tuple[StageMatch, ...], now: _Now, stored: StoredSnapshot
) -> Iterator[Replay]:
    sources = {stage.uid for stage in graph.sources}
    for match in matches:
        if match.uid not in sources:
            continue
        saved = match.snapshot
        batch, offsets = now.position(match.uid) or now.position(saved.uid) or (None, {})
        batches = None if batch is None else batch - (-1 if saved.batch_id is None else saved.batch_id)
        readers = readers_of(stored, saved)
        for source in dict.fromkeys([*saved.offsets, *offsets]):
            step = step_between(source, saved.offsets.get(source), offsets.get(source))
            yield Replay(stage=readers.get(source, match.uid), step=step, batches=batches)


def _schemas(source: StoredSnapshot, matches: tuple[StageMatch, ...], now: _Now) -> Iterator[SchemaMismatch]:
    """Compare operators and state schemas with those of the newest snapshot: the last the code is known to have had."""
    if now.newest is None or same_place(
        f"{now.newest.storage.base_uri}/{now.newest.folder}", f"{source.storage.base_uri}/{source.folder}"
    ):
        return
    for match in matches:
        current = now.newest.metadata.stage(match.uid)
        if current is None:
            continue
        try:
            saved, latest = _shape(source, match.snapshot), _shape(now.newest, current)
        except Corrupt:
            continue  # it is among the refusals
        for what in sorted(saved.keys() | latest.keys()):
            if saved.get(what) != latest.get(what):
                yield SchemaMismatch(
                    stage=match.uid,
                    what=what,
                    saved=saved.get(what, "not there"),
                    current=latest.get(what, "not there"),
                )


def _shape(source: StoredSnapshot, snapshot: StageSnapshot) -> dict[str, str]:
    """Return operators, formats and state schemas of a stage as text that can be compared."""
    operators = {
        f"operator {o.operator}": f"{o.name} ({', '.join(o.stores)}) {o.properties}".strip()
        for o in operators_of(source, snapshot)
    }
    schemas = {
        e.path: e.checksum
        for e in source.entries(snapshot)
        if e.kind is FileKind.STATE_SCHEMA and e.partition == 0 and e.path.endswith("/_metadata/schema")
    }
    provider = snapshot.state_formats.get("provider")
    return operators | schemas | ({"provider": provider} if provider else {})
