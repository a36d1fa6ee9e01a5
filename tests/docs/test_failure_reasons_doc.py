"""The table of failure reasons that people read is the one the code has."""

from __future__ import annotations

import re

from dagster_ckpt.core.checkpoint.failures import FailureDecision
from dagster_ckpt.core.messages import CheckpointFailureReason
from tests.root import ROOT

DOC = ROOT / "docs" / "reference" / "failure-reasons.md"


def test_every_reason_is_in_the_table_as_the_code_has_it() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (yes)? ?\| (yes)? ?\| .+ \| .+ \|$", DOC.read_text(), re.M)
    found = {name: (bool(pre_flight), bool(counted)) for name, pre_flight, counted in rows if name.count("_")}
    reasons = {r.name: (r.pre_flight, r.counted) for r in CheckpointFailureReason}
    assert {k: v for k, v in found.items() if k in reasons} == reasons
    assert len(reasons) == 24


NEEDS = {
    "BLOCKING_OUTPUT_EXIST": r"Edge\([^)]*blocking",
    "CHANNEL_STATE_SHARED_STREAM_EXCEPTION": r"CHANNEL_STATE_SHARED_STREAM_EXCEPTION",
    "CHECKPOINT_DECLINED_TASK_NOT_READY": r"TaskPhase",
    "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM": r"EndOfPartition",
    "TASK_FAILURE": r"StageStatus\.(FAILED|CANCELED)",
    "TASK_CHECKPOINT_FAILURE": r"\.TASK_CHECKPOINT_FAILURE",
    "UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE": r"UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE",
}
"""What a run would have to say for a reason; where one begins to, its mark on the page is to go."""
RUNS = ("authoring", "spark", "runtime", "operations", "dagster")
ONLY_TOLD = ("core/messages.py", "dagster/supervision.py")


def sources(*rooms: str) -> dict[str, str]:
    """Return the text of the library's files in some rooms."""
    library = ROOT / "dagster_ckpt"
    files = [file for room in rooms for file in (library / room).rglob("*.py")]
    return {str(file.relative_to(library)): file.read_text() for file in files}


def test_what_is_marked_as_given_by_no_run_is_given_by_none() -> None:
    marked = set(re.findall(r"^\| `([A-Z_]+)` \|.*\*no run\*", DOC.read_text(), re.M))
    assert marked == set(NEEDS)
    for reason, needed in NEEDS.items():
        said = [name for name, text in sources(*RUNS).items() if re.search(needed, text)]
        assert not said, f"{reason} may be given by a run now: {said}"


def test_every_other_reason_is_given_somewhere() -> None:
    texts = [text for name, text in sources("core", *RUNS).items() if name not in ONLY_TOLD]
    for reason in CheckpointFailureReason:
        given = any(re.search(rf"\b{reason.name}\b", text) for text in texts)
        assert given or reason.name in NEEDS, f"nothing gives {reason.name}: mark it on the page"


def test_every_decision_is_explained() -> None:
    text = DOC.read_text()
    assert all(f"`{decision.name}`" in text for decision in FailureDecision)
