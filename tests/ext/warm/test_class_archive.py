"""An archive of Java's classes is used where it fits, and nowhere else: a JVM that maps a damaged one dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dagster_ckpt.cli import main
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.ext.warm import class_archive
from dagster_ckpt.ext.warm.class_archive import fitting_archive, java_options, make_archive

MADE = fitting_archive(Path(sys.prefix) / "class-archive")
"""What ``scripts/bootstrap class_archive`` made."""


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Typical work that is over at once."""

    def work(archive: Path, scratch: Path) -> str:
        archive.write_bytes(b"classes")
        return ""

    monkeypatch.setattr(class_archive, "_run_typical_work", work)


@pytest.mark.usefixtures("works")
def test_an_archive_is_made_once_and_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "a folder" / "of archives"
    made = make_archive(folder)
    assert made.read_bytes() == b"classes"
    assert fitting_archive(folder) == made == make_archive(folder)
    assert list(folder.iterdir()) == [made]  # nothing of its making is left


@pytest.mark.usefixtures("works")
def test_an_archive_cut_short_is_not_used_and_is_made_again(tmp_path: Path) -> None:
    made = make_archive(tmp_path)
    made.write_bytes(b"class")
    assert fitting_archive(tmp_path) is None
    assert make_archive(tmp_path).read_bytes() == b"classes"


@pytest.mark.usefixtures("works")
def test_an_archive_of_another_java_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_archive(tmp_path / "archives")
    java = tmp_path / "java-18"
    (java / "bin").mkdir(parents=True)
    (java / "release").write_text('JAVA_VERSION="18.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(java))
    assert fitting_archive(tmp_path / "archives") is None
    monkeypatch.undo()
    assert made.is_file()  # the other version's archive stays


@pytest.mark.usefixtures("works")
def test_an_archive_for_other_jars_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_archive(tmp_path / "archives")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/one.jar").write_bytes(b"1")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert fitting_archive(tmp_path / "archives") is None
    make_archive(tmp_path / "archives")
    assert fitting_archive(tmp_path / "archives") is not None
    (tmp_path / "jars/one.jar").write_bytes(b"22")
    assert fitting_archive(tmp_path / "archives") is None


def test_work_that_fails_leaves_nothing_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Unavailable, match="the work whose classes are kept failed"):
        make_archive(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidRequest, match=r"file/archives cannot be made \(Not a directory\)"):
        make_archive(tmp_path / "file" / "archives")


@pytest.mark.usefixtures("works")
def test_the_command_makes_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["class-archive", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["archive"] == str(fitting_archive(tmp_path))


SESSION = """
import logging, sys
from pathlib import Path
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
from dagster_ckpt.spark.session import build_session
from dagster_ckpt.ext.warm.class_archive import with_archive
spark = build_session("t", master="local[1]", conf=with_archive({
    "spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-Dmine=1 -XX:TieredStopAtLevel=1"}, sys.argv[1]))
pid = spark._jvm.java.lang.ProcessHandle.current().pid()
print("mine", spark._jvm.java.lang.System.getProperty("mine"))
print("mapped", "/spark-" in "".join(m for m in Path(f"/proc/{pid}/maps").open() if m.endswith(".jsa\\n")))
spark.stop()
"""


def _session(folder: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_SUBMIT_OPTS"}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(folder)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.stdout


@pytest.mark.spark
@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="a JVM's mapped files are looked at in /proc"
)
@pytest.mark.skipif(
    MADE is None and not os.environ.get("CI"), reason="scripts/bootstrap class_archive made none"
)
def test_a_session_maps_the_archive_beside_options_of_the_users(tmp_path: Path) -> None:
    assert MADE is not None
    with_space = tmp_path / "a folder"  # spark-submit splits options at spaces
    with_space.mkdir()
    (with_space / MADE.name).symlink_to(MADE)
    said = _session(with_space)
    assert "mine 1" in said
    assert "mapped True" in said


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="a JVM's mapped files are looked at in /proc"
)
def test_a_session_without_a_fitting_archive_starts_and_says_how_one_is_made(tmp_path: Path) -> None:
    said = _session(tmp_path)
    assert f"Make it: dagster-ckpt class-archive {tmp_path}" in said
    assert "mapped False" in said


def test_options_survive_a_place_with_spaces() -> None:
    assert java_options(Path("/a b/c.jsa")).startswith('"-XX:SharedArchiveFile=/a b/c.jsa" ')
