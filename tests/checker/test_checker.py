"""The outside checker: each anomaly has a history by hand that it finds, and it imports nothing that it judges."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checker.check import Anomaly, check, main
from tests.checker.record import Recorder
from tests.root import ROOT

BEGIN = {"event": "begin", "tables": {"rows": "append", "totals": "keyed"}}
FILES = sorted((ROOT / "tests" / "checker").glob("*.py"))


def write(n: int, pipeline: str = "", total: int | None = None) -> dict[str, Any]:
    """Write ``n`` to the rows, and the sum to its key, a or b by turns."""
    rows = {"rows": [[n]], "totals": [["ab"[n % 2], n if total is None else total]]}
    return {"event": "write", "rows": rows, "pipeline": pipeline}


def read(
    rows: list[int],
    totals: dict[str, int] | None = None,
    *,
    at: float = 1.0,
    began: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    tables: dict[str, Any] = {"rows": [[n] for n in rows]}
    if totals is not None:
        tables["totals"] = [list(one) for one in totals.items()]
    return {"event": "read", "tables": tables, "began": at if began is None else began, "at": at, **more}


W1, W2, W3 = write(1), write(2), write(3)
HISTORIES: dict[str, tuple[list[dict[str, Any]], list[Anomaly]]] = {
    "nothing": ([], []),
    "all of it": ([read([]), W1, read([1], {"b": 1}), W2, read([1, 2], {"a": 2, "b": 1}, settled=True)], []),
    "tables of different moments, each on its own": ([W1, W2, read([1], {"a": 2, "b": 1})], []),
    "through a kill": ([W1, read([1]), {"event": "kill", "at": 2}, read([1], at=3)], []),
    "a restore, and what came again": (
        [W1, W2, read([1, 2]), {"event": "restore", "keeps": 1, "began": 2, "at": 3}, read([1], at=4), W2,
         read([1, 2], at=5, settled=True)],
        [],
    ),
    "a read that began before a restore was over": (
        [W1, W2, {"event": "restore", "keeps": 1, "began": 2, "at": 3}, read([1, 2], began=2.5, at=4)],
        [],
    ),
    "readers swapped to a fork": (
        [W1, {"event": "fork", "pipeline": "f", "of": "", "keeps": 1}, write(4, "f"),
         {"event": "swap", "pipeline": "", "to": "f", "began": 1, "at": 2}, read([1, 4], at=3)],
        [],
    ),
    "a hole": ([W1, W2, W3, read([1, 3])], [Anomaly.LOST]),
    "not all in the end": ([W1, W2, read([1], settled=True)], [Anomaly.LOST]),
    "twice": ([W1, W2, read([1, 1])], [Anomaly.DOUBLED]),
    "from nowhere": ([W1, read([1, 9])], [Anomaly.PHANTOM]),
    "a key that nobody wrote": ([W1, read([1], {"b": 1, "c": 1})], [Anomaly.PHANTOM]),
    "half a sum": ([W1, read([1], {"b": 7})], [Anomaly.TORN_KEY]),
    "a key of another moment": (
        [W1, W2, W3, write(4), read([1], {"a": 4, "b": 1})],
        [Anomaly.TORN_KEY],
    ),
    "back without a restore": ([W1, W2, read([1, 2], at=1), read([1], at=2)], [Anomaly.TIME_TRAVEL]),
    "two reads at once": ([W1, W2, read([1, 2], at=1), read([1], began=0.5, at=2)], []),
    "tables that do not belong together": (
        [W1, W2, read([1], {"a": 2, "b": 1}, together=True)],
        [Anomaly.MIXED_CHECKPOINT],
    ),
    "of the fork": (
        [W1, {"event": "fork", "pipeline": "f", "of": "", "keeps": 1}, write(4, "f"), read([1, 4])],
        [Anomaly.ROW_OF_A_FORK],
    ),
    "of the origin, in the fork": (
        [W1, {"event": "fork", "pipeline": "f", "of": "", "keeps": 1}, W2, read([1, 2], pipeline="f")],
        [Anomaly.ROW_OF_A_FORK],
    ),
    "taken back": (
        [W1, W2, {"event": "restore", "keeps": 1, "began": 1, "at": 2}, read([1, 2], at=3)],
        [Anomaly.TAKEN_BACK],
    ),
    "swapped back, and still the fork's": (
        [W1, {"event": "fork", "pipeline": "f", "of": "", "keeps": 1}, write(4, "f"),
         {"event": "swap", "pipeline": "", "to": "f", "began": 1, "at": 2},
         {"event": "swap", "pipeline": "", "to": "", "began": 3, "at": 4}, read([1, 4], at=5)],
        [Anomaly.ROW_OF_A_FORK],
    ),
}  # fmt: skip


@pytest.mark.parametrize("history", list(HISTORIES))
def test_a_history_by_hand_has_these_anomalies(history: str) -> None:
    events, anomalies = HISTORIES[history]
    assert [found.anomaly for found in check([BEGIN, *events])] == anomalies


def test_every_anomaly_has_a_history() -> None:
    assert {one for _, anomalies in HISTORIES.values() for one in anomalies} == set(Anomaly)


def test_what_is_recorded_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(tmp_path / "history.jsonl", {"rows": "append"})
    recorder.write({"rows": [(1, "a")]})
    recorder.read(recorder.now(), {"rows": [(1, "a")]}, settled=True)
    assert main([str(recorder.path)]) == 0
    recorder.did("kill")
    recorder.read(recorder.now(), {"rows": []})
    assert main([str(recorder.path)]) == 1
    assert "line 5: time travel: rows shows 0 writes, and had shown 1" in capsys.readouterr().out


def test_it_imports_nothing_of_what_it_judges_and_is_short() -> None:
    checker = next(file for file in FILES if file.name == "check.py")
    assert len(checker.read_text().splitlines()) < 400
    asked = (
        "import sys, json, tests.checker.check, tests.checker.record; print(json.dumps(sorted(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not [
        name for name in json.loads(found.stdout) if name.startswith(("dagster", "pyspark", "deltalake"))
    ]
