"""Class data sharing: an archive of Spark's classes, which a JVM maps into memory instead of loading and checking them.

Half of the time from a new JVM to the first batch goes into loading some 20,000 classes. Java 13 and newer write those
that a run has used into a file (JEP 350), for exactly one Java, one list of jars and the place where they lie. A JVM
that finds another Java or other jars goes on without it; one that maps a file cut short dies. An archive therefore has
all of that in its name, its size too, gets its name when it is complete, and is used only where everything fits.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.spark.files import flush_to_disk

log = logging.getLogger(__name__)
_JVM_OPTIONS = "spark.driver.extraJavaOptions"

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""An archive the JVM refuses costs time only; Spark's launcher reads what else a JVM prints."""


def fitting_archive(folder: Path) -> Path | None:
    """Return the archive in ``folder`` for this Java and this Spark; None where there is none, or it is damaged."""
    for found in sorted(folder.glob(f"{_stem()}-*.jsa")):
        _, _, size = found.stem.rpartition("-")
        with suppress(FileNotFoundError):  # removed meanwhile
            if size.isdecimal() and found.stat().st_size == int(size):
                return found
    return None


def java_options(archive: Path) -> str:
    """Return the options by which a JVM uses an archive (``spark.driver.extraJavaOptions``)."""
    return f'"-XX:SharedArchiveFile={archive}" {_QUIET}'


def with_archive(conf: Mapping[str, str], folder: str) -> Mapping[str, str]:
    """Return the settings of a session with the archive of Java's classes that ``folder`` has, where it fits."""
    if not folder:
        return conf
    archive = fitting_archive(Path(folder).absolute())
    if archive is None:
        log.warning(
            "no archive of Java's classes in %s fits this Java and this Spark; Spark starts without one. "
            "Make it: dagster-ckpt class-archive %s",
            *(folder, folder),
        )
        return conf
    options = (conf.get(_JVM_OPTIONS, ""), java_options(archive))
    return {**conf, _JVM_OPTIONS: " ".join(options).strip()}


def make_archive(folder: Path) -> Path:
    """Run typical work in a JVM of its own, and keep the classes it used; return the archive. Takes half a minute.

    An archive that fits is returned as it is; those of other versions stay. Raises InvalidRequest for a folder that
    cannot be made or a Java that writes none, Unavailable where the work fails.
    """
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(
            f"the folder {folder} cannot be made ({error.strerror}): name another one"
        ) from error
    if (there := fitting_archive(folder)) is not None:
        return there
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as scratch:
        made = Path(scratch) / "classes.jsa"
        said = _run_typical_work(made, Path(scratch))
        if not made.is_file():
            raise InvalidRequest(
                f"Java wrote no archive of its classes (Java 17 or newer does). It said: {said[-2000:]}"
            )
        named = folder / f"{_stem()}-{made.stat().st_size}.jsa"
        flush_to_disk(made)  # a file with holes has the right size, too
        made.rename(named)  # complete, or not there
    return named


def _run_typical_work(archive: Path, scratch: Path) -> str:
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    done = subprocess.run(
        [sys.executable, "-m", "dagster_ckpt.ext.warm.typical_work", str(scratch / "work")],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ
        | {"SPARK_SUBMIT_OPTS": f"{options} -XX:ArchiveClassesAtExit={archive} {_QUIET}".strip()},
    )
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise Unavailable(f"the work whose classes are kept failed: {said[-2000:]}")
    return said


def _stem() -> str:
    """Return the name of archives for this Java and these jars: a JVM compares their names, sizes and times."""
    import pyspark

    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    listing = sorted((jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in jars.glob("*.jar"))
    known = hashlib.sha256(repr((_java(), str(jars), listing)).encode()).hexdigest()[:16]
    return f"spark-{pyspark.__version__}-{known}"


def _java() -> str:
    """Return the version and place of the Java that Spark's launcher would take."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else Path(shutil.which("java") or "java")
    release = java.resolve().parent.parent / "release"
    try:
        return f"{java.resolve()}\n{release.read_text()}"
    except OSError:
        return str(java)
