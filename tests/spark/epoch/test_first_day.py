"""Mistakes of the first day that only data shows: a program ends with one sentence, in a few lines.

Those that need no data: ``tests/cli/test_first_day.py``.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointError,
    checkpointed_pipeline,
    run_epoch,
    spark_sink,
    spark_source,
)
from tests.root import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.nightly

MOST_LINES = 15
Frame = Callable[[Any], Any]


def as_it_is(rows: Any) -> Any:
    return rows


def program(
    folder: Path,
    source: Frame = lambda spark: None,
    sink: Frame = as_it_is,
    *,
    key: tuple[str, ...] = (),
    uid: str = "table",
    restore: dict[str, Any] | None = None,
) -> None:
    """Run an epoch of a source and a table, as a program does."""

    @spark_source
    def rows(spark):  # type: ignore[no-untyped-def]
        made = source(spark)
        return (
            spark.readStream.schema("id INT, name STRING").json(str(folder / "in")) if made is None else made
        )

    @spark_sink(uid=uid, key=key)
    def table(rows):  # type: ignore[no-untyped-def]
        return sink(rows)

    @checkpointed_pipeline(name="first_day")
    def pipeline() -> None:
        table(rows())

    run_epoch(
        pipeline,
        coordinator=CheckpointCoordinatorResource(base_dir=str(folder / "lab")),
        restore=restore or {},
    )


def counted(by: str) -> Frame:
    return lambda rows: rows.groupBy(by).count()


def failing(rows: Any) -> Any:
    from pyspark.sql import functions as f

    def rate(number):  # type: ignore[no-untyped-def]
        return 1 // (number - 1)

    return rows.select(f.udf(rate, "int")("id").alias("rate"))


def by_chance(rows: Any) -> Any:
    return rows.selectExpr("uuid() AS k", "id")


def of_another_type(rows: Any) -> Any:
    return rows.selectExpr("id + 0.5 AS id", "name")


def corrupt(folder: Path, name: str = "2.json") -> None:
    (folder / "in" / "1.json").unlink()
    (folder / "in" / name).write_text('{"id": 1, "name": \n}}')


def strict(spark: Any, folder: Path) -> Any:
    return spark.readStream.schema("id INT, name STRING").option("mode", "FAILFAST").json(str(folder / "in"))


def gone(folder: Path) -> None:
    """The checkpoints' disk is unmounted."""
    (folder / "lab" / "checkpoints").rename(folder / "elsewhere")
    (folder / "lab" / "checkpoints").write_text("")


MISTAKES: dict[str, tuple[Callable[[Path], None], str]] = {
    "key that is no column": (
        lambda folder: program(folder, key=("ident",)),
        r"the rows have no column ident: there are id, name",
    ),
    "column that is missing": (
        lambda folder: program(folder, sink=lambda rows: rows.select("idd")),
        r"idd",
    ),
    "aggregation into a table without key": (
        lambda folder: program(folder, sink=counted("name")),
        r"key=",
    ),
    "path that is not there": (
        lambda folder: program(
            folder, lambda spark: spark.readStream.schema("id INT").json(str(folder / "inn"))
        ),
        r"inn",
    ),
    "type that no table has": (
        lambda folder: program(
            folder, sink=lambda rows: rows.selectExpr("id", "INTERVAL '1' MONTH AS months")
        ),
        r"months",
    ),
    "function that fails": (lambda folder: program(folder, sink=failing), r"ZeroDivisionError"),
    "spark.read in a source": (
        lambda folder: program(folder, lambda spark: spark.read.schema("id INT").json(str(folder / "in"))),
        r"use spark.readStream in a source",
    ),
    "forgotten return": (
        lambda folder: program(folder, sink=lambda rows: None),
        r"returned nothing: end it with `return`",
    ),
    "corrupt JSON where the source is strict": (
        lambda folder: (corrupt(folder), program(folder, lambda spark: strict(spark, folder))),  # type: ignore[dict-item]
        r"2\.json",
    ),
    "restore point that is not there": (
        lambda folder: program(folder, restore={"restore_from": "chk-99"}),
        r"chk-99",
    ),
}
LATER: dict[str, tuple[Callable[[Path], None], str]] = {
    "schema of the table": (lambda folder: program(folder, sink=of_another_type), r"id"),
    "storage that is gone": (
        lambda folder: (gone(folder), program(folder)),  # type: ignore[dict-item]
        r"checkpoints",
    ),
    "renamed stage": (lambda folder: program(folder, uid="renamed"), r"previous_uids"),
}


def told(folder: Path, mistake: Callable[[Path], None]) -> list[str]:
    """Return what the terminal of a program shows that ends with the error."""
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown), pytest.raises(CheckpointError) as refused:
        mistake(folder)
    return [*shown.getvalue().splitlines(), *"".join(traceback.format_exception(refused.value)).splitlines()]


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 1, "name": "a"}\n')
    return tmp_path


def is_one_sentence(lines: list[str], said: str) -> None:
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert re.search(said, lines[-1]), "\n".join(lines)
    assert sum(line.strip() == lines[-1].strip() for line in lines) == 1, "told once"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_that_data_shows_ends_a_program_in_one_sentence(folder: Path, mistake: str) -> None:
    act, said = MISTAKES[mistake]
    is_one_sentence(told(folder, act), said)


@pytest.mark.parametrize("mistake", LATER)
def test_a_mistake_of_the_second_run_ends_a_program_in_one_sentence(folder: Path, mistake: str) -> None:
    program(folder)
    (folder / "in" / "2.json").write_text('{"id": 2, "name": "b"}\n')
    act, said = LATER[mistake]
    is_one_sentence(told(folder, act), said)


def test_a_changed_aggregation_ends_a_program_in_one_sentence(folder: Path) -> None:
    program(folder, sink=counted("name"), key=("name",))
    (folder / "in" / "2.json").write_text('{"id": 2, "name": "b"}\n')
    changed = told(folder, lambda at: program(at, sink=counted("id"), key=("id",)))
    is_one_sentence(changed, r"changed|state")


def test_what_a_terminal_shows_of_a_failing_function_is_the_users_line_and_no_page_of_java(
    tmp_path: Path,
) -> None:
    """A process of its own: Java writes into the terminal beside Python."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 1, "name": "a"}')
    code = (
        "from pathlib import Path; from tests.spark.epoch.test_first_day import failing, program; "
        f"program(Path({str(tmp_path)!r}), sink=failing)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DAGSTER_CKPT_TRACEBACK"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**environment, "COLUMNS": "80", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (done.stdout + done.stderr).splitlines()
    assert done.returncode != 0
    assert "in rate, `return 1 // (number - 1)`: ZeroDivisionError" in lines[-1]
    shown = "\n".join(lines)
    assert shown.count("ZeroDivisionError") == 1, shown
    assert "\tat " not in shown, shown
    assert (
        len(lines[next(i for i, line in enumerate(lines) if line.startswith("Traceback")) :]) <= MOST_LINES
    ), shown


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (
            lambda folder: program(folder, sink=by_chance, key=("k",)),
            "drawn by chance",
        ),
        (lambda folder: (corrupt(folder, "0.json"), program(folder)), "row 1 of"),  # type: ignore[dict-item]
    ],
)
def test_what_is_no_error_and_may_be_a_mistake_is_told_in_a_line(
    folder: Path,
    mistake: Callable[[Path], None],
    said: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("WARNING"):
        mistake(folder)
    lines = [*capfd.readouterr().err.splitlines(), *caplog.messages]
    assert len(lines) <= MOST_LINES, lines
    assert any(said in line for line in lines), lines
