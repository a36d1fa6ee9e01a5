"""The sink of docs/how-to/own-sink.md is about forty lines, and passes the contract as the page says."""

from __future__ import annotations

import json
import re
import sys
from types import ModuleType
from typing import Any

from tests.root import ROOT

PAGE = ROOT / "docs" / "how-to" / "own-sink.md"
MODULE, ACCEPTS, TEST = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

json_lines = ModuleType("json_lines")
sys.modules["json_lines"] = json_lines
exec(compile(MODULE, "json_lines.py", "exec"), vars(json_lines))

_names = dict(vars(json_lines))
exec(compile(TEST, "test_json_lines.py", "exec"), _names)
TestJsonLines = _names["TestJsonLines"]


def test_it_is_about_forty_lines_and_the_module_of_the_example() -> None:
    assert len([line for line in MODULE.splitlines() if line.strip()]) < 45
    assert (ROOT / "examples" / "json_lines" / "json_lines" / "__init__.py").read_text() == MODULE


def test_its_target_opens_it() -> None:
    module, _, name = json_lines.JsonLines.opened_by.partition(":")
    assert getattr(sys.modules[module], name) is json_lines.JsonLinesSink


def test_what_it_can_hold_is_a_rule_of_each_column() -> None:
    names: dict[str, Any] = {}
    exec(compile(ACCEPTS, "accepts.py", "exec"), names)
    fields = [{"name": name, "type": kind} for name, kind in (("id", "long"), ("v", "string"))]
    rules = names["accepts"].rules(json.dumps({"type": "struct", "fields": fields}))
    assert [(rule.column, rule.what) for rule in rules] == [
        ("v", "text that is no UTF-8"),
        ("id", "no value"),
    ]
