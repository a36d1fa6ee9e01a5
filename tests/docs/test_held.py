"""The page on other sinks says of each target what it declares that it can hold."""

from __future__ import annotations

import pytest

from dagster_ckpt.ext.delta import columns as delta
from dagster_ckpt.ext.iceberg import columns as iceberg
from dagster_ckpt.ext.kafka import sink as kafka
from dagster_ckpt.ext.kafka.broker import TopicSettings
from dagster_ckpt.ext.sql.columns import DIALECTS
from dagster_ckpt.spark.sink.accepts import Accepts
from tests.root import ROOT

LINES = (ROOT / "docs/how-to/sinks.md").read_text().split("| does not hold |")[1].splitlines()
TOLD = ("UTF-8", "character NUL", "NaN", "years 1 to 9999", "empty text", "no value", "bytes of")
DECLARED = {
    "`DeltaTable`": delta.accepted(("country",)),
    "`IcebergTable`": iceberg.accepted(("country",)),
    "`SqlTable`, PostgreSQL": DIALECTS["postgresql"].accepts(("k",), ("k",)),
    "`SqlTable`, SQLite": DIALECTS["sqlite"].accepts(("k",), ("k",)),
    "`KafkaTopic`": kafka.accepted(TopicSettings(most_bytes=1_000_000, needs_key=True)),
}


@pytest.mark.parametrize("target", DECLARED)
def test_the_page_says_what_a_target_cannot_hold(target: str) -> None:
    (line,) = [line for line in LINES if line.startswith(f"| {target} |")]
    accepts: Accepts = DECLARED[target]
    rules = [rule.what for rule in (*accepts.values, *accepts.columns)]
    assert [told for told in TOLD if told in line] == [t for t in TOLD if any(t in what for what in rules)]
