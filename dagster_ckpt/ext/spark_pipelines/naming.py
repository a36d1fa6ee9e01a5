"""Names of datasets: qualified as Spark qualifies them, and as uids of stages."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from dagster_ckpt.errors import InvalidRequest

__all__ = ["Namespace", "parts_of"]

_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")
_PLAIN = re.compile(r"[A-Za-z0-9_]+")


def parts_of(text: str) -> tuple[str, ...] | None:
    """Return the parts of a name as Spark's parser does; None for what is no name."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            return None
        parts.append(found.group(1).replace("``", "`") if found.group(1) else found.group(2).strip())
        at = found.end()
        if at < len(text) and text[at] != ".":
            return None
        at += 1
    return tuple(parts) if parts and not text.endswith(".") else None


@dataclass(frozen=True, slots=True)
class Namespace:
    """Where names without a catalog or a schema belong."""

    catalog: str = "spark_catalog"
    database: str = "default"

    def table(self, text: str, *, what: str) -> str:
        """Return the full name of a table, ``catalog.schema.table``. Raises InvalidRequest."""
        parts = parts_of(text)
        if parts is None or len(parts) > 3 or not all(_PLAIN.fullmatch(part) for part in parts):
            raise InvalidRequest(
                f"{what} {text!r}: a name is made of letters, digits and '_' here, with a catalog and a schema before "
                "it at most, because it names files and the steps of a job"
            )
        return ".".join((*(self.catalog, self.database)[: 3 - len(parts)], *parts))

    def single(self, text: str, *, what: str) -> str:
        """Return the name of a view or a sink, which has no schema. Raises InvalidRequest."""
        parts = parts_of(text)
        if parts is None or len(parts) != 1 or not _PLAIN.fullmatch(parts[0]):
            raise InvalidRequest(f"{what} {text!r}: its name is one word of letters, digits and '_'")
        return parts[0]

    def uid(self, name: str) -> str:
        """Return the uid of a dataset: its name, without what the project has as defaults."""
        parts = name.split(".")
        if parts[:-1] == [self.catalog, self.database]:
            return parts[-1]
        kept = parts[1:] if parts[0] == self.catalog and len(parts) == 3 else parts
        return "__".join(kept)

    def full(self, text: str) -> str | None:
        """Return the full name of a table that is read; None for what is no name."""
        parts = parts_of(text)
        if parts is None or len(parts) > 3:
            return None
        return ".".join((*(self.catalog, self.database)[: 3 - len(parts)], *parts))

    def find(self, text: str, known: Collection[str]) -> str | None:
        """Return which of the project's datasets a read means; None: none of them.

        A view or sink hides a table of the same name, as in Spark. Raises InvalidRequest for a name that differs from
        a dataset's in case only: Spark would read whatever its catalog has under that name.
        """
        parts, full = parts_of(text), self.full(text)
        if parts is None or full is None:
            return None
        for wanted in (parts[0], full) if len(parts) == 1 else (full,):
            if wanted in known:
                return wanted
        folded = {name.casefold(): name for name in known}
        for wanted in (parts[0], full) if len(parts) == 1 else (full,):
            if wanted.casefold() in folded:
                raise InvalidRequest(
                    f"{text!r} is read, and the project has {folded[wanted.casefold()]!r}: write the name as it was "
                    "defined, or Spark reads an old table of its catalog"
                )
        return None
