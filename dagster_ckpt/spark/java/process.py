"""The Java that PySpark has started: whether it runs, how this process gets another one, its secrets and errors.

An error's text is kept for when Java is gone, and what it says where Java has ended under its session: what its
process was killed for is in no error of py4j's.

Spark on Kubernetes ends it (``sys.exit``) where executors have failed too often; the kernel does where memory is
short.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import causes, shows_traces
from dagster_ckpt.spark.java.sessions import end_quietly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_GONE = (
    "the JVM of the Spark session has ended, and no longer answers: it was killed, perhaps for its memory (dmesg, the "
    "container's events), or has crashed (hs_err_pid*.log). Run again in a new process, which goes on from the latest "
    "checkpoint"
)
_UNANSWERED = re.compile(r"An error occurred while calling [\w.$]+")
"""What py4j says of a call that got no answer; one that failed in Java has its exception behind that."""


class JavaErrors:
    """Keeps what errors say while there is a session, and notes it on those that cannot say it any more.

    A session on a warm engine takes its connection to Java with it: a traceback that is printed later would end with
    ``<exception str() failed>``.
    """

    def __init__(self) -> None:
        self._said: list[tuple[BaseException, str]] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Around what uses the session."""
        try:
            yield
        except Exception as error:
            for one in causes(error):
                with suppress(Exception):  # it may be gone already
                    self._said.append((one, str(one)))
            raise

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Around the life of the session."""
        try:
            yield
        except Exception:
            for one, text in self._said:
                try:
                    str(one)
                except Exception:
                    one.add_note(text)
            raise


def is_java_gone(error: BaseException) -> bool:
    """Tell whether an error says only that no JVM is there to ask."""
    return any(map(_says_so, causes(error)))


def _says_so(error: BaseException) -> bool:
    match type(error).__name__:
        case "Py4JNetworkError":
            return True
        case "Py4JError":
            return _UNANSWERED.fullmatch(str(error)) is not None
        case _:
            return isinstance(error, ConnectionError) and _comes_from_py4j(error)


def _comes_from_py4j(error: BaseException) -> bool:
    """Tell the JVM's socket from that of a database or a broker."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "py4j" in frames[-1].filename


MAX_START_ATTEMPTS = 6
"""How often one query of an attempt is started, the first time included."""
_SAYS = "Python worker failed to connect back"


def is_retryable_start(error: BaseException | None) -> bool:
    """Tell whether a query failed for this alone. Starting it later would then have been the same."""
    return error is not None and _SAYS in str(error)


ENDING = 30.0
"""Seconds that Java is waited for where it is to end: its shutdown hooks stop a session that is half made."""


def java_has_ended(within: float = 0.0) -> bool:
    """Tell whether the Java that PySpark has started here is over, now or soon."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "__dict__", {}).get("proc")  # other names are asked of the JVM
    if process is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(within)
    return process.poll() is not None


def has_gateway() -> bool:
    """Tell whether PySpark has begun a Java in this process, or has got one; PySpark is not imported for that."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._gateway is not None


def number_functions_from(number: int) -> None:
    """Number the Python functions that Java will call from here on (py4j counts from nought in each process)."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    gateway.gateway_property.pool.next_id = number


def stop_session(session: SparkSession) -> None:
    """Stop a session; where its Java has ended, forget it: the next session starts another one."""
    if java_has_ended():
        forget_java()
        return
    end_quietly(session)
    try:
        session.stop()
    except Exception:
        if not java_has_ended(ENDING):
            raise
        forget_java()


def forget_java() -> None:
    """Let the next session of this process begin with a Java of its own; that of now does not answer any more."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    context: Any = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None
        context.stop()
    sessions: Any = SparkSession
    sessions._instantiatedSession = sessions._activeSession = None
    contexts: Any = SQLContext
    contexts._instantiatedContext = None
    with contextlib.suppress(Exception):  # what is left of connections to nobody
        detach()
    SparkContext._gateway = None
    SparkContext._jvm = None


def detach() -> None:
    """Forget PySpark's gateway: the next session of this process asks for an engine again, or starts a JVM."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        callbacks = gateway.__dict__.get("_callback_server")  # other names are asked of the JVM
        for connection in list(callbacks.connections) if callbacks is not None else ():
            with contextlib.suppress(OSError):  # its thread waits in a read that holds the lock a close needs
                connection.socket.shutdown(socket.SHUT_RDWR)
        # Not `shutdown`: that would end the gateway in the JVM, for everybody.
        gateway.shutdown_callback_server()
        gateway.close(keep_callback_server=True)
    SparkContext._gateway = None
    SparkContext._jvm = None


_SUBMIT = "PYSPARK_SUBMIT_ARGS"
_OPTIONS = "SPARK_SUBMIT_OPTS"
_VARIABLES = (_OPTIONS, "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_COMPILES_LATE = " ".join(
    f"-XX:Tier4{name}={40 * number}"
    for name, number in (
        ("InvocationThreshold", 5_000),
        ("MinInvocationThreshold", 600),
        ("CompileThreshold", 15_000),
        ("BackEdgeThreshold", 40_000),
    )
)
"""Java's optimizing compiler waits forty times as long: it takes a third of a short run's processor time for code that
is over when it is compiled. What meets every row of a large batch reaches these numbers within the second."""
_LOGGED_ELSEWHERE = ("spark.driver.extraClassPath", "spark.log.structuredLogging.enabled")
"""Settings with which Log4j may find, or Spark choose, a configuration that ours would hide."""
_LOGGING = Path(__file__).with_name("log4j2.properties")
_WORKER_START = Path(__file__).parent.with_name("worker_start")
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
        with _variable(_SUBMIT, given):
            yield {name: value for name, value in settings.items() if name not in hidden}


@contextlib.contextmanager
def of_this_start(settings: Mapping[str, str]) -> Iterator[None]:
    """Let a Spark that is started inside import pyspark from its package, start without chatter, and compile late."""
    paths = os.pathsep.join([str(_WORKER_START), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = f"{_COMPILES_LATE} {os.environ.get(_OPTIONS, '')}".strip()  # of two the later one counts
    with _variable("PYTHONPATH", paths), _variable(_OPTIONS, options), without_chatter(settings):
        yield


@contextlib.contextmanager
def without_chatter(settings: Mapping[str, str]) -> Iterator[None]:
    """Keep eight lines of a Spark's start off the console, where nobody has configured Java's logging."""
    options = os.environ.get(_OPTIONS, "")
    if not configures_logging(settings):
        options = f"{options} -Dlog4j2.configurationFile={_LOGGING.as_uri()}".strip()
    with _variable(_OPTIONS, options):
        yield


def configures_logging(settings: Mapping[str, str]) -> bool:
    """Tell whether a user's setting, variable or file says how Java logs; Spark's own file of defaults wins anyway."""
    from pyspark.find_spark_home import _find_spark_home

    if shows_traces() or any(settings.get(name) for name in _LOGGED_ELSEWHERE):
        return True
    if os.environ.get("LOG4J_CONFIGURATION_FILE"):
        return True
    options = (settings.get("spark.driver.extraJavaOptions", ""), *map(os.environ.get, _VARIABLES))
    folder = Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")
    return any("log4j" in (given or "") for given in options) or any(folder.glob("log4j*"))


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Let a variable of the environment have a value inside."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def _escaped(text: str) -> str:
    """Return a text as Java's Properties read it, each sign that could mean something by its number."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    return "".join(
        chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}" for code in codes
    )
