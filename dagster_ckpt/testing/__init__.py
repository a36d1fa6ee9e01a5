"""For tests, yours included: stand-ins for the ports, faults on purpose, and the harnesses.

Everything docs/reference/testing.md names can be imported from here; a name is loaded when it is first used.

| file | what it owns |
|---|---|
| ``coordinator/`` | ``CoordinatorHarness``: the coordinator over all of these, for scenarios in a handful of lines |
| ``flink/`` | parts of Flink's protocol that no run reaches: key groups, gated events |
| ``barriers`` | ``BarrierHarness``: the input side of one stage, its channels played by the test |
| ``subtask`` | ``SubtaskHarness``: the stage's side of a checkpoint, and the notices it hears |
| ``memory`` | store, storage and topics in memory; ``ManualClock``, deletions when the test lets them |
| ``faults`` | calls that fail, vanish, hang or end the process |
| ``faulty`` | the wrappers those faults work through; ``RecordingGateway``: what tasks were asked |
| ``sink_contract`` | ``SinkContract``: what every sink must do, to subclass in a test |
| ``sinks/`` | its parts: publishing, rolling back, histories, contents |
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HARNESS = "testing.coordinator"
_HOMES: dict[str, str] = {
    # harnesses
    "CoordinatorHarness": f"{_HARNESS}.harness",
    "RecordingHook": f"{_HARNESS}.events",
    "RecordingOperatorCoordinator": f"{_HARNESS}.events",
    "Answering": f"{_HARNESS}.events",
    "BarrierHarness": "testing.barriers",
    "ALIGNED": "testing.barriers",
    "UNALIGNED": "testing.barriers",
    "AT_LEAST_ONCE": "testing.barriers",
    "SAVEPOINT": "testing.barriers",
    "timeoutable": "testing.barriers",
    "SubtaskHarness": "testing.subtask",
    # contracts
    "SinkContract": "testing.sink_contract",
    "ValueContract": "testing.sinks.values",
    "SinkRun": "testing.sinks.run",
    "Staging": "testing.sinks.run",
    # stand-ins
    "MemoryCoordinatorStore": "testing.memory",
    "MemoryCheckpointStorage": "testing.memory",
    "MemoryTopics": "testing.memory",
    "FaultyStore": "testing.faulty",
    "FaultyStorage": "testing.faulty",
    "UnreliableStore": "testing.faults",
    "UnreliableStorage": "testing.faults",
    "BlockedDeletions": "testing.faults",
    "HangingStorage": "testing.faults",
    "NestedStorage": "testing.memory",
    "FailNext": "testing.faults",
    "CrashAt": "testing.faults",
    "Unreliable": "testing.faults",
    "Gate": "testing.faults",
    "RecordCalls": "testing.faults",
    "Operation": "testing.faulty",
    "Fault": "testing.faulty",
    "Call": "testing.faulty",
    "SimulatedCrash": "testing.faulty",
    "ManualClock": "testing.memory",
    "RecordingGateway": "testing.faulty",
    "ManualBackground": "testing.memory",
    # what they answer with
    "AcknowledgeResult": "core.messages",
    "CheckpointFailureReason": "core.messages",
    "FailureDecision": "core.checkpoint.failures",
    "Triggered": "core.request",
    "Queued": "core.request",
    "Rejected": "core.request",
    "Pending": "core.request",
    "Completed": "core.request",
    "Failed": "core.request",
    # pieces with rules of their own
    "RequestQueue": "core.checkpoint.requests",
    "FailureCounter": "core.checkpoint.failures",
    "calculate_plan": "core.checkpoint.tasks",
    "CompletedStore": "core.files.retention",
    "Cleanups": "core.files.cleaning",
    "SharedStateRegistry": "core.files.cleaning",
    "snapshot_of": "core.checkpoint.statistics",
    "match_stages": "core.restore.matching",
    "options_for": "core.alignment.events",
    "CheckpointConfig": "core.config",
    "RestoreOptions": "core.config",
}
"""Name -> the module that owns it."""

_MODULES: dict[str, str] = {
    "alignment": "core.alignment",
    "assignment": "testing.flink.key_groups",
    "cleaning": "core.files.cleaning",
    "config": "core.config",
    "failures": "core.checkpoint.failures",
    "finished_state": "core.restore.matching",
    "graph": "core.graph",
    "ids": "core.ids",
    "key_groups": "testing.flink.key_groups",
    "list_state": "authoring.own_objects",
    "local_recovery": "core.files.retention",
    "matching": "core.restore.matching",
    "messages": "core.messages",
    "metadata_text": "core.metadata_text",
    "model": "core.model",
    "outcomes": "core.request",
    "plan": "core.checkpoint.tasks",
    "properties": "core.request",
    "reasons": "core.messages",
    "requests": "core.checkpoint.requests",
    "retention": "core.files.retention",
    "shared_state": "core.files.cleaning",
    "statistics": "core.checkpoint.statistics",
}
"""Modules whose rules a scenario may want as a whole -> where each is."""

__all__ = [*_HOMES, *_MODULES]  # noqa: PLE0604 - every key of the tables is a name this module answers to


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, and keep it. Raises AttributeError for all others."""
    if name in _MODULES:
        value: Any = import_module(f"dagster_ckpt.{_MODULES[name]}")
    elif name in _HOMES:
        value = getattr(import_module(f"dagster_ckpt.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, whether imported yet or not."""
    return sorted({*globals(), *__all__})
