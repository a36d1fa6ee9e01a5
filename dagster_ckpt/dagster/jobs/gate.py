"""Gate before a restore: its snapshot is chosen, by one launch; where it was approved, nothing has happened since."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.restore.start_checks import refuse_start
from dagster_ckpt.core.restore.start_facts import RequestFacts, StartFacts, finds_nothing
from dagster_ckpt.core.restore_point import Latest, Nothing, restore_point
from dagster_ckpt.core.supervision.approval import approval_of, refuse_outdated
from dagster_ckpt.core.supervision.ownership import Alive
from dagster_ckpt.core.units import ago, counted, duration, moment, size
from dagster_ckpt.dagster.checks.chosen_snapshot import tell_check
from dagster_ckpt.dagster.checks.dry_run import try_restore
from dagster_ckpt.dagster.checks.snapshot_checks import try_chosen
from dagster_ckpt.dagster.jobs.build import RunConfig, looks_only, word_in
from dagster_ckpt.dagster.launchpad import restore_link
from dagster_ckpt.dagster.names import (
    BACKFILL_TAG,
    JOB_TAG,
    RESTORE_OP,
    ROOT_RUN_TAG,
    SKIPPED_TAG,
    STREAM_OP,
    RestoreMode,
    restore_job_name,
    who_of,
)
from dagster_ckpt.dagster.reports.asset import (
    RESTORABLE_CHECK,
    as_text,
    checkpoints_asset_key,
    position_metadata,
)
from dagster_ckpt.dagster.reports.op_log import location_of
from dagster_ckpt.dagster.resources.coordinator import CheckpointCoordinatorResource
from dagster_ckpt.dagster.resources.pipeline import coordinator_of, resources_of, serving_now
from dagster_ckpt.dagster.runs.turn import owner_of
from dagster_ckpt.errors import CheckpointError, InvalidRequest, Unavailable
from dagster_ckpt.operations.restores.preview import RestorePreview, preview_restore
from dagster_ckpt.operations.snapshots.catalog import FoundSnapshot, find_snapshot
from dagster_ckpt.runtime.record_store import Operator, RecordStore


def previewed(
    resource: CheckpointCoordinatorResource, pipeline: CheckpointedPipeline, options: RestoreOptions
) -> RestorePreview:
    """Return the preview of a restore, by files. Raises CheckpointError for a snapshot that cannot be opened."""
    return preview_restore(
        resource.deployment(),
        options,
        pipeline.name,
        graph=pipeline.graph,
        hooks=pipeline.hook_uids,
        code=pipeline,
        coordinator=resource,
    )


def tried(
    found: RestorePreview,
    resources: Any,
    pipeline: CheckpointedPipeline,
    coordinator: CheckpointCoordinatorResource,
    options: RestoreOptions,
) -> RestorePreview:
    """Return the preview with what starting every query on a copy has shown, where that can be tried."""
    if not found.is_possible or options.fork:
        return found
    snapshot = find_snapshot(coordinator.deployment(), options.restore_from, pipeline.name)
    return with_queries_tried(found, resources, pipeline, coordinator, snapshot)


def with_queries_tried(
    found: RestorePreview,
    resources: Any,
    pipeline: CheckpointedPipeline,
    coordinator: CheckpointCoordinatorResource,
    snapshot: FoundSnapshot,
) -> RestorePreview:
    """Return the preview with what starting every query on a copy of the snapshot has shown.

    Raises Unavailable: it could not be tried.
    """
    try:
        try_restore(resources, pipeline, coordinator, snapshot)
    except Unavailable:
        raise
    except CheckpointError as error:
        return replace(found, refusals=(str(error),))
    return found


def sentence_of(preview: RestorePreview) -> str:
    """Return a preview in one sentence."""
    if not preview.is_possible:
        return f"restoring {preview.snapshot} would be refused: {preview.refusals[0]}"
    age = f", completed {ago(time.time() - preview.completed_at)}," if preview.completed_at else ""
    return (
        f"restoring {preview.snapshot}{age} would bring back {size(preview.bytes)} of state in "
        f"{counted(len(preview.stages), 'stage')}, read {counted(len(preview.replay), 'source')} again and touch "
        f"{counted(len(preview.tables), 'table')}"
    )


def preview_metadata(preview: RestorePreview) -> dict[str, Any]:
    """Return a preview as metadata: tables of stages, replay, tables and schemas, and what speaks against it."""
    stages = [
        {
            "stage": s.uid,
            "gets": s.fate.value,
            "batch": _shown(s.batch_id),
            "size": size(s.bytes),
            "files": s.files,
        }
        for s in preview.stages
    ]
    replay = [
        {
            "stage": r.stage,
            "source": r.step.source,
            "from": r.step.end or "-",
            "back_to": r.step.start or "-",
            "units": r.step.number,
            "batches": _shown(r.batches),
        }
        for r in preview.replay
    ]
    tables = [
        {
            "stage": t.stage,
            "table": t.uri,
            "becomes": t.fate.value,
            "rows_leaving": t.rows_leaving,
            "rows_returning": t.rows_returning,
        }
        for t in preview.tables
    ]
    metadata: dict[str, Any] = {
        "possible": dg.MetadataValue.bool(preview.is_possible),
        "state": dg.MetadataValue.text(size(preview.bytes)),
        "compared_with": dg.MetadataValue.text(preview.compared_with),
    }
    metadata |= _age(preview)
    schemas = [
        {"stage": m.stage, "what": m.what, "saved": m.saved, "now": m.current} for m in preview.schemas
    ]
    hooks = [{"hook": h.uid, "gets": h.fate.value} for h in preview.hooks]
    shown = (
        ("stages", stages),
        ("replay", replay),
        ("tables", tables),
        ("hooks", hooks),
        ("state_schema_changes", schemas),
    )
    for name, rows in shown:
        if rows:
            metadata[name] = dg.MetadataValue.table([dg.TableRecord(row) for row in rows])
    metadata |= position_metadata(preview.positions)
    for name, sentences in (("refusals", preview.refusals), ("warnings", preview.warnings)):
        if sentences:
            metadata[name] = dg.MetadataValue.md(
                "\n".join(f"* {as_text(sentence)}" for sentence in sentences)
            )
    return metadata


def _age(preview: RestorePreview) -> dict[str, Any]:
    """Return when the snapshot was completed, and how far back that is."""
    if not preview.completed_at:
        return {}
    since = time.time() - preview.completed_at
    return {
        "completed": dg.MetadataValue.text(f"{moment(preview.completed_at)}, {ago(since)}"),
        "goes_back": dg.MetadataValue.text(duration(max(0.0, since))),
    }


def _shown(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def refuse_backfill(context: dg.OpExecutionContext) -> None:
    """Raise InvalidRequest for a run of a backfill: it would go through all partitions, one restore after the other."""
    request = RequestFacts(
        job=context.job_name, pipeline="", point=Latest(), is_backfill=BACKFILL_TAG in context.run.tags
    )
    refuse_start(StartFacts(request=request))


@dataclass
class RestoreGate:
    """Gate of one run, asked by its first op."""

    context: dg.OpExecutionContext
    pipeline: CheckpointedPipeline
    config: RunConfig
    mode: RestoreMode = field(init=False)
    options: RestoreOptions = field(init=False)
    shown: tuple[str, ...] = ()
    """What was said of the restore before it, line by line."""

    def __post_init__(self) -> None:
        self.mode = word_in(RestoreMode, self.config.mode, setting="mode", op=self._op)
        # A dry run may name its snapshot as checks do.
        self.options = RestoreOptions() if self.mode is RestoreMode.DRY_RUN else self.config.options()

    def is_open(self) -> bool:
        """Return True where the run may claim the pipeline; False: it only said what a restore would do.

        Raises InvalidRequest: the run may not restore what it names.
        """
        refuse_start(StartFacts(request=self._request()))
        if looks_only({"ops": {RESTORE_OP: {"config": self.config.model_dump()}}}):
            # Before it is said: whoever restarts the pipeline passes over this run, however it ends.
            self.context.instance.add_run_tags(self.context.run_id, {SKIPPED_TAG: "true"})
            if self.mode is RestoreMode.DRY_RUN:
                self._dry_run()
            else:
                self._preview()
            return False
        if self.options.restore_from not in (Latest(), Nothing()):
            self._tell()
        if self.options.restore_from != Latest():
            self._warn_of_readers()
        return True

    @property
    def operator(self) -> Operator:
        """The person who has this restored, with the preview they were shown; asked after ``is_open``."""
        return Operator(who=who_of(self.context.run.tags), shown=self.shown)

    @property
    def restore_of_host(self) -> dict[str, Any]:
        """Restore of the run as its ``Host`` has it, with its approval and operator; asked after ``is_open``."""
        return {"restore": self.options, "approved": self.config.approved, "operator": self.operator}

    @property
    def _op(self) -> str:
        return STREAM_OP if self.context.run.tags.get(JOB_TAG) == STREAM_OP else RESTORE_OP

    def _request(self) -> RequestFacts:
        of_restores = self.context.run.tags.get(JOB_TAG) == RESTORE_OP
        chooses = "choose its partition" if of_restores else "name it"
        restores = self.mode is RestoreMode.GATE or (of_restores and self.mode is RestoreMode.RESTORE)
        return RequestFacts(
            job=self.context.job_name,
            pipeline=self.pipeline.name,
            point=self.options.restore_from,
            chooses=chooses if restores else "",
            op=self._op,
            is_backfill=of_restores and BACKFILL_TAG in self.context.run.tags,
            approved=self._refuse_changed if self.config.approved else finds_nothing,
        )

    def _refuse_changed(self) -> None:
        root = self.context.run.tags.get(ROOT_RUN_TAG, self.context.run_id)
        refuse_outdated(self.config.approved, self._record(), self.options, root=root)

    def _record(self) -> CoordinatorRecord:
        store = coordinator_of(self.context, self.pipeline.name).store()
        record = RecordStore(store).record(self.pipeline.name)
        return CoordinatorRecord(pipeline=self.pipeline.name) if record is None else record

    # --- before it ------------------------------------------------------------------------------------------------

    def _dry_run(self) -> None:
        result = try_chosen(self.context, self.pipeline, self.config.restore_from)
        tell_check(self.context, self.pipeline.name, RESTORABLE_CHECK, result)

    def _preview(self) -> None:
        """Preview the restore, by its mode with the link that approves it, as an observation of the partition."""
        context, resource = self.context, coordinator_of(self.context, self.pipeline.name)
        record = self._record()  # before the look: what happens during it is since the preview
        found = previewed(resource, self.pipeline, self.options)
        if self.config.try_queries and not self.pipeline.program:  # whose queries only it can start
            resources = resources_of(context, self.pipeline.name)
            found = tried(found, resources, self.pipeline, resource, self.options)
        metadata = preview_metadata(found)
        if self.mode is RestoreMode.GATE and found.is_possible:
            approval = approval_of(record, self.options)
            shown = f"[Restore {self._named} as previewed →]({self._link(approval)})"
            metadata = {"approve": dg.MetadataValue.md(shown), "approved": approval, **metadata}
            context.log.info(f"nothing was changed; to restore it, launch again with approved: {approval}")
            self._warn_of_owner(record)
        for line in (*found.refusals, *found.warnings):
            context.log.warning(line)
        for line in (*lines_of(found), sentence_of(found)):
            context.log.info(line)
        context.log_event(
            dg.AssetObservation(
                checkpoints_asset_key(self.pipeline.name),
                partition=context.partition_key if context.has_partition_key else None,
                description=sentence_of(found),
                metadata=metadata,
            )
        )
        if self.mode is RestoreMode.GATE and not found.is_possible:
            raise InvalidRequest(sentence_of(found))

    def _warn_of_owner(self, record: CoordinatorRecord) -> None:
        owner = owner_of(record, self.context.instance, now=time.time())
        if isinstance(owner, Alive):
            self.context.log.warning(
                f"run {owner.run_id} of the pipeline is alive: what it does will be since the preview; stop it first, "
                "and preview again"
            )

    def _warn_of_readers(self) -> None:
        """Say that readers of another name find what this fork is about to change."""
        origins = self.pipeline.origins
        serving = serving_now(coordinator_of(self.context, self.pipeline.name), self.pipeline)
        if origins and serving == self.pipeline.name:
            self.context.log.warning(
                f"readers of {origins[-1].name} find the tables of {serving}: they see what this run does to them; "
                "swap them back first where they should not"
            )

    @property
    def _named(self) -> str:
        """Restore point as it was written, else as its key."""
        written = self.config.restore_from
        point = self.options.restore_from
        return written if restore_point(written) == point else str(point)

    def _link(self, approval: str) -> str:
        tags = self.context.run.tags
        given = self.options.model_dump(mode="json", exclude_defaults=True, exclude={"restore_from"})
        return restore_link(
            # Materialize runs a job of Dagster's own, which has no Launchpad
            job_name=self.context.job_name if JOB_TAG in tags else restore_job_name(self.pipeline.name),
            location=location_of(self.context.instance, self.context.run),
            restore_op=self._op,
            restore_from=self._named,
            ui_base_url=coordinator_of(self.context, self.pipeline.name).ui_base_url,
            further={**given, "approved": approval},
        )

    def _tell(self) -> None:
        """Log what is restored, how old it is and where, and what moves with it."""
        resource = coordinator_of(self.context, self.pipeline.name)
        try:
            snapshot = find_snapshot(resource.deployment(), self.options.restore_from, self.pipeline.name)
            found = previewed(resource, self.pipeline, self.options)
        except CheckpointError:
            return  # the restore itself says why
        metadata = snapshot.stored.metadata
        called = f" ({metadata.name})" if metadata.name else ""
        self.shown = (
            (
                f"restoring {snapshot.key}{called}, completed {ago(time.time() - metadata.completed_at)}, "
                f"{size(found.bytes)} of state, from {found.uri}"
            ),
            *(["as previewed and approved"] if self.config.approved else []),
            *lines_of(found),
            *found.warnings,
        )
        for line in self.shown:
            self.context.log.info(line)


def lines_of(found: RestorePreview) -> list[str]:
    """Return the moves of a restore: a line per source that is read again, and per table."""
    moved = (replay for replay in found.replay if not replay.step.is_same)
    lines = [f"source {replay.stage}: {replay.step.sentence()}" for replay in moved]
    for table in found.tables:
        changes = [
            *([f"{counted(table.rows_leaving, 'row leaves', 'rows leave')}"] if table.rows_leaving else []),
            *(
                [f"{counted(table.rows_returning, 'row comes back', 'rows come back')}"]
                if table.rows_returning
                else []
            ),
            *([table.message] if table.message else []),
        ]
        lines.append(f"table {table.uri} of {table.stage}: {', '.join(changes) or table.fate.value}")
    return lines
