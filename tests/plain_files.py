"""A local file system for Spark's JVMs that starts no process: ``python -m tests.plain_files`` compiles it into .venv.

Hadoop without its native library sets permissions by a ``chmod`` of its own for every file and every folder: two
hundred processes for an epoch of a small pipeline, a third of its processor time. Tests' JVMs use this one where it
was compiled; it does what Hadoop's does, checksums too.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from tests.root import ROOT

SOURCE = Path(__file__).with_name("PlainFiles.scala")
AS_USUAL: Mapping[str, str] = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem"}
"""Of sessions whose executors are machines that have no such jar."""
OPTION = "-Dspark.hadoop.fs.file.impl=dagster_ckpt.tests.PlainFiles"
"""Of a JVM whose SPARK_DIST_CLASSPATH has the jar."""


def plain_files() -> Path:
    """Return where the jar is, or would be."""
    known = hashlib.sha256(f"{version('pyspark')}{SOURCE.read_text()}".encode()).hexdigest()[:16]
    return Path(sys.prefix) / "class-archive" / f"plain-files-{known}.jar"


def compiled(source: Path, jar: Path) -> None:
    """Compile a file with the Scala that Spark brings. Raises CalledProcessError."""
    import pyspark

    java = subprocess.run([ROOT / "scripts" / "java-home"], capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder) / "classes"
        classes.mkdir()
        program = [
            str(Path(java.stdout.strip()) / "bin" / "java"),
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
        ]
        program += ["-cp", f"{Path(pyspark.__file__).parent}/jars/*", "scala.tools.nsc.Main", "-usejavacp"]
        subprocess.run([*program, "-d", str(classes), str(source)], check=True)
        packed = shutil.make_archive(str(Path(folder) / "packed"), "zip", classes)
        jar.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(shutil.copy(packed, jar.with_suffix(".new")))
        fresh.rename(jar)


if __name__ == "__main__" and not plain_files().exists():
    compiled(SOURCE, plain_files())
