"""Findings of a task where it runs. Sent to executors by value: they may not have this package.

What is here imports what it needs itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
