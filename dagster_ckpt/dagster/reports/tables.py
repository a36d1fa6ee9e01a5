"""The published tables of a pipeline as assets: what downstream assets depend on.

Asset key ``[<pipeline>, <sink>]`` unless the sink names one (``@spark_sink(asset="lake/orders")``); upstream are
the assets its sources name (``@spark_source(asset="raw/orders")``). A table is materialized after its rows were
published, and when a restore took rows back: both give it another data version, so what depends on it is stale.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ckpt.authoring.pipeline import CheckpointedPipeline
from dagster_ckpt.authoring.stages import StageDefinition, StageRole
from dagster_ckpt.core.checkpoint.tables import LATE
from dagster_ckpt.core.ids import StageUid
from dagster_ckpt.core.model import SnapshotMetrics
from dagster_ckpt.core.units import counted
from dagster_ckpt.dagster.launchpad import CodeLocation, launchpad_link
from dagster_ckpt.dagster.names import CARE_OP, PIPELINE_TAG, CareAction, care_job_name
from dagster_ckpt.dagster.reports.asset import LATE_CHECK, checkpoints_asset_key

if TYPE_CHECKING:
    from dagster_ckpt.operations.readers.blue_green import Swapped
    from dagster_ckpt.spark.stage_report import TableChanged

DATA_VERSION_TAG = "dagster/data_version"
_NOWHERE = CodeLocation()


def table_asset_key(pipeline: CheckpointedPipeline, uid: StageUid) -> dg.AssetKey:
    """Return the key of a sink's table, or of a derived table."""
    stage = pipeline.stages.get(uid)
    if stage is not None and stage.role is not StageRole.SINK:
        return dg.AssetKey([pipeline.name, "quarantine", uid])
    named = "" if stage is None else stage.asset
    return dg.AssetKey.from_user_string(named) if named else dg.AssetKey([pipeline.name, uid])


def build_table_assets(
    pipeline: CheckpointedPipeline,
    *,
    group_name: str,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    freshness_policy: dg.FreshnessPolicy | None = None,
    automation_condition: dg.AutomationCondition[Any] | None = None,
) -> list[dg.AssetSpec]:
    """Return the assets of a pipeline's sinks and derived tables."""

    def spec(uid: StageUid, **own: Any) -> dg.AssetSpec:
        return dg.AssetSpec(
            table_asset_key(pipeline, uid),
            group_name=group_name,
            owners=list(owners),
            tags={PIPELINE_TAG: pipeline.name, **(tags or {})},
            freshness_policy=freshness_policy,
            automation_condition=automation_condition,
            **own,
        )

    sinks = [
        spec(
            uid,
            description=_description(pipeline, stage),
            deps=_sources_of(pipeline, uid),
            kinds={"spark", _kind(stage)},
            metadata={"sink": uid, **({"key": ", ".join(stage.table.key)} if stage.table.key else {})},
        )
        for uid, stage in pipeline.stages.items()
        if stage.table is not None
    ]
    derived = [
        spec(
            table.uid,
            description=table.description or f"Computed from what pipeline `{pipeline.name}` publishes.",
            deps=[table_asset_key(pipeline, read) for read in table.reads],
            kinds={"spark", "parquet"},
        )
        for table in pipeline.derived
    ]
    return [*sinks, *derived]


def changed_events(
    pipeline: CheckpointedPipeline,
    change: TableChanged,
    *,
    serving: str,
    location: CodeLocation = _NOWHERE,
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """Yield the events of a changed table: of its own asset, and of the one readers know where it serves them.

    ``serving``: pipeline whose tables readers find; ``location``: of the pipeline's jobs.
    """
    if is_served(pipeline, serving):
        yield changed_event(pipeline, change, location)
        yield from served_events(pipeline, change, serving=serving)
        return
    text, metadata = _told(change)
    yield dg.AssetObservation(
        table_asset_key(pipeline, change.uid),
        description=f"{text}; readers find the table of pipeline {serving}",
        metadata=metadata,
    )


def is_served(pipeline: CheckpointedPipeline, serving: str) -> bool:
    """Return False where readers of the pipeline's own name find another pipeline's tables."""
    return bool(pipeline.origins) or serving == pipeline.name


def served_events(
    pipeline: CheckpointedPipeline, change: TableChanged, *, serving: str
) -> Iterator[dg.AssetMaterialization]:
    """Yield the events of a fork that serves: the asset that readers know is materialized."""
    from dagster_ckpt.operations.readers.open_sink import tables_of

    if not pipeline.origins or serving != pipeline.name or change.uid not in tables_of(pipeline.origins[-1]):
        return
    text, metadata = _told(change)
    yield dg.AssetMaterialization(
        table_asset_key(pipeline.origins[-1], change.uid),
        description=f"{text} of pipeline {serving}, which serves",
        metadata=metadata,
        tags={DATA_VERSION_TAG: f"{serving}.{change.data_version}"},
    )


def swapped_events(
    pipeline: CheckpointedPipeline, done: Swapped, *, version: str
) -> Iterator[dg.AssetMaterialization]:
    """Yield that readers of a pipeline's tables find others since now, ``version``."""
    from dagster_ckpt.operations.readers.open_sink import tables_of

    for uid in tables_of(pipeline):
        yield dg.AssetMaterialization(
            table_asset_key(pipeline, uid),
            description=f"readers find the table of pipeline {done.serving}, and no longer of {done.before}",
            metadata={"serving": done.serving, "place": dg.MetadataValue.path(done.places.get(uid, ""))},
            tags={DATA_VERSION_TAG: f"{done.serving}.{version}"},
        )


def changed_event(
    pipeline: CheckpointedPipeline, change: TableChanged, location: CodeLocation = _NOWHERE
) -> dg.AssetMaterialization:
    """Return the materialization that tells of a table whose rows have changed."""
    text, metadata = _told(change)
    metadata |= _requeue_link(pipeline, change.uid, location)
    return dg.AssetMaterialization(
        table_asset_key(pipeline, change.uid),
        description=text,
        metadata=metadata,
        tags={DATA_VERSION_TAG: change.data_version},
    )


def changed_result(
    pipeline: CheckpointedPipeline, change: TableChanged, location: CodeLocation = _NOWHERE
) -> dg.MaterializeResult[None]:
    """Return the same as the result of an op whose asset the table is."""
    return result_of(changed_event(pipeline, change, location))


def result_of(event: dg.AssetMaterialization) -> dg.MaterializeResult[None]:
    """Return a table's materialization as the result of an op whose asset the table is."""
    return dg.MaterializeResult(
        asset_key=event.asset_key,
        metadata={"change": event.description or "", **event.metadata},
        data_version=dg.DataVersion((event.tags or {})[DATA_VERSION_TAG]),
    )


def _told(change: TableChanged) -> tuple[str, dict[str, dg.MetadataValue[Any]]]:
    metadata: dict[str, dg.MetadataValue[Any]] = {
        "checkpoint": dg.MetadataValue.int(change.checkpoint_id),
        "place": dg.MetadataValue.path(change.place),
    }
    if change.taken_back:
        text = f"brought to the rows of checkpoint {change.checkpoint_id}: {change.taken_back}"
        metadata["taken_back"] = dg.MetadataValue.text(change.taken_back)
    elif change.is_of_before:
        text = f"shows the rows of checkpoint {change.checkpoint_id} with all tables of the pipeline"
    else:
        text = f"{counted(change.rows, 'row')} of checkpoint {change.checkpoint_id}"
        metadata["rows_added"] = dg.MetadataValue.int(change.rows)
        metadata["bytes_added"] = dg.MetadataValue.int(change.bytes)
    if change.version:
        metadata["version"] = dg.MetadataValue.text(change.version)
    return text, metadata


def _requeue_link(
    pipeline: CheckpointedPipeline, uid: StageUid, location: CodeLocation
) -> dict[str, dg.MetadataValue[Any]]:
    """Return the link that puts a quarantine's rows through their stage again."""
    stage = pipeline.stages.get(uid)
    if not location.name or stage is None or stage.role is StageRole.SINK:
        return {}
    link = launchpad_link(
        job_name=care_job_name(pipeline.name),
        location=location.name,
        op=CARE_OP,
        config={"action": CareAction.REQUEUE.value, "where": f"stage = '{uid}'"},
        ui_base_url=location.ui_base_url,
    )
    return {"requeue": dg.MetadataValue.md(f"[Put rows of {uid} through again →]({link})")}


def condition_checks(pipeline: CheckpointedPipeline) -> dict[str, tuple[StageUid, str]]:
    """Return stage and condition by the name of their check."""
    found: dict[str, tuple[StageUid, str]] = {}
    for uid, stage in pipeline.authored.stages.items():
        for sql in () if stage.participant is None else stage.participant.judges:
            plain = f"{uid}_{re.sub(r'[^A-Za-z0-9]+', '_', sql).strip('_')}"[:100]
            name = plain if plain not in found else f"{plain}_{len(found)}"
            found[name] = (uid, sql)
    return found


def condition_evaluations(
    pipeline: CheckpointedPipeline, metrics: Mapping[str, SnapshotMetrics], checkpoint: int
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield an evaluation of each condition: red where more rows of the checkpoint broke it than may.

    And one of its late rows: red where a watermark dropped some that nobody has. ``metrics``: of its stages, by uid.
    """
    from dagster_ckpt.spark.snapshot.batch_notes import is_beyond

    for name, (uid, sql) in condition_checks(pipeline).items():
        numbers = metrics.get(uid, SnapshotMetrics())
        limit = _limit(pipeline, uid)
        broken = numbers.broken.get(sql, 0)
        judged = numbers.rows_read if sql == LATE else numbers.rows_judged
        yield dg.AssetCheckEvaluation(
            asset_key=condition_asset_key(pipeline, uid),
            check_name=name,
            passed=not is_beyond(limit, broken, of=judged),
            severity=dg.AssetCheckSeverity.WARN,
            metadata={
                "checkpoint": checkpoint,
                "broken": broken,
                "rows": judged,
                "at_most": limit or "any number",
            },
        )
    kept = {uid for uid, sql in condition_checks(pipeline).values() if sql == LATE}
    late = {str(uid): one.rows_late for uid, one in metrics.items() if one.rows_late and uid not in kept}
    yield dg.AssetCheckEvaluation(
        asset_key=checkpoints_asset_key(pipeline.name),
        check_name=LATE_CHECK,
        passed=not late,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"checkpoint": checkpoint, "rows": sum(late.values()), "stages": late},
    )


def condition_asset_key(pipeline: CheckpointedPipeline, uid: StageUid) -> dg.AssetKey:
    """Return the asset whose checks a stage's conditions are: its quarantine, or else the checkpoints."""
    has_table = pipeline.authored.stages[uid].table is not None
    return table_asset_key(pipeline, uid) if has_table else checkpoints_asset_key(pipeline.name)


def _limit(pipeline: CheckpointedPipeline, uid: StageUid) -> str:
    participant = pipeline.authored.stages[uid].participant
    return "" if participant is None else participant.limit


def _description(pipeline: CheckpointedPipeline, stage: StageDefinition) -> str:
    if stage.role is not StageRole.SINK:
        return f"Rows of stage `{stage.uid}` of pipeline `{pipeline.name}` that broke a condition."
    return stage.description or f"Rows that pipeline `{pipeline.name}` publishes with its checkpoints."


def _sources_of(pipeline: CheckpointedPipeline, uid: StageUid) -> list[dg.AssetKey]:
    named = [pipeline.stages[source].asset for source in pipeline.ancestors(uid)]
    sources = [dg.AssetKey.from_user_string(key) for key in dict.fromkeys(named) if key]
    return [*sources, *(table_asset_key(pipeline, other) for other in pipeline.stages[uid].made_of)]


def _kind(stage: StageDefinition) -> str:
    return type(stage.target).__name__.removesuffix("Table").lower()
