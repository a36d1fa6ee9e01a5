"""Where a pipeline's stages run when it is not in Dagster's own process: a Pipes client, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from dagster_ckpt.core.settings import refusing_unknown
from dagster_ckpt.errors import InvalidRequest

_OURS = ("context", "extras")

Context = dg.OpExecutionContext | dg.AssetExecutionContext


@refusing_unknown
@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Launch of a plain program that runs a pipeline's stages elsewhere and calls ``run_launched``."""

    client: dg.PipesClient
    """Any Pipes client: ``PipesSubprocessClient``, ``PipesDatabricksClient``, ``PipesK8sClient`` …"""
    arguments: Mapping[str, Any] | Callable[[Context], Mapping[str, Any]] = field(default_factory=dict)
    """What the client's ``run`` takes beside ``context`` and ``extras``, such as ``command`` or ``task``; or a function
    of the op's context that returns it."""

    def __post_init__(self) -> None:
        if not isinstance(self.client, dg.PipesClient):
            raise InvalidRequest(
                f"launch: client={self.client!r} is no Pipes client: give one, such as dg.PipesSubprocessClient()"
            )
        if not callable(self.arguments):
            self._refuse_ours(self.arguments)

    def arguments_for(self, context: Context) -> dict[str, Any]:
        """Return the arguments of the client's ``run`` in an op. Raises InvalidRequest."""
        found = dict(self.arguments(context) if callable(self.arguments) else self.arguments)
        self._refuse_ours(found)
        return found

    @staticmethod
    def _refuse_ours(arguments: Mapping[str, Any]) -> None:
        taken = sorted(set(arguments) & set(_OURS))
        if taken:
            raise InvalidRequest(f"launch: arguments has {taken[0]!r}, which the op gives: leave it out")
