"""Lets Spark's Python processes import the installed, compiled pyspark and py4j.

Spark puts ``pyspark.zip`` and ``py4j-…-src.zip`` before everything else on their path. A zip holds no compiled modules,
so each process compiles some hundred of them again: most of a second of work for every reader of a stream, at every
start. Where a zip belongs to an installed package, the package is the same code, compiled.

``dagster_ckpt.spark.session`` puts this folder on the path of the processes it starts; Python itself imports the file.
"""

import importlib.machinery
import importlib.util
import os
import sys

_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))
_LIB = os.sep + os.path.join("python", "lib", "")


def without_zips(path: list[str]) -> list[str]:
    """Return ``path`` without Spark's zips whose installed packages can be imported from it.

    Spark knows its home by the real path; that of an environment may go through a link.
    """
    real = {os.path.realpath(entry) for entry in path}
    return [entry for entry in path if _site_of(entry) not in real]


def _site_of(entry: str) -> str | None:
    """Return the folder whose installed package is what the zip ``entry`` holds, if there is one."""
    home, lib, name = os.path.realpath(entry).rpartition(_LIB)
    site = os.path.dirname(home)
    if not lib or not os.path.isfile(os.path.join(home, "__init__.py")):
        return None
    if name == "pyspark.zip":
        return site
    py4j = name.removesuffix("-src.zip")
    same = name.startswith("py4j-") and os.path.isdir(os.path.join(site, py4j + ".dist-info"))
    return site if same else None


def _run_the_one_behind_this() -> None:
    """Run the ``sitecustomize`` that Python would have found without this folder."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry) != _OWN_FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.path[:] = [entry for entry in without_zips(sys.path) if os.path.abspath(entry) != _OWN_FOLDER]
    _run_the_one_behind_this()
