"""A reporter that remembers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Lines:
    """A reporter that remembers."""

    said: list[str] = field(default_factory=list)

    def info(self, message: str) -> None:
        self.said.append(message)

    def warn(self, message: str) -> None:
        self.said.append(f"WARN {message}")
