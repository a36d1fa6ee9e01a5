"""Writes transcripts.md beside this file: what the program answers, at 80 columns. python -m tests.cli.transcripts."""

from __future__ import annotations

import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest.mock import patch

from click.testing import CliRunner

from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.cli.app import main
from dagster_ckpt.core.checkpoint.record import CountsRecord
from dagster_ckpt.core.checkpoint.statistics import CheckpointStatus
from dagster_ckpt.ports import AuditRow
from tests.operations.world import BASE, SALES, SAVEPOINTS, World
from tests.root import ROOT

PAGE = ROOT / "tests" / "cli" / "transcripts.md"
NOW = 400.0
"""The moment of every transcript, in seconds since the Unix epoch, as those of the snapshots are."""
WIDTH = 80

HEAD = """\
# What the program answers

`dagster-ckpt` on a deployment with a pipeline `sales`, in a terminal of 80 columns. This page is made by running it
(`python -m tests.cli.transcripts`), and a test holds the two together.
"""

COMMANDS = (
    ("What can be restored", "list"),
    ("What ever was", "list --history"),
    ("How checkpoints go", "history --limit 5"),
    ("What one holds", "show savepoint-3"),
    ("Whether all can be read back", "verify --all"),
    ("Who restored, forked and disposed of what", "audit"),
    ("With what was shown before", "audit --previews"),
    ("Whether store and storage agree", "doctor"),
    ("Not without being sure", "dispose savepoint-3"),
    ("What is not there", "show chk-9"),
)


def page() -> str:
    """Return the page."""
    with _deployment() as base:
        answers = [
            f"## {title}\n\n```console\n$ dagster-ckpt {words}\n{_answer(words, base)}\n```"
            for title, words in COMMANDS
        ]
    return "\n".join([HEAD, "\n\n".join(answers), ""])


def _answer(words: str, base: Path) -> str:
    with patch.object(time, "time", lambda: NOW), patch.dict(os.environ, {"COLUMNS": str(WIDTH)}):
        done = CliRunner().invoke(main, [*words.split(), "--base", str(base)])
    text = done.output.replace(f"file://{base}", "/srv/sales").replace(str(base), "/srv/sales")
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip("\n")
    return f"{text}\n$ echo $?\n{done.exit_code}" if done.exit_code else text


@contextmanager
def _deployment() -> Iterator[Path]:
    """A pipeline with two checkpoints, one of them kept for its hour, a savepoint and what became of others.

    Names and durations in its files are the same each time: sizes on the page are of them.
    """
    names = Random(0)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128), version=4)),
        patch.object(time, "perf_counter", lambda: 0.0),
    ):
        base = Path(folder) / "sales"
        store = SqlCoordinatorStore(f"sqlite:///{base / 'coordinator.db'}")
        world = World(Path(folder) / "queries", store=store)
        world.storages[BASE] = open_storage(str(base / "checkpoints"))
        world.storages[SAVEPOINTS] = open_storage(str(base / "savepoints"))
        world.checkpoint(1)
        world.checkpoint(2)
        world.savepoint(3, name="before the release")
        world.checkpoint(4)
        world.over(5, CheckpointStatus.FAILED)
        first, *others = world.record().completed
        kept = (first.model_copy(update={"stands_for": "hour"}), *others)
        world.change(completed=kept, counts=CountsRecord(total=5, completed=4, failed=1))
        stored = store.load(SALES)
        assert stored is not None
        store.compare_and_set(SALES, stored.version, stored.body, (), [_restore()])
        yield base
        store.close()


def _restore() -> AuditRow:
    return AuditRow(
        pipeline=SALES,
        at=NOW - 240,
        what="restored",
        key="chk-000002",
        uri="/srv/sales/checkpoints/sales/chk-2",
        who="ann",
        run_id="8c1e0b1e-7b0a-4b63-8a55-5a6c1f7ad9a1",
        shown="restoring chk-000002, completed 3 min ago, 1.9 kB of state\nsource orders: from 9 back to 7, 2 units "
        "are read again\ntable /srv/totals of totals: 3 rows leave",
    )


if __name__ == "__main__":
    PAGE.write_text(page())
