"""Options of datasets and flows: which are carried out, which have no effect here, which are refused."""

from __future__ import annotations

from collections.abc import Iterable

from dagster_ckpt.authoring.stages import RESERVED_NAMES
from dagster_ckpt.core.ids import stage_uid
from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.spark_pipelines.elements import FlowElement, Kind, OutputElement, parts_of
from dagster_ckpt.ext.spark_pipelines.graph import DatasetNode, FlowNode

TABLE_FORMATS = ("parquet", "delta", "iceberg")


def refuse_options(output: OutputElement) -> None:
    """Raise InvalidRequest for an option whose loss would be seen in rows or in their place."""
    if output.kind in (Kind.SINK, Kind.TEMPORARY_VIEW):
        return
    if output.format and output.format.lower() not in TABLE_FORMATS:
        raise InvalidRequest(
            f"{output.title} has format {output.format!r}: tables are written as {', '.join(TABLE_FORMATS)}"
        )
    acts = next((key for key in output.properties if key.startswith("delta.")), None)
    if acts is not None:
        raise InvalidRequest(
            f"{output.title} has the table property {acts!r}, which changes what Delta does: make the table "
            "beforehand, with it, and leave it out here"
        )


def notes_on(output: OutputElement) -> Iterable[str]:
    """Yield a note on each option of an output that is accepted and has no effect here: rows are the same."""
    if output.cluster_by:
        yield f"{output.title}: cluster_by has no effect, files are as the flows write them"
    if output.kind is Kind.MATERIALIZED_VIEW and output.format.lower() not in ("", "parquet"):
        yield f"{output.title}: its format {output.format} has no effect, a materialized view is a Delta table"
    if output.partition_cols and output.format.lower() in ("", "parquet"):
        yield f"{output.title}: partition_cols has no effect on a table whose format is not given: say format='delta'"
    if output.kind is Kind.SINK and "checkpointLocation" in output.properties:
        yield f"{output.title}: its option checkpointLocation has no effect, checkpoints are the coordinator's"
    if output.properties and output.kind is not Kind.SINK and output.format.lower() != "iceberg":
        yield f"{output.title}: table_properties are kept nowhere, its table is a folder"


def refuse_conf(flow: FlowElement, output: OutputElement) -> None:
    """Raise InvalidRequest for settings of a flow that has no query of its own."""
    if flow.spark_conf and output.kind in (Kind.TEMPORARY_VIEW, Kind.MATERIALIZED_VIEW):
        raise InvalidRequest(
            f"{flow.title} of a {output.kind} has spark_conf, or follows SET in its file: only a flow of a streaming "
            "table or sink has a query of its own. Write the setting in the spec file's configuration"
        )


def plain_flow_name(flow: FlowElement) -> str:
    """Return the name of a flow for its stage's uid. Raises InvalidRequest for one that cannot be."""
    parts = parts_of(flow.name)
    if parts is None or len(parts) != 1 or not parts[0].isascii() or not parts[0].replace("_", "a").isalnum():
        raise InvalidRequest(
            f"{flow.title}: its name is one word of letters, digits and '_', because it names files"
        )
    return parts[0]


def checked_uids(datasets: Iterable[DatasetNode], flows: Iterable[FlowNode]) -> None:
    """Raise InvalidRequest where two elements would have one uid, or one that cannot be."""
    taken: dict[str, str] = {}
    for uid, where in [*((one.uid, one.where) for one in datasets), *((one.uid, one.where) for one in flows)]:
        stage_uid(uid)
        if uid in RESERVED_NAMES:
            raise InvalidRequest(f"{where}: {uid!r} names a step of every pipeline's job: rename the dataset")
        if uid in taken:
            raise InvalidRequest(
                f"{where} and {taken[uid]} would both be called {uid!r} here: rename one of them"
            )
        taken[uid] = where
