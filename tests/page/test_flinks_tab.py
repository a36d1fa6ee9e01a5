"""The table against Flink's checkpoint tab names words that the page has."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from dagster_ckpt.core.checkpoint.record import CountsRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatistics, CheckpointStatus
from dagster_ckpt.page.facts import page_facts
from dagster_ckpt.page.html import page_html
from dagster_ckpt.ports import AuditRow
from tests.operations.world import SALES, World
from tests.root import ROOT

TABLE = (ROOT / "docs" / "reference" / "flinks-checkpoint-tab.md").read_text()


def words() -> list[str]:
    """Words in code of the second column of tables that have a column for the page, and those after ``page:``."""
    found: list[str] = []
    columns: list[str] = []
    for line in TABLE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        columns = cells if "page" in cells else columns if cells else []
        if columns and cells != columns and "page" in columns and len(cells) == len(columns):
            found += re.findall(r"`([^`]+)`", cells[columns.index("page")])
    return list(dict.fromkeys([*found, *re.findall(r"page: `([^`]+)`", TABLE)]))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("queries")
    world = World(folder)
    world.checkpoint(1)
    world.savepoint(2)
    world.over(3, CheckpointStatus.FAILED)
    world.change(counts=CountsRecord(total=3, completed=2, failed=1, restored=1), restored_id=1)
    stored = world.store.load(SALES)
    assert stored is not None
    row = AuditRow(pipeline=SALES, at=1.0, what="restored", key="chk-000001", uri="x")
    told = world.row(1, CheckpointStatus.COMPLETED)
    ended = CheckpointStatistics.model_validate_json(told.body).model_copy(update={"ended_at": 1.5})
    history = [replace(told, body=ended.model_dump_json())]
    world.store.compare_and_set(SALES, stored.version, stored.body, history, [row])
    html = page_html(page_facts(world.deployment, SALES, now=104.0))
    html = re.sub(r"<style>.*?</style>", " ", html, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", " ", html)).replace("*", "")


def test_the_table_names_many_fields() -> None:
    assert len(words()) > 20


@pytest.mark.parametrize("word", words())
def test_each_is_on_the_page(word: str, text: str) -> None:
    assert word in " ".join(text.split()), word
