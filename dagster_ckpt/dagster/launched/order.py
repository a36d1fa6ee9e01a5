"""Order to a launched program: all that the run's config and tags say, as JSON in the extras of Pipes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dagster_ckpt.core.json_text import first_problem
from dagster_ckpt.core.supervision.ownership import OwnerState
from dagster_ckpt.errors import InvalidRequest

EXTRA = "dagster_ckpt"
"""Key of the order in the extras."""


class RunKind(StrEnum):
    """Kind of run."""

    EPOCH = "epoch"
    STREAM = "stream"


class Order(BaseModel):
    """Order of one run; without addresses of a store or storage: these may carry secrets, and the program has them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: Literal[1] = 1
    work: RunKind
    pipeline: str
    stages: tuple[str, ...]
    """Stages as the code location knows them."""
    run_id: str
    root: str
    job_name: str
    restore_op: str
    location: str = ""
    """Code location, for links."""
    ui_base_url: str = ""
    page: str = ""
    restore: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    stage_config: dict[str, dict[str, Any]] = Field(default_factory=dict)
    approved: str = ""
    who: str = ""
    shown: tuple[str, ...] = ()
    concurrent_runs: str = ""
    how_to_stop: str = ""
    ended_run: str = ""
    """A run that Dagster knows has ended: the program need not wait for its lease …"""
    ended_state: OwnerState = OwnerState.UNKNOWN
    """… and how."""
    stream: dict[str, Any] = Field(default_factory=dict)
    """Config of a streaming run: restarts, pauses between batches, what is reported."""
    report: str = ""

    def extras(self) -> dict[str, Any]:
        """Return the extras of Pipes that carry it."""
        return {EXTRA: self.model_dump(mode="json")}

    @classmethod
    def of(cls, extras: Mapping[str, Any]) -> Order:
        """Return the order in the extras. Raises InvalidRequest where there is none, or one of another version."""
        if EXTRA not in extras:
            raise InvalidRequest(
                "Dagster launched this program, but not as a checkpointed pipeline: launch it by "
                "PipelineOptions(launch=Launch(...)), or call run_epoch or run_stream"
            )
        try:
            return cls.model_validate(extras[EXTRA])
        except ValidationError as error:
            raise InvalidRequest(
                f"the order that Dagster launched this program with cannot be read ({first_problem(error)}): install "
                "the same version of dagster_ckpt in the code location and in the program"
            ) from error
