"""Set-up by the tests that were selected, what a change leaves out, and faults that can still be put back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.again import AT_MOST, run_again
from scripts.change import STANDS_ON, left_out
from scripts.mutants import FAULTS
from tests.needs import NEEDS, needs, refuse_unmarked, to_install
from tests.root import ROOT


@pytest.mark.slow
def test_selected_tests_get_what_they_need_and_all_tests_everything() -> None:
    def told(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "scripts.needs", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()

    assert told("tests/core/test_label.py", "-x") == []
    assert told("tests/adapters/test_sql_storage.py", "tests/contract/test_topic_log.py") == [
        *("postgres", "java", "kafka", "spark_kafka")
    ]
    assert set(told()) == {"spark_s3", *(word for words in NEEDS.values() for word in words)}
    assert "spark_s3" not in to_install(["s3"]), "moto needs no connector of Hadoop's"


def test_a_test_that_comes_to_a_server_without_a_marker_fails() -> None:
    @needs("kafka")
    def broker() -> None: ...

    definition: Any = SimpleNamespace(func=broker, argname="broker")
    for marked, refused in ((None, True), (pytest.mark.kafka, False)):
        item: Any = SimpleNamespace(nodeid="tests/t.py::t", get_closest_marker=lambda _, found=marked: found)
        if refused:
            with pytest.raises(pytest.fail.Exception, match=r"starts broker: mark .* \['kafka'\]"):
                refuse_unmarked(definition, item)
        else:
            refuse_unmarked(definition, item)


def test_a_change_leaves_out_extensions_that_it_does_not_touch() -> None:
    assert [name for paths in STANDS_ON.values() for name in paths if not list(ROOT.glob(f"{name}*"))] == []
    everything = [*STANDS_ON]
    assert left_out(["dagster_ckpt/core/model.py"]) == everything
    assert left_out(["dagster_ckpt/spark/sink/port.py"]) == []
    assert "tests/spark/cluster" not in left_out(["tests/spark/cluster/test_lost.py"])
    assert "tests/ext/warm" not in left_out(["dagster_ckpt/spark/session.py"])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_of_the_past_can_be_put_back(fault: Any) -> None:
    text = (ROOT / "dagster_ckpt" / fault.file).read_text()
    assert text.count(fault.mended) == 1, "move its text in scripts/mutants.py along with the code"
    assert (ROOT / fault.test.split()[0]).is_file()


def test_a_failed_test_is_told_as_unstable_when_it_passes_alone_and_fails_the_run_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tests = tmp_path / "test_two.py"
    tests.write_text("def test_passes(): pass\ndef test_fails(): assert 0\n")
    passes, fails = f"{tests}::test_passes", f"{tests}::test_fails"
    assert run_again([passes]) == 0
    assert f"to be mended (what failed stands above):\n  {passes}" in capfd.readouterr().out
    assert run_again([passes, fails]) == 1
    assert run_again([passes] * (AT_MOST + 1)) == run_again([]) == 1
    assert "UNSTABLE" not in capfd.readouterr().out
