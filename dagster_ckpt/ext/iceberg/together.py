"""Commits that are kept for the end of a step, and carried out for several tables at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, RESTError
from pyiceberg.table import CommitTableRequest, Namespace, Table, TableIdentifier
from pyiceberg.table.update import TableRequirement, TableUpdate
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session


@dataclass(frozen=True, slots=True)
class TableCommit:
    """Part of one table in a request."""

    table: Table
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    producers: tuple[Any, ...] = ()
    """Of its snapshots: they know the manifests that were written for it."""

    def request(self) -> dict[str, Any]:
        """Return the part as REST catalogs take it."""
        *namespace, name = self.table.name()
        told = CommitTableRequest(
            identifier=TableIdentifier(namespace=Namespace(namespace), name=name),
            requirements=self.requirements,
            updates=self.updates,
        )
        return told.model_dump(mode="json", by_alias=True)


@dataclass(slots=True)
class Step:
    """Commits of several tables, carried out at the step's end."""

    commits: list[TableCommit] = field(default_factory=list)
    afterwards: list[Callable[[], None]] = field(default_factory=list)
    """What may be done once the commits have happened."""


_STEP: ContextVar[Step | None] = ContextVar("_STEP", default=None)
_KEEPS: ContextVar[Step | None] = ContextVar("_KEEPS", default=None)


def step_at_hand() -> Step | None:
    """Return the step within which this thread publishes."""
    return _STEP.get()


@contextmanager
def publishing(step: Step | None) -> Iterator[None]:
    """Publish within a step; None: each table by itself."""
    before = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(before)


@contextmanager
def keeping(step: Step) -> Iterator[None]:
    """Keep what is committed meanwhile for the step's end."""
    before = _KEEPS.set(step)
    try:
        yield
    finally:
        _KEEPS.reset(before)


def kept(commit: TableCommit) -> bool:
    """Tell whether the commit is carried out later, with others."""
    step = _KEEPS.get()
    if step is not None:
        step.commits.append(commit)
    return step is not None


def commit_all(catalog: Any, commits: Sequence[TableCommit]) -> None:
    """Change these tables, all or none of them. Raises CommitFailedException where one is not as it was read."""
    producers = [producer for commit in commits for producer in commit.producers]
    try:
        _changed(catalog, commits)
    except CommitFailedException:
        for producer in producers:
            producer._clean_all_uncommitted()
        raise
    for producer in producers:
        producer._cleanup_uncommitted()
    for commit in commits:
        with suppress(
            OSError, RESTError, SQLAlchemyError
        ):  # it has happened: what is left over goes next time
            now = catalog.load_table(commit.table.name())
            catalog._delete_old_metadata(now.io, commit.table.metadata, now.metadata)


def _changed(catalog: Any, commits: Sequence[TableCommit]) -> None:
    match commits:
        case [one]:
            catalog.commit_table(one.table, one.requirements, one.updates)
        case _ if isinstance(catalog, RestCatalog):
            _send(catalog, commits)
        case _:
            _write(catalog, commits)


def _send(catalog: RestCatalog, commits: Sequence[TableCommit]) -> None:
    body = {"table-changes": [commit.request() for commit in commits]}
    response = catalog._session.post(catalog.url("transactions/commit"), json=body)
    unknown = dict.fromkeys((500, 502, 503, 504), CommitStateUnknownException)
    try:
        response.raise_for_status()
    except OSError as error:  # as all of the client's are
        answered: Any = error
        _handle_non_200_response(answered, {409: CommitFailedException, **unknown})


def _write(catalog: SqlCatalog, commits: Sequence[TableCommit]) -> None:
    """Do what ``SqlCatalog.commit_table`` does of each, in one transaction of the catalog's database."""
    written = []
    for commit in commits:
        name = commit.table.name()
        now = catalog.load_table(name)
        after = catalog._update_and_stage_table(now, name, commit.requirements, commit.updates)
        catalog._write_metadata(after.metadata, after.io, after.metadata_location)
        written.append((name, now.metadata_location, after.metadata_location))
    with Session(catalog.engine) as session:
        for name, before, location in written:
            row = update(IcebergTables).where(
                IcebergTables.catalog_name == catalog.name,
                IcebergTables.table_namespace == catalog.namespace_to_string(name[:-1]),
                IcebergTables.table_name == name[-1],
                IcebergTables.metadata_location == before,
            )
            moved: Any = session.execute(
                row.values(metadata_location=location, previous_metadata_location=before)
            )
            if moved.rowcount < 1:
                raise CommitFailedException(f"{'.'.join(name)} has been changed meanwhile")
        session.commit()
