"""This package as a zip, sent to executors that have none, or another version."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.java.sessions import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = Path(__file__).parents[2]
_EPOCH = (1980, 1, 1, 0, 0, 0)


def ship_package(spark: SparkSession) -> str:
    """Send this package's modules to the session's executors, those to come too; return the zip's name.

    Python workers find it before what is installed there, and so do the processes on the driver that plan Python data
    sources. Nothing is sent for local masters.
    """
    if is_local(spark):
        return ""
    content = zipped(PACKAGE)
    name = f"dagster_ckpt-{hashlib.sha256(content).hexdigest()[:16]}.zip"
    context = spark.sparkContext
    if name not in (context._python_includes or ()):
        path = Path(_folder_of_process()) / name
        replace_whole(path, content)
        context.addPyFile(str(path))
    return name


def zipped(package: Path) -> bytes:
    """Return the modules below ``package`` as a zip: the same bytes for the same modules."""
    import io

    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(package.rglob("*.py")):
            entry = zipfile.ZipInfo(f"{package.name}/{module.relative_to(package).as_posix()}", _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, module.read_bytes())
    return target.getvalue()


@cache
def _folder_of_process() -> str:
    """Return a folder that lives as long as this process: executors that join late fetch the zip from it."""
    folder = tempfile.mkdtemp(prefix="dagster-ckpt-package-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
