"""Commits that are kept for the end of a step, and sent as one request for several tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import CommitTableRequest, Namespace, Table, TableIdentifier
from pyiceberg.table.update import TableRequirement, TableUpdate


@dataclass(frozen=True, slots=True)
class TableCommit:
    """What one table's part of a request is."""

    table: Table
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]

    def request(self) -> dict[str, Any]:
        """Return it as REST catalogs take it."""
        *namespace, name = self.table.name()
        told = CommitTableRequest(
            identifier=TableIdentifier(namespace=Namespace(namespace), name=name),
            requirements=self.requirements,
            updates=self.updates,
        )
        return told.model_dump(mode="json", by_alias=True)


@dataclass(slots=True)
class Step:
    """What is committed at its end."""

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


def commit_all(catalog: RestCatalog, commits: list[TableCommit]) -> None:
    """Send one request. Raises CommitFailedException where a table is not as it was read."""
    body = {"table-changes": [commit.request() for commit in commits]}
    response = catalog._session.post(catalog.url("transactions/commit"), json=body)
    unknown = dict.fromkeys((500, 502, 503, 504), CommitStateUnknownException)
    try:
        response.raise_for_status()
    except OSError as error:  # as all of the client's are
        answered: Any = error
        _handle_non_200_response(answered, {409: CommitFailedException, **unknown})
