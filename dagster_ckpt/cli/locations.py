"""Locations of a deployment: from options, the environment, or Dagster's own storage directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.core.location import is_in_store, local_folder, sqlite_url
from dagster_ckpt.errors import InvalidRequest, NotFound
from dagster_ckpt.operations.deployment import Deployment

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
