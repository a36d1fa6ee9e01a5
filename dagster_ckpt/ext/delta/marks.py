"""Marks: what each of our commits says, and the history of a table read through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from dagster_ckpt.errors import Corrupt
from dagster_ckpt.spark.sink.log_table import MARK_PREFIX, TableMark

_SAME_ROWS = ("OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES")
"""Operations after which the table has the same rows."""


class Mark(TableMark):
    """What the table has seen of one sink, in the metadata of a commit as ``dagster_ckpt.<name>``."""

    staged: tuple[str, ...] = ()
    """Staged folders whose files this commit made part of the table."""
    reapply: dict[str, str] = Field(default_factory=dict)
    """Properties that somebody set after the version which this commit restored: they are to be set again."""
    rewrites: bool = False
    """Rows by key: what was staged went into other files, as did those that stay of files which left the table."""

    def metadata(self) -> dict[str, Any]:
        """Return it as metadata of a commit."""
        left_out = {name for name in ("reapply", "rewrites") if not getattr(self, name)}
        said = self.model_dump(mode="json", exclude=left_out)
        return {MARK_PREFIX + name: value for name, value in said.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of the table."""

    version: int
    timestamp_ms: int
    operation: str
    mode: str
    mark: Mark | None
    """None: it is not ours."""
    restored: int | None = None
    """Version that somebody else restored by it; below 0: one that it does not name. None: it restored none."""

    @property
    def changes_rows(self) -> bool:
        """False where it only arranged the same rows otherwise, or set the table's properties."""
        return self.operation not in _SAME_ROWS

    @property
    def only_adds(self) -> bool:
        """True where no file left the table by it."""
        return self.mode == "Append" or self.operation in ("CREATE TABLE", "ADD COLUMN")


def commits(table: Any, owner: tuple[str, str] | None, *, limit: int | None = None) -> list[Commit]:
    """Return the versions that the table's log still tells of, newest first, with the marks of one sink.

    ``owner`` is its (pipeline, uid); None: those of all.
    """
    return [_commit(entry, owner) for entry in table.history(limit)]


def newest_mark(table: Any, owner: tuple[str, str]) -> Mark | None:
    """Return the newest of our marks, with what the table shows of us; others may have committed since.

    None: the log has none.
    """
    limit: int | None
    for limit in (1, 32, None):
        found = commits(table, owner, limit=limit)
        is_whole = limit is None or len(found) < limit
        mark = next((commit.mark for commit in found if commit.mark is not None), None)
        shown = _shown(found)
        if shown is None and not is_whole:
            continue
        if mark is None or shown is mark:
            return mark
        kept: dict[str, Any] = {"head": None, "through_batch": None, "key": ""}
        if shown is not None:
            kept = {name: getattr(shown, name) for name in kept}
        return mark.model_copy(update=kept)
    return None


def _shown(found: Sequence[Commit]) -> Mark | None:
    """Return the newest of our marks in what readers see: where somebody restored an older version, one up to that."""
    through = found[0].version if found else -1
    for commit in found:
        if commit.version > through:
            continue
        if commit.mark is not None:
            return commit.mark
        if commit.restored is not None:
            through = commit.restored
    return None


def version_of(history: Sequence[Commit], head: int) -> Commit | None:
    """Return the newest version that shows checkpoint ``head``."""
    return next((c for c in history if c.mark is not None and c.mark.head == head), None)


def others_since(history: Sequence[Commit], version: int) -> Commit | None:
    """Return the oldest later version by which somebody else changed rows."""
    later = [c for c in history if c.version > version and c.mark is None and c.changes_rows]
    return later[-1] if later else None


def _commit(entry: dict[str, Any], owner: tuple[str, str] | None) -> Commit:
    fields = {name.removeprefix(MARK_PREFIX): v for name, v in entry.items() if name.startswith(MARK_PREFIX)}
    mark = None
    if fields and (owner is None or (fields.get("pipeline"), fields.get("sink")) == owner):
        try:
            mark = Mark.model_validate({**fields, "staged": tuple(fields.get("staged") or ())})
        except ValidationError as error:
            raise Corrupt(
                f"version {entry['version']} carries a mark of a newer version of dagster_ckpt: {error}. Use that one"
            ) from error
    parameters = entry.get("operationParameters") or {}
    return Commit(
        version=entry["version"],
        timestamp_ms=entry.get("timestamp") or 0,
        operation=entry.get("operation") or "",
        mode="" if fields.get("rewrites") else str(parameters.get("mode", "")),
        mark=mark,
        restored=_restored(parameters) if entry.get("operation") == "RESTORE" and mark is None else None,
    )


def _restored(parameters: dict[str, Any]) -> int:
    named = str(parameters.get("version"))
    return int(named) if named.isdecimal() else -1
