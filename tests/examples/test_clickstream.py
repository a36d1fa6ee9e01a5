"""The example does what it says, on a real broker; its own checks fail where a table differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.clickstream.__main__ import main
from tests.adapters.servers import KafkaBroker


@pytest.mark.nightly
@pytest.mark.usefixtures("spark")
def test_clickstream(
    kafka_for_spark: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(tmp_path, kafka_for_spark.address)
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "sessions: 195 rows, equal to the truth"
