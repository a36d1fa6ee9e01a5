"""The table of failure reasons that people read is the one the code has."""

from __future__ import annotations

import re
from pathlib import Path

from dagster_ckpt.core.failures import FailureDecision
from dagster_ckpt.core.reasons import CheckpointFailureReason

DOC = Path(__file__).parents[2] / "docs" / "reference" / "failure-reasons.md"


def test_every_reason_is_in_the_table_as_the_code_has_it() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (yes)? ?\| (yes)? ?\| .+ \| .+ \|$", DOC.read_text(), re.M)
    found = {name: (bool(pre_flight), bool(counted)) for name, pre_flight, counted in rows if name.count("_")}
    reasons = {r.name: (r.pre_flight, r.counted) for r in CheckpointFailureReason}
    assert {k: v for k, v in found.items() if k in reasons} == reasons
    assert len(reasons) == 24


def test_every_decision_is_explained() -> None:
    text = DOC.read_text()
    assert all(f"`{decision.name}`" in text for decision in FailureDecision)
