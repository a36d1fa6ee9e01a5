"""The catalog of a target: settings given as data, its place without secrets, opened once in a process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from dagster_ckpt.core.paths import sqlite_path, sqlite_url
from dagster_ckpt.errors import InvalidRequest

FOLDER = "iceberg"
"""Below the folder of tables: catalog and tables of those who have no catalog."""
_SQLITE = "sqlite:///"
_BUSY_SECONDS = 30
_DEFAULT = "default"
"""Name of a catalog, and of a namespace, that was given none."""


@dataclass(frozen=True)
class CatalogSettings:
    """Settings as ``pyiceberg.catalog.load_catalog`` takes them."""

    name: str
    properties: tuple[tuple[str, str], ...] = field(repr=False)

    @property
    def place(self) -> str:
        """The catalog for people and checkpoints: no user, no password, no options."""
        given = dict(self.properties)
        uri = _without_secrets(given.get("uri", ""))
        parts = [uri or given.get("type") or "iceberg"]
        if self.name != _DEFAULT:
            parts.append(self.name)
        if not uri.startswith("sqlite:") and given.get("warehouse"):
            parts.append(given["warehouse"])
        return " ".join(parts)

    @property
    def is_missing(self) -> bool:
        """True for a SQLite catalog whose file nobody has made yet: opening it would make it."""
        file = self._file
        return file is not None and not file.exists()

    @property
    def own_folder(self) -> Path | None:
        """The folder of a catalog that this library made, with its tables in it; None: the catalog is the user's."""
        file = self._file
        return file.parent if file is not None and self == sqlite_in(file.parent) else None

    def open(self) -> Catalog:
        """Return the catalog. Raises InvalidRequest where its settings are wrong, or it forgets snapshots."""
        file = self._file
        if file is not None and not file.exists():
            _opened.cache_clear()  # of a file that was removed: its tables are made again
            file.parent.mkdir(parents=True, exist_ok=True)
        catalog = _opened(self)
        if catalog.properties.get("nessie.is-nessie-catalog") == "true":
            raise InvalidRequest(why_forgetful(self.place))
        return catalog

    @property
    def _file(self) -> Path | None:
        path = sqlite_path(dict(self.properties).get("uri", ""))
        return None if path is None else Path(path)


@cache
def _opened(settings: CatalogSettings) -> Catalog:
    given: dict[str, Any] = dict(settings.properties)
    try:
        catalog = load_catalog(settings.name, **given)
        if isinstance(catalog, SqlCatalog):
            catalog.engine.dispose()
            # A connection that is kept would stay with a file that was removed, or put back, meanwhile; and one to a
            # server that was restarted would fail the next commit.
            patience = {"timeout": _BUSY_SECONDS} if given["uri"].startswith(_SQLITE) else {}
            catalog.engine = create_engine(given["uri"], poolclass=NullPool, connect_args=patience)
        return catalog
    except (ValueError, KeyError, ImportError, ArgumentError) as error:
        raise InvalidRequest(
            f"the Iceberg catalog {settings.name} cannot be opened with {', '.join(given) or 'no settings'}: {error}"
        ) from error


def why_forgetful(place: str) -> str:
    """Return the sentence for a catalog in which no restore could go back, as Nessie 0.99 is."""
    return (
        f"the Iceberg catalog of {place} keeps a table's newest snapshot alone, and no tags: a restore could not "
        "go back to the rows of a checkpoint. Write to a table of another catalog"
    )


def settings_of(catalog: str | Mapping[str, Any], table_dir: Path) -> CatalogSettings:
    """Return the settings of a target's catalog; secrets are read from the environment here."""
    if isinstance(catalog, str) and catalog:
        return CatalogSettings(catalog, ())
    if isinstance(catalog, Mapping) and catalog:
        given = {name: resolved(name, value) for name, value in catalog.items()}
        name = given.pop("name", _DEFAULT)
        return CatalogSettings(name, tuple(sorted(given.items())))
    return sqlite_in(table_dir / FOLDER)


def sqlite_in(folder: Path) -> CatalogSettings:
    """Return the settings of a catalog in a folder, with its tables beside it."""
    uri, warehouse = sqlite_url(f"{folder}/catalog.db"), f"file://{folder}"
    return CatalogSettings(_DEFAULT, (("type", "sql"), ("uri", uri), ("warehouse", warehouse)))


def settings_at(place: str, ours: CatalogSettings) -> CatalogSettings | None:
    """Return the settings of the catalog at a place: ours, or a SQLite file of the default; None: not known."""
    if place == ours.place:
        return ours
    folder = Path(place.removeprefix(_SQLITE)).parent
    other = sqlite_in(folder)
    return other if place == other.place else None


def resolved(name: str, value: Any) -> str:
    """Return a setting that is given as text, as ``env:NAME``, or as Dagster's EnvVar."""
    variable = getattr(value, "env_var_name", None)
    if variable is None and isinstance(value, str) and value.startswith("env:"):
        variable = value.removeprefix("env:")
    if variable is None:
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str | int | float):
            raise InvalidRequest(f"the catalog's setting {name} is a {type(value).__name__}: give text")
        return str(value)
    if not os.environ.get(variable):
        raise InvalidRequest(
            f"the catalog's setting {name} is named by the variable {variable}, which is not set: set it"
        )
    return os.environ[variable]


def identifier_of(table: str) -> tuple[str, ...]:
    """Return a table's namespaces and name."""
    parts = tuple(table.split("."))
    if not all(parts):
        raise InvalidRequest(f"an Iceberg table is named like db.orders, not {table!r}")
    return parts if len(parts) > 1 else (_DEFAULT, *parts)


def _without_secrets(uri: str) -> str:
    if not uri:
        return ""
    try:
        url = make_url(uri)
    except (ArgumentError, ValueError):
        return ""
    if url.get_backend_name() == "sqlite":
        return f"{_SQLITE}{url.database}"
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host.lower()}{parts.path.rstrip('/')}"
