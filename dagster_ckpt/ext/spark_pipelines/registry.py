"""Registry that ``pyspark.pipelines`` calls while a project's files are imported."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dagster_ckpt.digests import digest_file
from dagster_ckpt.errors import CheckpointError, InvalidRequest
from dagster_ckpt.ext.spark_pipelines.elements import (
    Elements,
    FlowElement,
    Kind,
    OutputElement,
    as_sparks_runner_has_it,
)
from dagster_ckpt.ext.spark_pipelines.graph import ProjectSpec
from dagster_ckpt.ext.spark_pipelines.sql_files import register_sql_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_loading = threading.RLock()
"""Held while files are imported: the process has one working directory and PySpark one registry."""


def load_elements(
    spec: ProjectSpec, spark: SparkSession, elements: Elements, on_flow: Callable[[FlowElement], None]
) -> None:
    """Import the project's files once, as Spark does; ``on_flow`` is called where Spark would call a flow's function.

    Raises InvalidRequest for what a file registers wrongly, or where it fails.
    """
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context

    registry = _registry(spec, spark, elements, on_flow)
    with (
        _loading,
        _working_in(spec.root),
        as_sparks_runner_has_it(spark, elements.namespace),
        graph_element_registration_context(registry),
    ):
        for file in spec.sources():
            shown = file.relative_to(spec.root)
            if file.suffix not in (".py", ".sql"):
                raise InvalidRequest(f"{shown}: Spark knows definition files in .py and .sql only")
            try:
                _import(file, spark, registry)
            except InvalidRequest as error:
                if str(shown) in str(error):
                    raise
                raise InvalidRequest(f"{shown}: {error}") from error
            except CheckpointError:
                raise
            except Exception as error:
                raise InvalidRequest(f"{shown} cannot be loaded: {type(error).__name__}: {error}") from error


def _import(file: Path, spark: SparkSession, registry: Any) -> None:
    if file.suffix == ".sql":
        registry.register_sql(file.read_text(encoding="utf-8"), file)
        return
    found = importlib.util.spec_from_file_location(file.stem, str(file))
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    module.__dict__["spark"] = spark
    found.loader.exec_module(module)


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _registry(
    spec: ProjectSpec, spark: SparkSession, elements: Elements, on_flow: Callable[[FlowElement], None]
) -> Any:
    from pyspark.pipelines.flow import AutoCdcFlow, Flow
    from pyspark.pipelines.graph_element_registry import GraphElementRegistry
    from pyspark.pipelines.output import MaterializedView, Output, Sink, StreamingTable, TemporaryView

    kinds = {
        StreamingTable: Kind.STREAMING_TABLE,
        MaterializedView: Kind.MATERIALIZED_VIEW,
        TemporaryView: Kind.TEMPORARY_VIEW,
        Sink: Kind.SINK,
    }

    def add(flow: FlowElement) -> None:
        elements.add_flow(flow)
        on_flow(flow)

    class Registry(GraphElementRegistry):  # type: ignore[misc]
        def register_output(self, output: Output) -> None:
            kind = kinds.get(type(output))
            if kind is None:
                raise InvalidRequest(f"{output.name!r} is a {type(output).__name__}, which is not supported")
            elements.add_output(_output(output, kind, elements, _where(spec, output)))

        def register_flow(self, flow: Flow) -> None:
            if getattr(flow, "once", False):
                raise InvalidRequest(
                    f"flow {flow.name!r} has once=True, which is not supported: load it beforehand"
                )
            add(_flow(flow, _where(spec, flow), flow.func))

        def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
            # What becomes of its source's rows is ours; the source is read as any flow reads.
            add(_flow(flow, _where(spec, flow), lambda: spark.readStream.table(flow.source), cdc=flow))

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            shown = (
                str(Path(file_path).relative_to(spec.root))
                if Path(file_path).is_absolute()
                else str(file_path)
            )
            register_sql_file(spark, elements, sql_text, shown, add)

    return Registry()


def _where(spec: ProjectSpec, element: Any) -> str:
    location = element.source_code_location
    path = Path(location.filename)
    shown = path.relative_to(spec.root) if path.is_relative_to(spec.root) else path
    return f"{shown}:{location.line_number}"


def _output(output: Any, kind: Kind, elements: Elements, where: str) -> OutputElement:
    space = elements.namespace
    is_table = kind in (Kind.STREAMING_TABLE, Kind.MATERIALIZED_VIEW)
    name = space.table if is_table else space.single
    return OutputElement(
        name=name(output.name, what=str(kind)),
        kind=kind,
        where=where,
        comment=output.comment or "",
        format=getattr(output, "format", None) or "",
        schema=getattr(output, "schema", None),
        partition_cols=tuple(getattr(output, "partition_cols", None) or ()),
        cluster_by=tuple(getattr(output, "cluster_by", None) or ()),
        properties=dict(
            (output.options if kind is Kind.SINK else getattr(output, "table_properties", {})) or {}
        ),
    )


def _flow(flow: Any, where: str, func: Callable[[], DataFrame], cdc: Any = None) -> FlowElement:
    return FlowElement(
        name=flow.name or flow.target,
        target=flow.target,
        where=where,
        is_default=flow.name in (None, flow.target),
        spark_conf=dict(flow.spark_conf or {}),
        func=func,
        cdc=cdc,
    )


_seen: dict[Path, tuple[ModuleType, str]] = {}
"""What a file was when its module was first found imported."""


def imported_below(root: Path) -> list[str]:
    """Return the files of imported modules, by path below the project; a virtual environment there is none of it."""
    return [str(file.relative_to(root)) for file in _modules_below(root)]


def refuse_old_imports(root: Path, files: Collection[str]) -> None:
    """Raise InvalidRequest where a module was imported by this process and its file was changed since."""
    for file, module in _modules_below(root).items():
        if str(file.relative_to(root)) not in files or not file.is_file():
            continue
        now = digest_file(file).checksum
        earlier, was = _seen.get(file, (None, ""))
        if earlier is module and was != now and module.__name__ != "__main__":
            raise InvalidRequest(
                f"{file} has changed since this process imported it, so that its flows would run as they were before: "
                "start a new process"
            )
        _seen[file] = (module, now)


def _modules_below(root: Path) -> dict[Path, ModuleType]:
    environments = [
        place
        for place in map(Path, (sys.prefix, sys.base_prefix))
        if place != root and place.is_relative_to(root)
    ]
    found: dict[Path, ModuleType] = {}
    for module in list(sys.modules.values()):
        file = Path(getattr(module, "__file__", None) or "")
        is_ours = file.is_relative_to(root) and "site-packages" not in file.parts
        if is_ours and not any(file.is_relative_to(place) for place in environments):
            found[file] = module
    return found
