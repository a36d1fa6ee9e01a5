"""Lets Spark's Python processes import the installed, compiled pyspark.

Spark puts ``pyspark.zip`` before everything else on their path. A zip holds no compiled modules, so each process
compiles some hundred of them again: most of a second of work for every reader of a stream, at every start. Where the
zip belongs to an installed package, the package is the same code, compiled.

``dagster_ckpt.spark.session`` puts this folder on the path of the processes it starts; Python itself imports the file.
"""

import importlib.machinery
import importlib.util
import os
import sys

_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))
_ZIP = os.path.join("python", "lib", "pyspark.zip")


def without_zipped_pyspark(path: list[str]) -> list[str]:
    """Return ``path`` without a ``pyspark.zip`` whose installed package can be imported from it."""
    kept = []
    for entry in path:
        home = entry.removesuffix(_ZIP).rstrip(os.sep) if entry.endswith(os.sep + _ZIP) else ""
        is_package = bool(home) and os.path.isfile(os.path.join(home, "__init__.py"))
        if not (is_package and os.path.dirname(home) in path):
            kept.append(entry)
    return kept


def _run_the_one_behind_this() -> None:
    """Run the ``sitecustomize`` that Python would have found without this folder."""
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry) != _OWN_FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.path[:] = [
        entry for entry in without_zipped_pyspark(sys.path) if os.path.abspath(entry) != _OWN_FOLDER
    ]
    _run_the_one_behind_this()
