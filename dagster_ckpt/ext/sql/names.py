"""Names in a database: of the user's table, of those beside it, and which names a database cannot have or keeps."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.sink.accepts import NameRule, no_longer_names, no_names

RESERVED = "_dagster_ckpt_"
"""Columns, tables and aliases that begin so are ours, so that no statement of ours meets a name of the user's."""
_BESIDE = "__dagster_ckpt_"
"""Part of the names of tables beside the user's."""
_OURS = ("dagster_ckpt_positions", "dagster_ckpt_publishes")
_BYTES = 63
"""PostgreSQL cuts longer names off in silence: two of them may be one."""
_ASCII_LOWER = {ord(upper): upper.lower() for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}

_OF_ALL = (
    NameRule(
        broken=lambda name: not name or "\0" in name, what="is none that a database can have", of_fields=False
    ),
)
COLUMN_NAMES: dict[str, tuple[NameRule, ...]] = {
    "sqlite": _OF_ALL,
    "postgresql": (
        *_OF_ALL,
        no_names(("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"), "every table of PostgreSQL"),
        no_longer_names(_BYTES, "PostgreSQL"),
    ),
}
"""Names that columns cannot have, by database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlName:
    """Name of a table, and its quoted form."""

    schema: str
    name: str
    compared: str = ""
    """The name as the database compares it: one row of positions, and one place, for all its spellings."""

    @classmethod
    def parsed(cls, text: str, backend: str) -> SqlName:
        """Return ``table`` or ``schema.table``. Raises InvalidRequest for a name that the database cannot have."""
        schema, _, name = text.rpartition(".")
        if backend == "sqlite" and schema.translate(_ASCII_LOWER) == "main":
            schema = ""
        why = _why_no_table(schema, name, backend)
        if why:
            raise InvalidRequest(f"table {text!r} {why}: give it another name, SqlTable(url, name)")
        return cls(schema=schema, name=name, compared=compared(name, backend))

    def with_suffix(self, suffix: str) -> SqlName:
        """Return the name of one of its side tables; one that would be too long has a part of the name and a digest."""
        return SqlName(schema=self.schema, name=self.generated(f"{_BESIDE}{suffix}"))

    def generated(self, suffix: str) -> str:
        """Return the name with a suffix, short enough for every database, and no other table's."""
        whole = self.name + suffix
        if len(whole.encode()) <= _BYTES:
            return whole
        suffix = f"_{sha256((self.compared or self.name).encode()).hexdigest()[:12]}{suffix}"
        kept = self.name.encode()[: _BYTES - len(suffix.encode())].decode(errors="ignore")
        return kept + suffix

    def quoted(self) -> str:
        """Return the name as SQL has it, for a statement that no driver looks for parameters in."""
        return ".".join(quoted(part) for part in (self.schema, self.name) if part)

    @property
    def place(self) -> str:
        """The table in the name of its place."""
        name = self.compared or self.name
        return f"{self.schema}.{name}" if self.schema else name

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


def quoted(identifier: str) -> str:
    """Return an identifier as SQL has it."""
    return '"' + identifier.replace('"', '""') + '"'


def compared(name: str, backend: str) -> str:
    """Return a table's or column's name as the database compares it: SQLite takes letters A to Z in any case."""
    return name.translate(_ASCII_LOWER) if backend == "sqlite" else name


def _why_no_table(schema: str, name: str, backend: str) -> str:
    lower = compared(name, "sqlite")
    if lower in _OURS or lower.startswith(RESERVED) or _BESIDE in lower:
        return "has a name of a table that the library keeps beside others"
    if backend == "sqlite" and schema:
        return "has a dot, and SQLite has no schemas"
    if backend == "sqlite" and lower.startswith("sqlite_"):
        return "begins with 'sqlite_', which SQLite keeps for itself"
    if schema.startswith("pg_"):
        return "is in a schema that PostgreSQL keeps for itself"
    return _why_no_name(name, backend) or (_why_no_name(schema, backend) if schema else "")


def _why_no_name(name: str, backend: str) -> str:
    if not name or "\0" in name:
        return "has no name that a database can have"
    if backend == "postgresql" and len(name.encode()) > _BYTES:
        return f"is {len(name.encode())} bytes long, and PostgreSQL cuts names off at {_BYTES}"
    return ""
