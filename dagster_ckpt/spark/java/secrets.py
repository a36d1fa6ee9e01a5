"""Secrets in the settings of a session that starts Java: in a file for its owner, not in the arguments of the process.

PySpark hands every setting to ``spark-submit`` as an argument, which every user of the machine can read.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_SUBMIT = "PYSPARK_SUBMIT_ARGS"
_FILE = "--properties-file"
_NAMES = re.compile(
    r"(?i)secret|password|passwd|token|credential|access[.-]?key|account[.-]?key|private[.-]?key|\bsas\b"
)
"""Spark's own rule for what it redacts (``spark.redaction.regex``), and the names that Hadoop's clients have."""


def is_secret(name: str) -> bool:
    """Tell by its name whether a setting's value is nobody else's."""
    return _NAMES.search(name) is not None


@contextlib.contextmanager
def beside_arguments(settings: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the settings that may be arguments; a Java that is started inside finds the others in a file of mode 0600.

    Where the environment names a file of properties itself, Spark takes no second one: all stay arguments.
    """
    before = os.environ.get(_SUBMIT)
    hidden = {name: value for name, value in settings.items() if is_secret(name)}
    if not hidden or _FILE in (before or ""):
        yield dict(settings)
        return
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-conf-") as folder:
        path = Path(folder) / "spark.properties"
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii"
        ) as file:
            file.writelines(f"{_escaped(name)}={_escaped(value)}\n" for name, value in hidden.items())
        given = f"{_FILE} {shlex.quote(str(path))} --load-spark-defaults {before or 'pyspark-shell'}"
        os.environ[_SUBMIT] = given
        try:
            yield {name: value for name, value in settings.items() if name not in hidden}
        finally:
            if before is None:
                os.environ.pop(_SUBMIT, None)
            else:
                os.environ[_SUBMIT] = before


def _escaped(text: str) -> str:
    """Return a text as Java's Properties read it, each sign that could mean something by its number."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    return "".join(
        chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}" for code in codes
    )
