"""A code location loaded into this process: its Dagster definitions, and the pipelines it declares."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.restore.horizon import Horizon
from dagster_ckpt.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    import dagster as dg

    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline


_NOT_HERE = ("spark.master", "spark.submit.", "spark.extraListeners", "spark.eventLog.", "spark.kubernetes.")
"""Settings of the deployment's sessions that a plan's has none of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOptions:
    """Place of the pipeline's code, as for ``dagster dev``; nothing given: nowhere."""

    module: str = ""
    file: str = ""
    workspace: str = ""
    folder: str = ""
    """Folder that the code imports from; empty: the current one."""

    @property
    def is_given(self) -> bool:
        """True where one of them is."""
        return bool(self.module or self.file or self.workspace)

    @property
    def as_given(self) -> str:
        """The options as they were given, with a blank before it, for a command that goes on from this one."""
        given = (("-m", self.module), ("-f", self.file), ("-w", self.workspace), ("-d", self.folder))
        return "".join(f" {option} {quote(text)}" for option, text in given if text)


def code_options(function: Any) -> Any:
    """Add ``-m``, ``-f``, ``-w`` and ``-d``; the function gets one ``CodeOptions`` as ``code``."""

    @functools.wraps(function)
    def run(
        *args: Any, module: str, python_file: str, workspace: str, working_directory: str, **rest: Any
    ) -> Any:
        given = [text for text in (module, python_file, workspace) if text]
        if len(given) > 1:
            raise click.UsageError("give one of -m, -f and -w")
        if working_directory and not (module or python_file):
            raise click.UsageError("-d is the folder that -m or -f import from: give it with one of them")
        code = CodeOptions(module=module, file=python_file, workspace=workspace, folder=working_directory)
        return function(*args, code=code, **rest)

    decorated: Any = click.option(
        "-d", "--working-directory", default="", metavar="DIR", help="With -m or -f: folder it imports from."
    )(run)
    decorated = click.option("-w", "--workspace", default="", metavar="YAML", help="Dagster workspace file.")(
        decorated
    )
    decorated = click.option(
        "-f", "--python-file", default="", metavar="FILE", help="File with the definitions."
    )(decorated)
    return click.option("-m", "--module", default="", metavar="NAME", help="Module with the definitions.")(
        decorated
    )


def definitions_in(code: CodeOptions) -> Iterator[dg.Definitions]:
    """Yield the definitions of the code. Raises InvalidRequest when it cannot be loaded or has none."""
    import dagster as dg

    count = 0
    for module, attribute in _modules(code):
        found = [getattr(module, attribute)] if attribute else list(vars(module).values())
        for value in found:
            if isinstance(value, dg.Definitions):
                count += 1
                yield value
    if not count:
        raise InvalidRequest("the code has no Dagster Definitions: name the module that has them")


def session_settings_in(code: CodeOptions) -> Iterator[str]:
    """Yield the settings that the code gives its Spark sessions, those of a cluster left out."""
    from dagster_ckpt.dagster.resources.spark import SparkSessionResource

    try:
        found = [
            one for definitions in definitions_in(code) for one in (definitions.resources or {}).values()
        ]
    except InvalidRequest:
        return  # a plain program, which has no definitions
    for resource in found:
        given = resource.conf if isinstance(resource, SparkSessionResource) else {}
        yield from (
            f"{name}={said}"
            for name, said in given.items()
            if isinstance(said, str) and not name.startswith(_NOT_HERE)
        )


def job_in(code: CodeOptions, name: str) -> dg.JobDefinition:
    """Return a job of the code. Raises NotFound, InvalidRequest."""
    names: list[str] = []
    for definitions in definitions_in(code):
        jobs = {job.name: job for job in definitions.resolve_all_job_defs()}
        if name in jobs:
            return jobs[name]
        names += [job for job in jobs if not job.startswith("__")]
    raise NotFound(f"the code has no job {name!r}. It has: {', '.join(sorted(names)) or 'none'}")


@contextmanager
def resources_in(code: CodeOptions, job: str, keys: Iterable[str]) -> Iterator[Any]:
    """Yield resources that a job of the code has, opened. Raises NotFound, InvalidRequest."""
    import dagster as dg

    bound = job_in(code, job).resource_defs
    with dg.build_resources({key: bound[key] for key in keys}) as resources:
        yield resources


def declared_in(code: CodeOptions, pipeline: PipelineId) -> CheckpointedPipeline | None:
    """Return a pipeline as its code declares it; None: no code is given. Raises NotFound, InvalidRequest."""
    if not code.is_given:
        return None
    list(_modules(code))
    known = {one.name: one for one in _loaded_pipelines()}
    if pipeline not in known:
        raise NotFound(
            f"the code declares no pipeline {pipeline!r}. It has: {', '.join(sorted(known)) or 'none'}"
        )
    return known[pipeline]


def pipelines_in(code: CodeOptions) -> list[CheckpointedPipeline]:
    """Return the pipelines that code declares, each once. Raises InvalidRequest when it cannot be loaded."""
    list(_modules(code))
    return list({id(one): one for one in _loaded_pipelines()}.values())


def _loaded_pipelines() -> Iterator[CheckpointedPipeline]:
    from dagster_ckpt.authoring.pipeline import CheckpointedPipeline

    for module in list(sys.modules.values()):
        for value in list(vars(module).values()) if isinstance(module, ModuleType) else ():
            if isinstance(value, CheckpointedPipeline):
                yield value


def _modules(code: CodeOptions) -> Iterator[tuple[ModuleType, str]]:
    folder = Path(code.folder or Path.cwd())
    if not folder.is_dir():
        raise InvalidRequest(f"-d {code.folder}: there is no such folder")
    if code.module:
        yield _imported(code.module, folder), ""
    if code.file:
        yield _loaded(Path(code.file), folder), ""
    if code.workspace:
        yield from _in_workspace(Path(code.workspace))


def _in_workspace(path: Path) -> Iterator[tuple[ModuleType, str]]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text())
        targets = document["load_from"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{path} is no Dagster workspace file: {error}") from error
    for target in targets:
        for kind, given in target.items():
            options = given if isinstance(given, dict) else {}
            folder = path.parent / options.get("working_directory", ".")
            attribute = str(options.get("attribute", ""))
            match kind:
                case "python_file":
                    relative = options.get("relative_path") or given
                    yield _loaded(path.parent / str(relative), folder), attribute
                case "python_module" | "python_package":
                    name = options.get("module_name") or options.get("package_name") or given
                    yield _imported(str(name), folder), attribute
                case _:
                    raise InvalidRequest(f"{path} loads a {kind}: give the module (-m) or file (-f) instead")


def _on_path(folder: Path) -> None:
    where = str(folder.absolute())
    if where not in sys.path:
        sys.path.insert(0, where)


def _imported(name: str, folder: Path) -> ModuleType:
    _on_path(folder)
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the user's code raises while it is loaded
        raise _not_loaded(f"module {name!r}", error) from error


def _loaded(path: Path, folder: Path) -> ModuleType:
    _on_path(folder)
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and os.path.realpath(loaded.__file__ or "") == os.path.realpath(path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        what = "is no Python file" if path.exists() else "is not there"
        raise InvalidRequest(f"{path} {what}: give the file that has the pipeline's code")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _not_loaded(str(path), error) from error
    return module


def _not_loaded(what: str, error: Exception) -> InvalidRequest:
    return InvalidRequest(f"{what} cannot be imported: {type(error).__name__}: {error}")


def horizons_in(code: CodeOptions, pipeline: PipelineId) -> tuple[Horizon, ...]:
    """Return for how long each retained snapshot can be restored, newest first. Raises NotFound, InvalidRequest."""
    from dagster_ckpt.dagster.names import COORDINATOR_KEY, care_job_name
    from dagster_ckpt.operations.restores.horizon import (
        restorability,  # a third of what a plain `list` would import
    )

    declared = declared_in(code, pipeline)
    assert declared is not None
    with resources_in(code, care_job_name(pipeline), [COORDINATOR_KEY]) as resources:
        return restorability(declared, getattr(resources, COORDINATOR_KEY), now=time.time())
