"""Mistakes of the first day that need no data: ``check``, a program and a run each say one sentence, without Java."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy import exc
from sqlalchemy.engine import make_url

from dagster_ckpt import CheckpointCoordinatorResource, InvalidRequest, build_pipeline_definitions
from dagster_ckpt.adapters.sql_engine import classified
from dagster_ckpt.cli import code_location
from dagster_ckpt.programs import run_epoch
from tests.cli.conftest import Program
from tests.dagster.test_first_day import named
from tests.root import ROOT

MOST_LINES = 15
_numbers = itertools.count()

CODE = """
from dagster_ckpt import *
from dagster_ckpt.sinks import IcebergTable

@spark_source{source}
def rows(spark):
    {body}

@spark_sink{sink}
def table(rows):
    return rows

@checkpointed_pipeline{pipeline}
def first_day():
    table(rows())

{more}
defs = build_pipeline_definitions(first_day, coordinator=CheckpointCoordinatorResource(base_dir="{base}", {resource}))
"""
BODY = 'return spark.readStream.schema("id INT").json("/data")'


@pytest.fixture(autouse=True)
def of_no_other_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command finds what its process has loaded: in a process of tests, pipelines of others too."""
    found = code_location._loaded_pipelines
    others = list(found())
    monkeypatch.setattr(
        code_location, "_loaded_pipelines", lambda: (one for one in found() if one not in others)
    )


@pytest.fixture
def write(tmp_path: Path, base: Path) -> Iterator[object]:
    names = []

    def written(**parts: str) -> Path:
        empty = dict.fromkeys(("source", "sink", "pipeline", "more", "resource"), "")
        names.append(f"first_day_{os.getpid()}_{next(_numbers)}")
        path = tmp_path / f"{names[-1]}.py"
        path.write_text(CODE.format(**{**empty, "body": BODY, "base": str(base), **parts}))
        return path

    yield written
    for name in names:
        sys.modules.pop(name, None)


MISTAKES = {
    "misspelt setting": (
        {"pipeline": "(checkpoint={'interval': 1})"},
        r"`checkpoint`: did you mean `checkpointing`\?",
    ),
    "impossible setting": ({"resource": "interval=0.001"}, "interval must be at least 0.01 s, got 0.001"),
    "output mode": ({"sink": "(output_mode='update')"}, r"but no key: rows that change need key=\[...\]"),
    "spelling of an output mode": (
        {"sink": "(key=['id'], output_mode='upsert')"},
        "give append, update or complete",
    ),
    "key": (
        {"sink": "(key=['id', 'id'])"},
        r"has key=\['id', 'id'\]: name 'id' once",
    ),
    "forgotten return": (
        {"body": BODY.removeprefix("return ")},
        "'rows' returns nothing: end it with `return` and the DataFrame that it has made",
    ),
    "two of one name": (
        {
            "more": "twin = first_day.fork('other', table_dir='/t')\nobject.__setattr__(twin, 'name', 'first_day')"
        },
        "pipelines need different names, got .'first_day', 'first_day'.",
    ),
    "long name": (
        {"pipeline": f"(name='{'p' * 80}')"},
        "has 80 characters, .* at most 63: give it a shorter",
    ),
    "a stage called input": ({"source": "(uid='input')"}, "such as uid='stage_input'"),
    "a sink called checkpoints": ({"sink": "(uid='checkpoints')"}, "give the sink another uid"),
    "store URL": (
        {"resource": "store_url='postgres//host/db'"},
        "the store's URL cannot be read: write sqlite",
    ),
    "password that ends early": (
        {"resource": "store_url='postgresql://user:a@secret@127.0.0.1:9/db'"},
        "the password in the store's URL has a character that ends it: write it percent-encoded",
    ),
    "port that is none": (
        {"resource": "store_url='postgresql://user:secret@host:notaport/db'"},
        "the store's URL cannot be read: write sqlite",
    ),
    "kind of a store": ({"resource": "store_url='mysql://host/db'"}, "cannot live in 'mysql': use sqlite"),
    "store that nobody serves": (
        {"resource": "store_url='postgresql://user:secret@127.0.0.1:9/db'"},
        r"at postgresql\S+user:\*\*\*@127.0.0.1:9/db does not answer .*: correct host and port of its URL",
    ),
    "folder": ({"resource": "work_dir='/dev/null/x'"}, "`work_dir`: the folder /dev/null/x cannot be made"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_needs_no_data_is_told_by_check_in_a_sentence_and_no_java_is_started(
    mistake: str, write: object, run: Program, javas_mark: Path
) -> None:
    parts, said = MISTAKES[mistake]
    path = write(**parts)  # type: ignore[operator]
    result = run.bare("check", "-f", str(path), code=5 if "nobody serves" in mistake else 2)
    lines = result.output.strip().splitlines()
    assert len(lines) == 1, result.output
    assert re.search(said, lines[0]), lines[0]
    assert "secret" not in lines[0]
    assert not javas_mark.exists()


def test_code_without_a_mistake_can_start_and_check_makes_nothing(
    write: object, run: Program, base: Path, javas_mark: Path
) -> None:
    path = write()  # type: ignore[operator]
    assert run.bare("check", "-f", str(path)).output.strip() == "first_day: can start"
    assert not base.exists()
    assert not javas_mark.exists()
    assert "give the code" in run.bare("check", code=2).output


@pytest.mark.usefixtures("javas_mark")
def test_code_imports_from_the_folder_that_is_given_beside_it(
    write: object, run: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = f"beside_{os.getpid()}"
    path = write(more=f"import {beside}")  # type: ignore[operator]
    (lib := tmp_path / "lib").mkdir()
    (lib / f"{beside}.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert f"No module named '{beside}'" in run.bare("check", "-f", str(path), code=2).output
    assert "no such folder" in run.bare("check", "-f", str(path), "-d", f"{lib}/x", code=2).output
    assert run.bare("check", "-f", str(path), "-d", str(lib)).output.strip() == "first_day: can start"
    assert "give it with one of them" in run.bare("check", "-d", str(lib), code=2).output


@pytest.mark.usefixtures("javas_mark")
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("PySpark 3.5.9 is too old for stages: install pyspark>=4.0, or attach a program", 2),
        ("can start in epochs; PySpark 4.1.4 runs stages in epochs only: install pyspark>=4.2", 0),
    ],
)
def test_a_version_of_spark_that_cannot_run_it_is_told(
    write: object, run: Program, monkeypatch: pytest.MonkeyPatch, said: str, code: int
) -> None:
    from dagster_ckpt.dagster import start

    monkeypatch.setattr(start, "version", lambda _: said.partition("PySpark ")[2][:5])
    assert said in run.bare("check", "-f", str(write()), code=code).output  # type: ignore[operator]


def test_a_package_that_is_not_installed_is_told_with_the_command_that_installs_it(
    write: object, run: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_ckpt.dagster import start

    found = start.find_spec
    monkeypatch.setattr(start, "find_spec", lambda name: None if name == "pyiceberg" else found(name))
    path = write(sink="(to=IcebergTable('t'))")  # type: ignore[operator]
    said = run.bare("check", "-f", str(path), code=2).output
    assert re.fullmatch(
        r"first_day: sink 'table' \(IcebergTable\) needs the package pyiceberg, which is not installed: pip install "
        r"'pyiceberg.*'  # dagster-ckpt\[iceberg\]\n",
        said,
    )


def test_a_machine_without_java_is_told_before_anything_else_happens(write: object, tmp_path: Path) -> None:
    path = write()  # type: ignore[operator]
    done = subprocess.run(
        [sys.executable, "-m", "dagster_ckpt.cli", "check", "-f", str(path)],
        env={**os.environ, "JAVA_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout.strip() == (
        f"first_day: Spark needs Java 17 or newer, and JAVA_HOME ({tmp_path}) has none: install one (Debian: apt "
        "install openjdk-17-jre-headless) and set JAVA_HOME to its folder"
    )


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ('password authentication failed for user "shop"', "correct user, password or database of its URL"),
        ('database "shop" does not exist', "correct user, password or database of its URL"),
        ("connection refused by the pooler", "nothing was changed: retry"),
        (
            "database or disk is full",
            "nothing was changed: make room on its disk, or give access to it, then retry",
        ),
        ("disk I/O error", "make room on its disk, or give access to it, then retry"),
    ],
)
def test_a_store_that_lets_nobody_in_is_not_to_be_tried_again(refused: str, said: str) -> None:
    error = exc.OperationalError("SELECT 1", {}, Exception(f"FATAL:  {refused}"))
    told = str(classified(error, make_url("postgresql://shop:secret@host/db")))
    assert said in told
    assert ("retry" in told) == ("retry" in said)
    assert "secret" not in told


def test_a_restore_point_that_is_misspelt_is_told_by_a_program_in_a_few_lines(
    base: Path, javas_mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = CheckpointCoordinatorResource(base_dir=str(base))
    with pytest.raises(InvalidRequest) as refused:
        run_epoch(named("p"), coordinator=where, restore={"restore_from": "latst"})
    printed = "".join(traceback.format_exception(refused.value)).splitlines()
    assert len(printed) <= MOST_LINES, printed
    assert printed[-1].endswith("restore_from 'latst': did you mean 'latest'?")
    assert not javas_mark.exists()
    monkeypatch.setenv("DAGSTER_CKPT_TRACEBACK", "1")
    with pytest.raises(InvalidRequest) as traced:
        run_epoch(named("p"), coordinator=where, restore={"restore_from": "latst"})
    assert len("".join(traceback.format_exception(traced.value)).splitlines()) > len(printed)


def test_a_run_that_is_refused_says_it_first_in_its_events_and_alone_on_the_console(
    base: Path, javas_mark: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (base.parent / "file").write_text("")
    where = CheckpointCoordinatorResource(base_dir=str(base), work_dir=str(base.parent / "file" / "x"))
    job = build_pipeline_definitions(named("p"), coordinator=where).resolve_job_def("p")
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    [failed] = result.get_step_failure_events()
    error = failed.step_failure_data.error
    assert error is not None
    assert error.message.startswith("`work_dir`: the folder ")
    assert error.cause is not None, "the UI has the trace"
    console = capfd.readouterr().err
    assert console.count("Traceback") == 0
    assert "Stack Trace" not in console
    assert len(console.splitlines()) <= MOST_LINES, console
    assert not javas_mark.exists()


def test_a_command_shows_traces_where_they_are_asked_for(
    run: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_CKPT_TRACEBACK", "")
    plain = run("list", code=3).stderr
    assert "Traceback" not in plain
    assert "Traceback" in run("list", "--traceback", code=3).stderr
