"""The page about metrics names every gauge there is, and its alerts no other."""

from __future__ import annotations

import re

import yaml

from dagster_ckpt.ext.metrics.command import PREFIX
from dagster_ckpt.ext.metrics.gauges import GAUGES, READABLE
from tests.root import ROOT

PAGE = (ROOT / "docs" / "extensions" / "metrics.md").read_text()
NAMES = {gauge.name for gauge in (READABLE, *GAUGES)}


def test_the_table_has_every_gauge_and_no_other() -> None:
    table = PAGE.split("## Gauges")[1].split("The lag of a source")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `") and "…" not in line]
    told = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    assert told == NAMES


def test_the_alerts_are_rules_about_gauges_there_are() -> None:
    rules = yaml.safe_load(PAGE.split("## Three alerts")[1].split("```yaml")[1].split("```")[0])
    found = rules["groups"][0]["rules"]
    assert len(found) == 3
    for rule in found:
        named = re.findall(rf"{PREFIX}(\w+)", rule["expr"])
        assert named
        assert set(named) <= NAMES, rule["alert"]
