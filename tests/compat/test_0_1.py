"""What version 0.1 left on a disk goes on with this one: its own folder, its checkpoints, its savepoint alone.

``written_by_0_1`` was written by ``write_0_1.py`` with the code of commit 740c2e8, once for each provider of state.
"""

from __future__ import annotations

import fcntl
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from tests.compat.kept_pipeline import FILES, PLACE, PROVIDERS, expected_lines, expected_totals, put, shop
from tests.spark.epoch.conftest import WITHOUT_CAPTURE, Lab, failure_text

KEPT = Path(__file__).parent / "written_by_0_1"
pytestmark = pytest.mark.parametrize("provider", PROVIDERS)


@pytest.fixture
def place(provider: str) -> Iterator[Path]:
    """The deployment and the files it had read, where they lay; other test runs of this machine wait."""
    with PLACE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        for number in range(FILES):
            put(number)
        with tarfile.open(KEPT / f"{provider}.tgz") as kept:
            kept.extractall(PLACE, filter="data")
        yield PLACE / provider
        shutil.rmtree(PLACE)


@pytest.fixture
def lab(place: Path, provider: str, spark: object) -> Iterator[Lab]:
    with dg.instance_for_test(overrides=WITHOUT_CAPTURE) as instance:
        yield Lab(place, instance, {}, spark_conf=PROVIDERS[provider])


def tables_hold(tables: Path, files: int) -> bool:
    """Whether both tables hold what the first so many files say, each row once."""
    lines = pq.read_table(tables / "lines").to_pylist()
    totals = pq.read_table(tables / "totals").to_pylist()
    assert Counter((row["number"], row["country"]) for row in lines) == expected_lines(files)
    assert sorted((row["country"], row["orders"]) for row in totals) == sorted(expected_totals(files).items())
    return True


def run(lab: Lab, files: int, **restore: Any) -> None:
    """Run an epoch; afterwards the tables hold what the first so many files say."""
    result = lab.run(shop(), **restore)
    assert result.success, failure_text(result)
    assert tables_hold(lab.tables, files)


def test_its_deployment_goes_on(lab: Lab) -> None:
    put(FILES)
    run(lab, FILES + 1)
    put(FILES + 1)
    run(lab, FILES + 2)


def test_it_is_taken_back_to_one_of_its_checkpoints(lab: Lab) -> None:
    run(lab, FILES, restore_from="chk-1")
    put(FILES)
    run(lab, FILES + 1)


def test_its_savepoint_and_its_tables_are_enough(lab: Lab) -> None:
    savepoint = next(lab.folder.glob("savepoints/savepoint-shop-*"))
    (lab.folder / "coordinator.db").unlink()
    shutil.rmtree(lab.folder / "checkpoints")
    shutil.rmtree(lab.folder / "work")
    run(lab, FILES, restore_from=str(savepoint))
    put(FILES)
    run(lab, FILES + 1)


def test_its_savepoint_is_forked(lab: Lab, tmp_path: Path) -> None:
    savepoint = next(lab.folder.glob("savepoints/savepoint-shop-*"))
    fork = shop().fork("shop_fork", table_dir=str(tmp_path))
    for files, restore in ((FILES, {"restore_from": str(savepoint), "fork": True}), (FILES + 1, {})):
        put(files - 1)
        result = lab.run(fork, **restore)
        assert result.success, failure_text(result)
        assert tables_hold(tmp_path, files)
    assert tables_hold(lab.tables, FILES)
