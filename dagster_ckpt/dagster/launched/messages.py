"""Messages between a launched program and the op that launched it: its order, in the extras of Pipes, and its own.

Those of the program are custom ones of Pipes; numbered, in Dagster's own JSON. Nothing depends on a message: the
coordinator's record says how the run went.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

import dagster as dg
from dagster._serdes import deserialize_value, serialize_value
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dagster_ckpt.core.json_text import first_problem
from dagster_ckpt.core.supervision.ownership import OwnerState
from dagster_ckpt.dagster.reports.op_log import AssetEvent, OpLog
from dagster_ckpt.dagster.reports.tables import DATA_VERSION_TAG
from dagster_ckpt.errors import CheckpointError, InvalidRequest

log = logging.getLogger("dagster_ckpt.run")

KEY = "dagster_ckpt"
"""Key of a message's number: other custom messages of the program are not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The program's word on how its run ended."""

    epoch: int = 0
    lineage: str = ""
    """Identity of the pipeline's history in the store the program used."""
    skipped: str = ""
    interrupted: bool = False
    """It was asked to stop from outside, and not with a savepoint."""
    said: str = ""
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The program's word on why its run failed."""

    message: str
    is_final: bool
    """Another try would fail as well."""


# --- in the program ---------------------------------------------------------------------------------------------


class RemoteOp:
    """The op that launched this program, as events are written to it. Never raises: messages are for show."""

    def __init__(self, send: Callable[[Any], None], *, location: str = "") -> None:
        self._send = send
        self._location = location
        self._number = 0
        self._sender = uuid.uuid4().hex[:8]
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        """Code location of its run."""
        return self._location

    def info(self, message: str) -> None:
        """Say something an operator may want to read."""
        self.tell("line", level="info", text=message)

    def warn(self, message: str) -> None:
        """Say something an operator should read."""
        self.tell("line", level="warning", text=message)

    def event(self, event: AssetEvent) -> None:
        """Write an event."""
        self.tell("event", event=serialize_value(event))

    def add_partition(self, definition: str, key: str) -> None:
        """Add a dynamic partition."""
        self.tell("add_partition", definition=definition, key=key)

    def remove_partition(self, definition: str, key: str) -> None:
        """Remove a dynamic partition."""
        self.tell("remove_partition", definition=definition, key=key)

    def output(self, metadata: Mapping[str, Any]) -> None:
        """Show metadata of the run's output."""
        # Dagster serializes metadata as part of an event: what it belongs to is not read.
        self.tell("output", event=serialize_value(dg.AssetObservation("output", metadata=metadata)))

    def ended(self, end: Ended) -> None:
        """Say how the run ended."""
        self.tell("ended", **asdict(end))

    def failed(self, error: BaseException) -> None:
        """Say why the run failed."""
        kind = getattr(error, "kind", "") if isinstance(error, CheckpointError) else ""
        text = str(error) if kind else f"{type(error).__name__}: {error}"
        self.tell("failed", message=text, is_final=kind in ("invalid_request", "not_found", "fenced"))

    def tell(self, what: str, **content: Any) -> None:
        """Send a message."""
        with self._lock:
            self._number += 1
            try:
                self._send({KEY: self._number, "sender": self._sender, "what": what, **content})
            except Exception as error:
                log.warning("a message to Dagster could not be sent: %s", error)


# --- in the op ----------------------------------------------------------------------------------------------------


def _event(text: str) -> AssetEvent:
    found: Any = deserialize_value(text)
    if not isinstance(found, dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation):
        raise ValueError(f"{type(found).__name__} is no event of an asset")
    return found


@dataclass
class _Numbers:
    """Numbers of messages that were heard."""

    up_to: int = 0
    """All up to this one."""
    beyond: set[int] = field(default_factory=set)

    def is_new(self, number: int) -> bool:
        if number <= self.up_to or number in self.beyond:
            return False
        self.beyond.add(number)
        while self.up_to + 1 in self.beyond:
            self.up_to += 1
            self.beyond.remove(self.up_to)
        return True

    @property
    def missing(self) -> int:
        return max(self.beyond) - self.up_to - len(self.beyond) if self.beyond else 0


@dataclass
class Heard:
    """Listener of the op: writes each message to the op's run. Never raises: a bad message must not end the reading."""

    op: OpLog
    hold: frozenset[dg.AssetKey] = frozenset()
    """Materializations of these are kept for the op's results."""
    held: list[dg.AssetMaterialization] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    ended: Ended | None = None
    failed: Failure | None = None
    told: set[str] = field(default_factory=set)
    """Partitions of checkpoints that were added."""
    _senders: dict[str, _Numbers] = field(default_factory=dict)
    """A program that tries again numbers its messages again."""
    _over: set[str] = field(default_factory=set)
    """Senders that said how they ended."""

    def hear(self, payload: Any) -> bool:
        """Hear a custom message; False: it is not one of ours."""
        if not (isinstance(payload, Mapping) and isinstance(payload.get(KEY), int)):
            return False
        numbers = self._senders.setdefault(str(payload.get("sender", "")), _Numbers())
        if numbers.is_new(payload[KEY]):  # some readers read a message twice
            try:
                self._act(dict(payload))
            except Exception as error:
                log.warning("a message of the launched program could not be shown: %s", error)
        return True

    def hear_all(self, payloads: Iterable[Any]) -> None:
        """Hear what a client has kept to its end."""
        for payload in payloads:
            self.hear(payload)

    @property
    def lost(self) -> int:
        """Messages that are known to be missing."""
        return sum(numbers.missing for numbers in self._senders.values())

    @property
    def is_whole(self) -> bool:
        """True where every message of every try was heard."""
        return self.ended is not None and not self.lost and self._over >= self._senders.keys()

    @property
    def results(self) -> list[dg.AssetMaterialization]:
        """Materializations for the op's results; where messages were lost, one more of each asset that has none.

        Once too often, what depends on it is computed again. Left out, it would stay older than the rows.
        """
        if self.ended is not None and self.ended.skipped:
            return []
        if self.is_whole:
            return self.held
        untold = sorted(self.hold - {event.asset_key for event in self.held})
        text = "The program's message of it was lost: it may have new rows."
        changed = {DATA_VERSION_TAG: f"untold-{uuid.uuid4().hex}"}
        return [*self.held, *(dg.AssetMaterialization(key, description=text, tags=changed) for key in untold)]

    def _act(self, message: dict[str, Any]) -> None:
        if message["what"] in ("ended", "failed"):
            self._over.add(str(message.get("sender", "")))
        match message["what"]:
            case "line":
                (self.op.warn if message["level"] == "warning" else self.op.info)(message["text"])
            case "event":
                event = _event(message["event"])
                if isinstance(event, dg.AssetMaterialization) and event.asset_key in self.hold:
                    self.held.append(event)
                else:
                    self.op.event(event)
            case "add_partition":
                self.op.add_partition(message["definition"], message["key"])
                self.told.add(message["key"])
            case "remove_partition":
                self.op.remove_partition(message["definition"], message["key"])
            case "output":
                self.metadata.update(_event(message["event"]).metadata)
            case "ended":
                self.ended = Ended(**{one.name: message[one.name] for one in fields(Ended)})
                self.failed = None  # a try before this one
            case "failed":
                self.failed = Failure(message=message["message"], is_final=bool(message["is_final"]))
            case other:
                log.warning("the launched program tells %r, which this version does not know", other)


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
