"""The Spark session that checkpoints work best with, and why each setting is there.

Importable without pyspark: only ``build_session`` needs it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest, Unavailable, install_extra, shows_traces
from dagster_ckpt.spark.cluster.lost import refused_by_kubernetes
from dagster_ckpt.spark.java.process import (
    ENDING,
    JAVA_GONE,
    beside_arguments,
    forget_java,
    is_java_gone,
    java_has_ended,
    of_this_start,
)
from dagster_ckpt.spark.java.sessions import (
    active_context,
    begin_again,
    is_local,
    keep_errors_off_the_console,
    log_each_error_once,
    write_local_checksums,
)
from dagster_ckpt.spark.versions import refuse_pipelines, version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


_AS_THEY_ARE = frozenset({bool, int, float, str, bytes, bytearray, type(None)})


class PlainArguments:
    """A converter of py4j for values that no converter of PySpark takes, and for Python's own collections.

    PySpark asks its converters about each argument of each call. The first one, for NumPy's arrays, imports PySpark's
    test tools to do so, and with them pandas and gRPC (4.3): half a second of every start.
    """

    def can_convert(self, value: object) -> bool:
        """Say whether the value is one of these; only exactly, a subclass may be meant for another converter."""
        kind = type(value)
        return kind in _AS_THEY_ARE or kind in _collections() or hasattr(kind, "Java")

    def convert(self, value: Any, gateway: Any) -> Any:
        """Return a collection of Java for a collection, and everything else as it is."""
        converter = _collections().get(type(value))
        return value if converter is None else converter.convert(value, gateway)


def convert_plain_arguments_first() -> None:
    """Let py4j ask about plain values first, where nobody else has asked to be the first."""
    from py4j.protocol import INPUT_CONVERTER, register_input_converter
    from pyspark.sql import types

    theirs = getattr(types, "NumpyArrayConverter", None)
    if theirs is not None and INPUT_CONVERTER and type(INPUT_CONVERTER[0]) is theirs:
        register_input_converter(PlainArguments(), prepend=True)


@cache
def _collections() -> dict[type, Any]:
    """Return py4j's converters of Python's collections, made once: they are asked for with every argument."""
    from py4j.java_collections import ListConverter, MapConverter, SetConverter

    each, pairs, single = ListConverter(), MapConverter(), SetConverter()
    return {list: each, tuple: each, dict: pairs, set: single, frozenset: single}


ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
_STATE_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_PYTHON = "spark.pyspark.python"
_FORGIVEN = "spark.executor.failuresValidityInterval"
"""Else a stream's failed executors are counted from its first day on, and a handful of them ends it."""
LOCAL_CHECKSUMS = "spark.dagster_ckpt.localFileChecksums"
"""Ours: whether Hadoop writes ``.name.crc`` beside every file on a local disk; Spark without us always does."""


def default_spark_conf() -> dict[str, str]:
    """Return the settings a checkpointed pipeline starts from; what the user sets wins over each of them.

    The provider and both formats are fixed by a query's first batch: a restored query keeps those of its
    checkpoint.
    """
    import pyspark

    return {
        # State outside the JVM heap (39 MB instead of 252 MB for a million keys), in immutable files that
        # checkpoints share until RocksDB compacts them.
        _STATE_PROVIDER: ROCKSDB_PROVIDER,
        # A batch writes its changes only; full snapshots are uploaded in the background.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # File names carry a unique id: a name then identifies its content, even after a batch ran twice.
        _STATE_FORMAT: "2",
        # Maintenance uploads the snapshot that every tenth batch makes. Until it has come by, a restart replays what
        # changed since the last one: seldom is slow by bad luck. Nothing to do costs nearly nothing.
        "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
        # The default forks a chmod per file; this one halves the time of a trigger. Its rename does not
        # exclude a second writer: the attempt's own directory and the coordinator epoch do.
        "spark.sql.streaming.checkpointFileManagerClass": version_of(pyspark.__version__).file_manager,
        # A file beside each file of state: captures and restores verify them by digests of their own.
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        # And another one by Hadoop beside each file on a local disk, each with a chmod of its own.
        LOCAL_CHECKSUMS: "false",
        # An idle query looks for data every so often; each look asks the Python process of every reader. Spark's
        # 10 ms keep a core busy for half a dozen stages that have nothing to do.
        "spark.sql.streaming.pollingDelay": "50ms",
        # How far back a batch can be captured after the fact (Spark's default, named because captures rely
        # on it).
        "spark.sql.streaming.minBatchesToRetain": "100",
        # State partitions are fixed by the first batch, and every one of them costs each trigger a commit.
        "spark.sql.shuffle.partitions": "4",
        # Offsets, watermarks and published tables mean the same on every machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }


def default_master() -> str:
    """Return ``local[N,3]``: all cores, and two more tries for a failed task (``local[N]`` has none)."""
    return f"local[{os.cpu_count() or 1},3]"


def build_session(
    app_name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the process's Spark session with our defaults, started when there is none.

    ``conf`` wins over the defaults.

    Raises InvalidRequest when pyspark is not installed or too old, or Kubernetes refuses the driver, Unavailable when
    it refuses pods, and when Java is killed meanwhile.
    """
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"PySpark is not installed: {install_extra('spark')}") from error
    refuse_pipelines(pyspark.__version__)
    refuse_remote(conf or {}, os.environ)
    convert_plain_arguments_first()
    settings = launch_settings(master=master, conf=conf)
    if java_has_ended():
        forget_java()
    had_context = active_context() is not None
    # Settings of a Java that starts are its arguments.
    arguments = contextlib.nullcontext(settings) if had_context else beside_arguments(settings)
    with _keeping_interrupts(), of_this_start(settings), arguments as given:
        builder = SparkSession.builder.appName(app_name)
        for key, value in given.items():
            builder = builder.config(key, value)
        try:
            session = builder.getOrCreate()
        except Exception as error:
            told = without_java(error) or refused_by_kubernetes(error, settings["spark.master"])
            if is_java_gone(error) and java_has_ended(ENDING):
                forget_java()
                told = told or Unavailable(f"while the session was made: {JAVA_GONE}")
            elif not had_context:
                _stop_context()
            if told is None:
                raise
            if isinstance(told, Unavailable):
                java_has_ended(ENDING)  # as Spark does then: the next session is to find it gone
            raise told from error
    refuse_connect(session)
    if not had_context:
        begin_again(session)
        follow_local_checksums(session)
        if not shows_traces():
            keep_errors_off_the_console()
        if is_local(session) and not shows_traces() and not any("log" in name.lower() for name in conf or {}):
            log_each_error_once(session)
    return session


def follow_local_checksums(session: SparkSession) -> None:
    """Let this Java write checksum files beside local ones, or not, as the session says; it reads those there are.

    With a master elsewhere executors write as they always do: files between machines keep theirs.
    """
    if is_local(session):
        # Both ways: a warm engine's Java was another run's before.
        on = str(session.conf.get(LOCAL_CHECKSUMS, "true")).lower() == "true"
        write_local_checksums(session, on=on)


def _stop_context() -> None:
    """Stop what a session that could not be made has begun: else the next one is made of it, in vain and for ever."""
    left = active_context()
    if left is not None:
        left.stop()


def refuse_connect(session: SparkSession) -> None:
    """Raise InvalidRequest for a session of Spark Connect."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise _of_connect("the session is one of Spark Connect")


def refuse_remote(conf: Mapping[str, object], environment: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raise InvalidRequest where settings or the environment make PySpark start a session of Spark Connect."""
    if conf.get("spark.remote"):
        raise _of_connect("spark.remote is set")
    if str(conf.get("spark.api.mode", "")).lower() == "connect":
        raise _of_connect("spark.api.mode is connect")
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if environment.get(name):
            raise _of_connect(f"the environment variable {name} is set")
    for name, value in (("SPARK_API_MODE", "connect"), ("SPARK_CONNECT_MODE", "1")):
        if environment.get(name, "").lower() == value and "spark.api.mode" not in conf:
            raise _of_connect(f"the environment variable {name} is {value}")


def _of_connect(found: str) -> InvalidRequest:
    return InvalidRequest(
        f"{found}, and checkpoints need a classic session, whose driver is this process: give spark.master (local[*], "
        "spark://..., yarn, k8s://...) instead of an address of Spark Connect"
    )


def launch_settings(*, master: str | None = None, conf: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the settings a session is built with: our defaults, the user's, and the master."""
    where = master or default_master()
    if where.startswith("local"):
        # Workers on this machine run in this environment; Spark would take whichever python3 comes first.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    elif conf and conf.get(_PYTHON):
        # Of a session that a Python process starts, Spark reads the variable and not the setting.
        os.environ["PYSPARK_PYTHON"] = conf[_PYTHON]
    given = dict(conf or {})
    if given.get(_STATE_PROVIDER) == HDFS_PROVIDER:
        given.setdefault(_STATE_FORMAT, "1")  # ours is of RocksDB only: the first batch would fail
    forgiven = {_FORGIVEN: "1h"} if where.startswith(("k8s://", "yarn")) else {}
    return {**default_spark_conf(), **forgiven, **given, "spark.master": where}


_changing_settings = threading.RLock()


@contextlib.contextmanager
def session_settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Let the query that is started inside have settings of its own: a query takes the session's when it starts.

    Raises InvalidRequest for a setting that a session must start with, where it did not.
    """
    with _changing_settings:
        before: dict[str, str | None] = {}
        try:
            for key, value in wanted.items():
                now = spark.conf.get(key, None)
                if now != value:
                    _set(spark, key, value)
                    before[key] = now
            yield
        finally:
            for key, earlier in before.items():
                spark.conf.unset(key) if earlier is None else spark.conf.set(key, earlier)


def _set(spark: SparkSession, key: str, value: str) -> None:
    try:
        spark.conf.set(key, value)
    except Exception as error:
        raise InvalidRequest(
            f"{key} is to be {value!r}, which a session must start with: "
            f"SparkSessionResource(conf={{{key!r}: {value!r}}})"
        ) from error


def without_java(error: BaseException) -> InvalidRequest | None:
    """Return the sentence for a Spark that found no Java, or one that is too old; None for another error."""
    if "[JAVA_GATEWAY_EXITED]" not in str(error):
        return None
    home = os.environ.get("JAVA_HOME", "")
    looked = f"in JAVA_HOME ({home})" if home else "on the PATH (JAVA_HOME is not set)"
    return InvalidRequest(
        f"Java did not start, looked for {looked}: Spark needs Java 17 or newer. Install one (Debian: "
        "apt install openjdk-17-jre-headless) and set JAVA_HOME to its folder; or mend what it said above before it "
        "ended, such as a package of spark.jars.packages that is not found"
    )


@contextlib.contextmanager
def _keeping_interrupts() -> Iterator[None]:
    """Keep the host's handler of interrupts: PySpark's own would cancel every batch where a host stops in order."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and before not in (None, signal.default_int_handler):
            signal.signal(signal.SIGINT, before)


NAMES_TRIED = 20
_NAME_IS_TAKEN = "already active"
"""In what Spark says of a query whose name another one has (StreamingQueryManager)."""


def start_under_free_name(
    start: Callable[[str], StreamingQuery], wanted: str, taken: Callable[[], Collection[str | None]]
) -> StreamingQuery:
    """Start a query under ``wanted``, numbered where one that is active in the session has that name.

    That one is of an attempt that is over: it can commit nothing any more, and a dead run's may never be stopped. It
    may also be just starting or ending, so that Spark refuses a name which nobody seemed to have.
    """
    names = itertools.chain([wanted], (f"{wanted}.{number}" for number in itertools.count(2)))
    refused: Exception | None = None
    for _ in range(NAMES_TRIED):
        used = taken()
        name = next(name for name in names if name not in used)
        try:
            return start(name)
        except Exception as error:
            if _NAME_IS_TAKEN not in str(error) or f"name {name}" not in str(error):
                raise
            refused = error
    assert refused is not None
    raise refused
