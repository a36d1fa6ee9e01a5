"""Tables of one catalog that change at one moment: what their sinks commit is kept, and carried out as one change.

A SQL catalog is changed in one transaction of its database, a REST catalog by one request. Only one that names
``transactions/commit`` among its endpoints is asked for it, and only one that has shown, with a change that must not
happen, that it carries out all of a request or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from pyiceberg.catalog.rest import Endpoint, RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    RESTError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
)

from dagster_ckpt.errors import CheckpointError, Unavailable
from dagster_ckpt.ext.iceberg.catalogs import CatalogSettings
from dagster_ckpt.ext.iceberg.lake import Outside, committing
from dagster_ckpt.ext.iceberg.together import Step, TableCommit, commit_all, publishing
from dagster_ckpt.ext.iceberg.version import MAIN
from dagster_ckpt.spark.sink.versioned.backend import Raced

T = TypeVar("T")
_ENDPOINT = Endpoint.from_string("POST /v1/{prefix}/transactions/commit")
_TRIES = 20
"""Commits of others that may come in between before the next checkpoint tries again."""
_PROBE = "dagster_ckpt.probe"
"""Property of a table that no request leaves behind in a catalog that keeps its word."""
_NO_SNAPSHOT = 1
"""Id that no snapshot has: they are random."""
_PASSING = (
    AuthorizationExpiredError,
    CommitStateUnknownException,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
)
"""Answers that say nothing of what a catalog can do."""
_SHOWN: dict[CatalogSettings, str] = {}
"""Why the catalog cannot be trusted with several tables, once it was tried; empty: it can."""


@dataclass(frozen=True)
class CatalogJoint:
    """The tables of one catalog."""

    settings: CatalogSettings

    @classmethod
    def of(cls, settings: CatalogSettings) -> CatalogJoint | None:
        """Return the joint of a catalog that changes several tables at once, or says that it does; None for others."""
        if settings.is_missing:  # a SQL catalog that is made with the first table
            return cls(settings)
        try:
            catalog = settings.open()
        except (CheckpointError, RESTError, OSError):  # what is wrong is said by what needs the catalog
            return None
        says_so = isinstance(catalog, RestCatalog) and _ENDPOINT in catalog._supported_endpoints
        return cls(settings) if says_so or isinstance(catalog, SqlCatalog) else None

    @property
    def why_apart(self) -> str:
        """Why the catalog is not asked for it, though it names the endpoint."""
        return _SHOWN.get(self.settings, "")

    def step(self, work: Callable[[], T]) -> T:
        """Publish to several tables, and commit all of it at once; again where others came in between."""
        for _ in range(_TRIES):
            step = Step()
            with publishing(None if self.why_apart else step):
                done = work()
            try:
                self._commit(step.commits)
            except Raced:
                continue
            for act in step.afterwards:
                act()
            return done
        raise Unavailable(
            f"the tables of {self.settings.place} were changed by others {_TRIES} times in a row before we could: it "
            "is tried again"
        )

    def _commit(self, commits: list[TableCommit]) -> None:
        if not commits:
            return
        catalog: Any = self.settings.open()
        with committing(f"of {self.settings.place}"):
            is_tried = not isinstance(catalog, RestCatalog) or self.settings in _SHOWN
            if len(commits) > 1 and not is_tried:
                _SHOWN[self.settings] = _why_not_together(catalog, self.settings.place, commits)
                if self.why_apart:
                    raise Raced  # the work is done again, one table after the other
            Outside.commit_together(catalog, commits)


def _why_not_together(catalog: Any, place: str, commits: list[TableCommit]) -> str:
    """Return a catalog's fault with a request that must change nothing; empty: it changes nothing."""
    first, second = commits[0].table, commits[1].table
    token = uuid4().hex
    mark = SetPropertiesUpdate(updates={_PROBE: token})
    never = AssertRefSnapshotId.model_validate({"ref": MAIN, "snapshot-id": _NO_SNAPSHOT})
    request = [
        TableCommit(first, (AssertTableUUID(uuid=first.metadata.table_uuid),), (mark,)),
        TableCommit(second, (never,), (mark,)),
    ]
    told = f"the catalog {place} names transactions/commit among its endpoints, but"
    apart = (
        "its tables are changed one after the other, and a reader of several may find them at two checkpoints"
    )
    try:
        commit_all(catalog, request)
        why = f"{told} takes no notice of what a table has to be like: {apart}"
    except CommitFailedException:
        why = ""
    except _PASSING:
        raise
    except (NotImplementedError, RESTError) as error:
        return f"{told} does not serve it ({error}): {apart}"
    left = [one for one in (first, second) if catalog.load_table(one.name()).properties.get(_PROBE) == token]
    for table in left:
        catalog.commit_table(table, (), (RemovePropertiesUpdate(removals=[_PROBE]),))
    return why or (f"{told} carries out a part of a request: {apart}" if left else "")
