"""Start modes of a rebuilt stage: where its sources begin to read, whatever its code says, as Flink's start modes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.wrapped import options_asked, readers

FROM_BEGINNING, FROM_NOW = "from-beginning", "from-now"
_KEEPS_NOTHING = ("rate", "socket")
_BEGINS = ("startingtimestamp", "startingoffsetsbytimestamp", "startingoffsets")
"""Options of Kafka's reader that say where it begins, the strongest first."""


@dataclass(frozen=True, slots=True)
class StartMode:
    """Start mode of all sources of a branch."""

    name: str = ""
    """Empty: as the code says."""
    moment: datetime | None = None

    @classmethod
    def of(cls, text: str) -> StartMode:
        """Return the mode that a text names. Raises InvalidRequest."""
        if text in ("", FROM_BEGINNING, FROM_NOW):
            return cls(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            wanted = f"{FROM_BEGINNING}, {FROM_NOW}, or a moment such as 2026-11-28T06:00Z"
            raise InvalidRequest(f"start mode {text!r} is none of {wanted}") from None
        return cls(text, moment if moment.tzinfo else moment.replace(tzinfo=UTC))

    def begun(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a source's function whose readers begin there."""
        if not self.name:
            return function

        @functools.wraps(function)
        def called(*given: Any, **named: Any) -> Any:
            with readers(self._beginning):
                return function(*given, **named)

        return called

    def _beginning(self, _name: str, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(reader: Any, *given: Any, **options: Any) -> Any:
            asked = options.get("format") or options_asked(reader).get("format")
            return load(reader.options(**self._options(str(asked).lower())), *given, **options)

        return loaded

    def _options(self, source: str) -> Mapping[str, str]:
        if source != "kafka":
            return {}
        if self.moment is not None:
            at = str(int(self.moment.timestamp() * 1000))
            return {"startingTimestamp": at, "startingOffsetsByTimestampStrategy": "latest"}
        return {"startingOffsets": "earliest" if self.name == FROM_BEGINNING else "latest"}

    def refuse(self, uid: str, source: str, said: Mapping[str, str]) -> None:
        """Raise InvalidRequest where a source does not begin there; ``said``: its options, by names in small letters.

        Without a mode: where it does not say where it begins, or keeps no rows.
        """
        if why := self._why_not(source, said):
            raise InvalidRequest(f"{uid!r} reads {source}, {why}")

    def _why_not(self, source: str, said: Mapping[str, str]) -> str:
        if source.startswith(_KEEPS_NOTHING):
            gone = "which keeps no rows: what was read is gone, and nothing is rebuilt of it. Give its sink a new uid"
            return "" if self.name == FROM_NOW else f"{gone}, or begin {FROM_NOW}"
        if source == "kafka":
            if not said.keys() & set(_BEGINS):
                return (
                    "and does not say where, so that Spark begins at the end: give a start mode, or its reader "
                    "startingOffsets or startingTimestamp, which only a query's first batch reads"
                )
            stronger = [one for one in _BEGINS[:2] if one in said and self.name and self.moment is None]
            return f"with {stronger[0]}, which is stronger than {self.name}: leave it out" if stronger else ""
        if source.startswith("filesource") and self.name in ("", FROM_BEGINNING):
            return ""
        if source.startswith("filesource"):
            return (
                "and Spark reads all of a folder: have its reader name the files that are to be read (a path, "
                f"pathGlobFilter), and begin {FROM_BEGINNING}"
            )
        return self.name and (
            f"of which it is not known how to begin {self.name}: say it in the reader's options, and give no start mode"
        )
