"""Graph of a project as it is kept beside it: what definitions load from, without a JVM."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.ext.spark_pipelines.elements import Kind
from dagster_ckpt.ext.spark_pipelines.spec import SPEC_FILES, ProjectSpec
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.version import __version__

FORMAT = 1
_FOLDER, _FILE = ".dagster_ckpt", "graph.json"
_PROJECT = "${project}/"
"""Stands for the project's folder in what is kept: a project is cloned and copied with its graph."""


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CdcNode(_Kept):
    """An Auto CDC flow."""

    keys: tuple[str, ...]
    deletes: bool
    sequence: str
    """What puts its rows in order."""
    tracked: tuple[str, ...] | None = None
    """SCD type 2: columns whose change begins a new version of a row. None: SCD type 1."""


class FlowNode(_Kept):
    """A flow of a streaming table or sink."""

    target: str
    name: str
    uid: str
    """Of the stage that runs it; of an Auto CDC flow, of the sink."""
    where: str
    written_target: str
    """The target as the project writes it."""
    streams: tuple[str, ...] = ()
    """Streaming tables it reads, by itself or through views."""
    conf: Mapping[str, str] = {}
    """Settings of its own."""
    cdc: CdcNode | None = None


class DatasetNode(_Kept):
    """A table, a materialized view or a sink."""

    name: str
    uid: str
    kind: Kind
    where: str
    row_schema: str
    """Of its rows, as Spark writes schemas; all columns nullable."""
    comment: str = ""
    format: str = ""
    partition_cols: tuple[str, ...] = ()
    properties: Mapping[str, str] = {}
    reads: tuple[str, ...] = ()
    """Of a materialized view: the tables it is computed from."""


class ProjectGraph(_Kept):
    """A project's datasets and flows."""

    format: Literal[1] = 1
    made_by: str
    """Versions that made it."""
    catalog: str
    database: str
    files: Mapping[str, str]
    """Digests of what it was made from, by path below the project's folder."""
    datasets: tuple[DatasetNode, ...]
    """Materialized views after those they read."""
    flows: tuple[FlowNode, ...]
    notes: tuple[str, ...] = ()
    """What is accepted and has no effect here."""

    def flows_of(self, target: str) -> tuple[FlowNode, ...]:
        """Return the flows of a table or sink."""
        return tuple(flow for flow in self.flows if flow.target == target)


def graph_file(spec: ProjectSpec) -> Path:
    """Return where the graph of a project is kept; several spec files may be in one folder."""
    return spec.root / _FOLDER / (_FILE if spec.path.name in SPEC_FILES else f"{spec.path.name}.{_FILE}")


def load_graph(spec: ProjectSpec) -> ProjectGraph | None:
    """Return the graph beside the project; None: there is none that this version reads."""
    try:
        graph = ProjectGraph.model_validate(parse_json(graph_file(spec).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, ValidationError):
        return None
    return _with_prefix(graph, _PROJECT, f"{spec.root}/")


def save_graph(spec: ProjectSpec, graph: ProjectGraph) -> None:
    """Write the graph beside the project. Raises Unavailable where that cannot be."""
    place = graph_file(spec)
    try:
        place.parent.mkdir(exist_ok=True)
        kept = _with_prefix(graph, f"{spec.root}/", _PROJECT)
        replace_whole(place, (kept.model_dump_json(indent=1) + "\n").encode())
    except OSError as error:
        raise Unavailable(f"the graph of the project cannot be kept in {place}: {error}") from error


def _with_prefix(graph: ProjectGraph, before: str, after: str) -> ProjectGraph:
    """Return the graph with paths of its sinks below another folder."""

    def moved(dataset: DatasetNode) -> DatasetNode:
        path = dataset.properties.get("path", "")
        if dataset.kind is not Kind.SINK or not path.startswith(before):
            return dataset
        told = dict(dataset.properties) | {"path": after + path.removeprefix(before)}
        return dataset.model_copy(update={"properties": told})

    return graph.model_copy(update={"datasets": tuple(map(moved, graph.datasets))})


def made_by() -> str:
    """Return the versions a graph depends on."""
    return f"dagster-ckpt {__version__}, pyspark {version('pyspark')}"


def digests_of(spec: ProjectSpec, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the digests of what a graph is made from; of ``more``, modules that were imported, the files there are."""
    named = [spec.path, *spec.sources(), *(spec.root / path for path in more or ())]
    if spec.side_file.is_file():
        named.append(spec.side_file)
    return {
        str(path.relative_to(spec.root)): digest_file(path).checksum
        for path in dict.fromkeys(named)
        if path.is_file()
    }


def why_stale(spec: ProjectSpec, graph: ProjectGraph) -> str:
    """Return the change since the graph was made, in a sentence; empty: none."""
    if graph.made_by != made_by():
        return f"it was made by {graph.made_by}, and this is {made_by()}"
    now = digests_of(spec, graph.files)
    different = sorted(path for path in {*now, *graph.files} if now.get(path) != graph.files.get(path))
    if not different:
        return ""
    path = different[0]
    what = "is new" if path not in graph.files else "is gone" if path not in now else "has changed"
    return f"{path} {what}" + (f", and {len(different) - 1} more" if len(different) > 1 else "")


def refuse_stale(spec: ProjectSpec, graph: ProjectGraph) -> None:
    """Raise InvalidRequest where the project's files are not those of the graph."""
    why = why_stale(spec, graph)
    if why:
        raise InvalidRequest(
            f"{spec.path}: {why} since its graph was made: run dagster-ckpt adopt-project {spec.path}, and load the "
            "definitions again"
        )
