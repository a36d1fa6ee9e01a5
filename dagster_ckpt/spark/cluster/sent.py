"""Parcels for executors: this package as a zip, and a task by value, for they may not have the package.

The task imports what it needs itself.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def visit(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an executor's versions, whether the driver's files are readable, and names of files written for it.

    ``given``: ``places`` (the probe folder of each, by name), ``stores`` (the same in object stores, as text),
    ``token`` (what the driver wrote there), ``number``.
    """
    import getpass
    import importlib
    import os
    import platform
    import socket
    import sys

    def version(name: str) -> str:
        try:
            found = str(importlib.import_module(name).__version__)
            if name == "pyarrow":
                importlib.import_module("pyspark.sql.pandas.utils").require_minimum_pyarrow_version()
        except Exception as error:  # whatever an import raises is the answer
            return f"! {error}"
        return found

    def user() -> str:
        try:
            return getpass.getuser()
        except Exception:  # a user id without a name, in a container
            return str(os.getuid())

    def seen(folder: str) -> dict[str, str]:
        try:
            with open(os.path.join(folder, "driver"), encoding="utf-8") as handle:
                if handle.read() != given["token"]:
                    return {"unread": "it holds something else"}
        except FileNotFoundError:
            return {"unread": ""}
        except OSError as error:
            return {"unread": str(error)}
        name = f"executor-{given['number']}-{os.urandom(6).hex()}"
        try:
            with open(os.path.join(folder, name), "x", encoding="utf-8") as handle:
                handle.write(given["token"] + name)
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            return {"unwritten": str(error)}
        return {"wrote": name}

    return {
        "number": given["number"],
        "host": socket.gethostname(),
        "user": user(),
        "python": sys.executable,
        "python_version": platform.python_version(),
        "package": version("dagster_ckpt"),
        "pyarrow": version("pyarrow"),
        "places": {name: seen(folder) for name, folder in given["places"].items()},
        "stores": {name: reached(text, given) for name, text in given["stores"].items()},
    }


def reached(text: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of what was written to a folder of an object store, or why nothing could be."""
    import importlib

    try:
        probe = importlib.import_module("dagster_ckpt.spark.exchange.mounts")
        return {"wrote": probe.answer(text, given["token"], given["number"])}
    except Exception as error:  # whatever its client raises is the answer
        return {"unreached": f"{type(error).__name__}: {error}"}
