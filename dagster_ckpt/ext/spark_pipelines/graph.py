"""Graph of a project as it is kept beside it, for definitions without a JVM; the project's spec file, its side file.

Read as ``pyspark.pipelines.cli`` reads it, which cannot be imported without the packages of Spark Connect.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from dagster_ckpt.authoring.stage_settings import QUARANTINE_SETTINGS
from dagster_ckpt.core.config import refuse_unknown
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import InvalidRequest, NotFound, Unavailable
from dagster_ckpt.ext.spark_pipelines.elements import Kind
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

    @property
    def stored(self) -> list[DatasetNode]:
        """Tables and sinks, which flows write."""
        return [one for one in self.datasets if one.kind is not Kind.MATERIALIZED_VIEW]

    def dataset(self, name: str) -> DatasetNode:
        """Return a table, view or sink by its full name."""
        return next(one for one in self.datasets if one.name == name)

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


SPEC_FILES = ("spark-pipeline.yaml", "spark-pipeline.yml")
SIDE_FILE = "dagster-ckpt.yml"
"""Beside the spec file: what Spark has no word for."""

_FIELDS = ("name", "storage", "catalog", "database", "schema", "configuration", "libraries")
_REQUIRED = ("name", "storage")
_SIDE_FIELDS = ("previous_uids", "catalog_views", "bad_rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectSpec:
    """A project, as its spec file and its side file say."""

    path: Path
    """The spec file."""
    name: str
    storage: str
    """Where Spark keeps the checkpoints of the project's flows; read when they are adopted, never written."""
    catalog: str = ""
    database: str = ""
    configuration: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    previous_uids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of renamed datasets: the names they had before."""
    catalog_views: tuple[str, ...] = ()
    """Datasets, by uid, that readers find by name in Spark's catalog; ``*``: all."""
    bad_rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By uid of a table or sink: conditions on the rows of its flows, as the decorators take them."""

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self.path.parent

    @property
    def side_file(self) -> Path:
        """The side file, whether it is there or not."""
        return self.root / SIDE_FILE

    def sources(self) -> tuple[Path, ...]:
        """Return the definition files, in the order in which Spark imports them; each once."""
        found: dict[Path, None] = {}
        for pattern in self.libraries:
            for file in self.root.glob(pattern):
                if file.is_file() and "__pycache__" not in file.parts:
                    found[file] = None
        return tuple(found)


def find_spec(place: str | Path) -> Path:
    """Return the spec file that ``place`` is, or that the folder ``place`` holds. Raises NotFound, InvalidRequest."""
    path = Path(place).absolute()
    path = (
        path.resolve() if path.is_dir() else path.parent.resolve() / path.name
    )  # as Spark: a link stays where it is
    if not path.is_dir():
        if not path.is_file():
            raise NotFound(
                f"there is no spec file {path}: give the project's spark-pipeline.yml, or its folder"
            )
        return path
    found = [path / name for name in SPEC_FILES if (path / name).is_file()]
    if not found:
        raise NotFound(
            f"{path} holds no {' or '.join(SPEC_FILES)}: give the project's folder, or its spec file"
        )
    if len(found) > 1:
        raise InvalidRequest(f"{path} holds both {' and '.join(SPEC_FILES)}: name the one that is meant")
    return found[0]


def load_spec(place: str | Path) -> ProjectSpec:
    """Return the project of a spec file. Raises NotFound, InvalidRequest."""
    path = find_spec(place)
    data = _mapping(path)
    _refuse_fields(path, data, _FIELDS)
    for key in _REQUIRED:
        if key not in data:
            raise InvalidRequest(f"{path} has no {key!r}: Spark asks for it too")
        if not isinstance(data[key], str) or not data[key]:
            raise InvalidRequest(f"{path} has {key}: {data[key]!r}, which is no text: write it in quotes")
    return ProjectSpec(
        path=path,
        name=data["name"],
        storage=data["storage"],
        catalog=_part(path, data, "catalog"),
        database=_part(path, data, "database") or _part(path, data, "schema"),
        configuration=_settings(path, data.get("configuration") or {}),
        libraries=_globs(path, data.get("libraries") or []),
        **_side_file(path.parent / SIDE_FILE),
    )


def _mapping(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is no YAML in UTF-8: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRequest(f"{path} is no list of settings: write 'key: value' lines")
    return data


def _refuse_fields(path: Path, data: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = [str(key) for key in data if key not in known]
    if unknown:
        raise InvalidRequest(f"{path} has {unknown[0]!r}: known are {', '.join(known)}")


def _part(path: Path, data: Mapping[str, Any], key: str) -> str:
    """Return one part of the full names of the project's tables."""
    value = data.get(key) or ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{path} has {key}: {value!r}, which is no text")
    if re.search(r"[.`\s]", value):
        raise InvalidRequest(
            f"{path} has {key}: {value!r}: a {key} is one name, without dots, quotes and blanks"
        )
    return value


def _settings(path: Path, found: Any) -> dict[str, str]:
    pairs = found.items() if isinstance(found, dict) else [(found, found)]
    other = next((pair for pair in pairs if not all(isinstance(one, str) for one in pair)), None)
    if other is not None or not isinstance(found, dict):
        told = f"{other[0]}: {other[1]!r}" if other is not None and isinstance(found, dict) else repr(found)
        raise InvalidRequest(
            f"{path}: 'configuration' has keys and values that are text, in quotes, and not {told}"
        )
    return found


def _globs(path: Path, libraries: Any) -> tuple[str, ...]:
    try:
        patterns = [entry["glob"]["include"] for entry in libraries]
    except (KeyError, TypeError):
        patterns = [None]
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise InvalidRequest(f"{path}: each of 'libraries' is written '- glob: {{include: ...}}'")
    return tuple(_checked_glob(path, pattern) for pattern in patterns)


def _checked_glob(path: Path, pattern: str) -> str:
    if Path(pattern).is_absolute():
        raise InvalidRequest(f"{path}: Spark takes a path from beside the spec file, and not {pattern!r}")
    if not glob.has_magic(pattern):
        return pattern
    if pattern.endswith("/**") and not glob.has_magic(pattern.removesuffix("/**")):
        return f"{pattern}/*"
    raise InvalidRequest(f"{path}: Spark takes a file, or a folder and '/**', and not {pattern!r}")


def _side_file(side_file: Path) -> dict[str, Any]:
    if not side_file.is_file():
        return {}
    data = _mapping(side_file)
    _refuse_fields(side_file, data, _SIDE_FIELDS)
    views = data.get("catalog_views") or []
    if views != "*" and not (isinstance(views, list) and all(isinstance(one, str) for one in views)):
        raise InvalidRequest(f"{side_file}: catalog_views is a list of datasets, or '*' for all: {views!r}")
    return {
        "previous_uids": _previous(side_file, data.get("previous_uids") or {}),
        "catalog_views": tuple(views),
        "bad_rows": _bad_rows(side_file, data.get("bad_rows") or {}),
    }


def _bad_rows(side_file: Path, found: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(found, dict) or not all(isinstance(one, dict) and one for one in found.values()):
        raise InvalidRequest(
            f"{side_file}: bad_rows is written 'table: {{expect: {{\"amount > 0\": quarantine}}}}', and not {found!r}"
        )
    for name, settings in found.items():
        refuse_unknown(settings, QUARANTINE_SETTINGS, of=f"{side_file}: bad_rows of {name!r}")
    return {str(name): dict(settings) for name, settings in found.items()}


def _previous(side_file: Path, found: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(found, dict):
        raise InvalidRequest(f"{side_file}: previous_uids is written 'new_name: [old_name]'")
    for name, earlier in found.items():
        if not isinstance(earlier, list) or not all(isinstance(one, str) for one in earlier):
            raise InvalidRequest(f"{side_file}: previous_uids of {name!r} is a list of names: [{earlier!r}]")
    return {str(name): tuple(earlier) for name, earlier in found.items()}


_NOT_OURS = ("pipelines.", "spark.sql.connect.", "spark.connect.", "spark.remote", "spark.api.mode")
"""Of Spark's own runner of pipelines."""


def refuse_connect(spark: SparkSession) -> None:
    """Raise InvalidRequest for a session of Spark Connect: what its functions read cannot be answered."""
    if not hasattr(spark, "_jsparkSession"):
        raise InvalidRequest(
            "a Spark declarative pipeline needs a classic Spark session here, with a master: Spark Connect reads the "
            "tables of its catalog instead of the pipeline's"
        )


def settings_of(spec: ProjectSpec) -> Mapping[str, str]:
    """Return the settings of a session while a flow of the project is started."""
    return {key: value for key, value in spec.configuration.items() if not key.startswith(_NOT_OURS)}
