"""Context of every command: the deployment, ``--json``, errors turned into exit codes; completion in a shell."""

from __future__ import annotations

import functools
import getpass
import json
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dagster_ckpt.cli.output import Output
from dagster_ckpt.core.ids import PipelineId, pipeline_id
from dagster_ckpt.core.model import LabelChanges
from dagster_ckpt.core.paths import is_in_store, local_folder, sqlite_url
from dagster_ckpt.errors import (
    TRACEBACK,
    CheckpointError,
    Corrupt,
    Fenced,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    shows_traces,
)
from dagster_ckpt.operations.deployment import Deployment, InUse, only_pipeline

if TYPE_CHECKING:
    from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore


class StoreExpectation(StrEnum):
    """Expectation of a SQLite store: must it exist already?"""

    MUST_EXIST = "must_exist"
    MAY_BEGIN = "may_begin"
    """A first savepoint may be imported into a deployment that has not run yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locations:
    """Locations that options and environment name; empty: not given."""

    base: str = ""
    store: str = field(default="", repr=False)
    storage: str = ""
    savepoints: str = ""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_given(self) -> bool:
        """True where a deployment can be opened without asking Dagster."""
        return bool(self.base or (self.store and self.storage))

    def open(self, expectation: StoreExpectation = StoreExpectation.MUST_EXIST) -> Deployment:
        """Return the deployment. Raises InvalidRequest when nothing says where, NotFound when no store is there."""
        from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore

        base = self._base()
        store_url = self.store or (sqlite_url(str(base / "coordinator.db")) if base else "")
        storage_uri = self.storage or (str(base / "checkpoints") if base else "")
        if not store_url or not storage_uri:
            raise InvalidRequest(
                "say where the checkpoints are: --base DIR, or --store URL and --storage URI (environment: "
                "DAGSTER_CKPT_BASE, DAGSTER_CKPT_STORE, DAGSTER_CKPT_STORAGE), or set DAGSTER_HOME"
            )
        if expectation is StoreExpectation.MUST_EXIST:
            _refuse_missing(store_url)
        store = SqlCoordinatorStore(store_url)
        return Deployment(
            store=store,
            storage=self._storage_at(storage_uri, store),
            open_storage=lambda uri: self._storage_at(uri, store),
            savepoint_dir=self.savepoints or (str(base / "savepoints") if base else ""),
        )

    def open_storage(self, uri: str) -> Any:
        """Return the storage at a URI, with the options given. Raises InvalidRequest, NotFound as ``open``."""
        return self.open().open_storage(uri) if is_in_store(uri) else self._storage_at(uri, None)

    def tables(self, pipeline: str) -> Path:
        """Return the folder of a pipeline's tables where nobody says another. Raises InvalidRequest without a base."""
        base = self._base()
        if base is None:
            raise InvalidRequest("say where the tables are to be: --table-dir DIR, or --base DIR")
        return base / "tables" / pipeline

    def _storage_at(self, uri: str, store: SqlCoordinatorStore | None) -> Any:
        if store is not None and is_in_store(uri):
            return store.checkpoint_storage(uri)
        from dagster_ckpt.adapters.fsspec_storage import open_storage

        return open_storage(uri, **self.storage_options)

    def _base(self) -> Path | None:
        if self.base:
            return Path(local_folder(self.base, setting="--base")).expanduser().absolute()
        if self.store or self.storage or not os.environ.get("DAGSTER_HOME"):
            return None
        import dagster as dg

        # Where CheckpointCoordinatorResource keeps everything when it is told nothing.
        with dg.DagsterInstance.get() as instance:
            return Path(instance.storage_directory()) / "dagster_ckpt"


def _refuse_missing(url: str) -> None:
    """A typing error must not make an empty database, and then say that there is nothing."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except ArgumentError:
        # Not shown, and not chained: it may hold a password.
        raise InvalidRequest(
            "--store is no URL of a coordinator store: write sqlite:////absolute/path.db or "
            "postgresql://user@host/database"
        ) from None
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        return
    if not Path(parsed.database).exists():
        raise NotFound(
            f"there is no coordinator store at {parsed.database}: check the location, or run a pipeline first "
            "(if the store is lost, 'list --from-storage' reads the storage alone)"
        )


def pipelines_known(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the pipelines of the store that begin so."""
    return _asked(context, incomplete, lambda found: map(str, found.store.pipelines()))


def snapshots_known(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the keys of what can be restored that begin so: of the pipeline named, else of all."""
    from dagster_ckpt.core.ids import pipeline_id
    from dagster_ckpt.operations.snapshots.catalog import list_snapshots

    chosen = str(context.params.get("pipeline") or "")

    def keys(found: Deployment) -> Iterable[str]:
        yield "latest"
        for name in [pipeline_id(chosen)] if chosen else found.store.pipelines():
            yield from (summary.key for summary in list_snapshots(found, name))

    return _asked(context, incomplete, keys)


def _asked(context: click.Context, incomplete: str, ask: Callable[[Deployment], Iterable[str]]) -> list[str]:
    """Ask the deployment that the options typed so far name, or the environment."""
    given = context.params
    places: dict[str, Any] = {
        name: given.get(name) or "" for name in ("base", "store", "storage", "savepoints")
    }
    try:
        found = Locations(**places).open()
        try:
            names = list(dict.fromkeys(ask(found)))
        finally:
            if hasattr(found.store, "close"):
                found.store.close()
    except Exception:  # a shell that completes shows no error: the command itself will
        return []
    return [name for name in names if name.startswith(incomplete)]


class ExitCode(IntEnum):
    """Exit codes, for programs that call this one."""

    FINE = 0
    TROUBLE = 1
    """Something was found or has failed: verify, doctor, a refused restore, ``diff --exit-code``, a run that failed."""
    USAGE = 2
    """The command can never work as it was given."""
    NOT_FOUND = 3
    CORRUPT = 4
    UNAVAILABLE = 5
    """Store, storage or webserver cannot be reached, or whether a change took effect is unknown: look, then retry."""
    CONFLICT = 6
    """Somebody else needs it or owns it: a newer attempt, a pipeline that was restored from it."""


def exit_code_of(error: CheckpointError) -> ExitCode:
    """Return the exit code that an error means to the calling program."""
    match error:
        case InUse() | Fenced():
            return ExitCode.CONFLICT
        case InvalidRequest():
            return ExitCode.USAGE
        case NotFound():
            return ExitCode.NOT_FOUND
        case Corrupt():
            return ExitCode.CORRUPT
        case Unavailable() | OutcomeUnknown():
            return ExitCode.UNAVAILABLE
        case _:
            return ExitCode.TROUBLE


class Invocation:
    """One invocation: where to work and how to answer."""

    def __init__(self, locations: Locations, output: Output) -> None:
        self.locations = locations
        self.output = output
        self._deployment: Deployment | None = None

    @property
    def deployment(self) -> Deployment:
        """The deployment, whose store must exist."""
        return self.opened(StoreExpectation.MUST_EXIST)

    def opened(self, expectation: StoreExpectation) -> Deployment:
        """Return the deployment, opened once."""
        if self._deployment is None:
            self._deployment = self.locations.open(expectation)
        return self._deployment

    def pipeline(self, given: str) -> PipelineId:
        """Return the pipeline that is meant; empty: the only one."""
        return pipeline_id(given) if given else only_pipeline(self.deployment.store)

    def close(self) -> None:
        """Close what was opened."""
        store = self._deployment.store if self._deployment else None
        if store is not None and hasattr(store, "close"):
            store.close()


Command = Callable[..., ExitCode | None]

_OPTIONS: Sequence[Callable[[Any], Any]] = (
    click.option("--base", envvar="DAGSTER_CKPT_BASE", default="", metavar="DIR", help="Folder that holds "
                 "coordinator.db, checkpoints/ and savepoints/, as the coordinator resource's base_dir."),
    click.option("--store", envvar="DAGSTER_CKPT_STORE", default="", metavar="URL", help="SQLAlchemy URL of the "
                 "coordinator store."),
    click.option("--storage", envvar="DAGSTER_CKPT_STORAGE", default="", metavar="URI", help="fsspec URI of "
                 "checkpoint storage; store://checkpoints: in the coordinator store."),
    click.option("--savepoints", envvar="DAGSTER_CKPT_SAVEPOINTS", default="", metavar="URI", help="fsspec URI of "
                 "the folder for savepoints."),
    click.option("--storage-option", "storage_option", multiple=True, metavar="NAME=VALUE", help="Option of the "
                 "fsspec client (endpoint_url, profile, …); may be repeated."),
    click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document."),
    click.option("--traceback", "with_traces", is_flag=True, help="Show where an error comes from, beside what it "
                 "says."),
)  # fmt: skip


class _Command(click.Command):
    """Command whose argument PIPELINE is no option, which somebody gives it as to the others."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            names = {one.name for one in self.params if isinstance(one, click.Argument)}
            if error.option_name in ("-p", "--pipeline") and "pipeline" in names:
                raise click.UsageError(f"name the pipeline without {error.option_name}", ctx) from error
            raise


def command(name: str, *, short_help: str | None = None) -> Callable[[Command], click.Command]:
    """Make a function ``(work, …) -> exit code`` a command with locations, ``--json`` and exit codes."""

    def wrap(function: Command) -> click.Command:
        @functools.wraps(function)
        def run(
            *,
            base: str,
            store: str,
            storage: str,
            savepoints: str,
            storage_option: tuple[str, ...],
            as_json: bool,
            with_traces: bool,
            **arguments: Any,
        ) -> None:
            if with_traces:
                os.environ[TRACEBACK] = "1"
            locations = Locations(
                base=base,
                store=store,
                storage=storage,
                savepoints=savepoints,
                storage_options=key_values("--storage-option", storage_option),
            )
            work = Invocation(locations, Output(as_json=as_json, places=_places_given(locations)))
            try:
                code = function(work, **arguments)
            except CheckpointError as error:
                code = _told(error, work.output)
            finally:
                work.close()
            click.get_current_context().exit(int(code or ExitCode.FINE))

        decorated: Any = run
        for option in reversed(_OPTIONS):
            decorated = option(decorated)
        made: click.Command = click.command(name, cls=_Command, short_help=short_help)(decorated)
        return made

    return wrap


def _places_given(locations: Locations) -> str:
    """Return the options that named the deployment on this command line; not the environment's, nor a password."""
    source = click.get_current_context().get_parameter_source
    given = {name: getattr(locations, name) for name in ("base", "store", "storage", "savepoints")}
    return " ".join(
        f"--{name} {quote(text)}"
        for name, text in given.items()
        if source(name) is ParameterSource.COMMANDLINE and not (name == "store" and "@" in text)
    )


def _told(error: CheckpointError, output: Output) -> ExitCode:
    code = exit_code_of(error)
    if output.as_json:
        click.echo(json.dumps({"error": {"kind": error.kind, "message": str(error)}}, ensure_ascii=False))
    else:
        if shows_traces():
            click.echo("".join(traceback.format_exception(error)), err=True)
        click.echo(f"Error: {output.worded(str(error))}", err=True)
    return code


# --- options that several commands share ----------------------------------------------------------------------


def refuse_unused(options: Mapping[str, object], why: str) -> None:
    """Raise UsageError for the first of these options that was given: it would change nothing."""
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise click.UsageError(f"{given} {why}")


def key_values(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return repeated ``NAME=VALUE`` options as a mapping. Raises UsageError."""
    pairs = [text.partition("=") for text in given]
    wrong = next((name for name, equals, _ in pairs if not name or not equals), None)
    if wrong is not None:
        raise click.UsageError(f"{option} takes NAME=VALUE, got {wrong!r}")
    return {name: value for name, _, value in pairs}


def user() -> str:
    """Return who runs the program, as this machine knows them; empty where it does not."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def pipeline_option(function: Any) -> Any:
    """Add ``--pipeline``."""
    return click.option(
        "-p",
        "--pipeline",
        default="",
        metavar="NAME",
        help="Pipeline; needed where the store has several.",
        shell_complete=pipelines_known,
    )(function)


def label_option(function: Any) -> Any:
    """Add ``--name``, ``--note`` and ``--label``; the function gets one ``LabelChanges`` as ``label``."""

    @functools.wraps(function)
    def run(*args: Any, name: str | None, note: str | None, labels: tuple[str, ...], **rest: Any) -> Any:
        label = LabelChanges(name=name, note=note, labels=key_values("--label", labels))
        return function(*args, label=label, **rest)

    decorated: Any = click.option(
        "--label", "labels", multiple=True, metavar="NAME=VALUE", help="May be repeated."
    )(run)
    decorated = click.option("--note", default=None, help="Free-text note.")(decorated)
    return click.option("--name", default=None, help="A name for people.")(decorated)
