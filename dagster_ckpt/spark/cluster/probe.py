"""A probe at the start: executors see the driver's files and the reverse, and have what they need.

Once for each executor, session and place. Without it the first batch would say the same later and worse.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.spark.cluster import sent
from dagster_ckpt.spark.exchange.mounts import exchange_of, probe_objects, refuse_unreached
from dagster_ckpt.spark.exchange.objects import RemoteFolder
from dagster_ckpt.spark.files import refresh_listing, spark_uri
from dagster_ckpt.spark.java.sessions import (
    Executor,
    executor_ids,
    executors_of,
    finds_file,
    is_local,
    run_on,
)
from dagster_ckpt.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROBE_FOLDER = ".probe-"
SAY_AFTER = 10.0
"""Seconds without an executor after which people are told what the run waits for."""
ROUNDS = 20
"""Executors that register while others are probed are probed in the next round, as far as listeners hear of them."""
_DRIVERS_FILE = "driver"
_OTHER_PYTHON = re.compile(
    r"PYTHON_VERSION_MISMATCH\] Python in worker has different version: (\S+) than that in driver: (\S+?),"
)
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_lock = threading.Lock()
_proven: dict[str, set[tuple[str, str]]] = {}
"""Of the running application: executor and place, where all was well."""


def prove_executors(
    spark: SparkSession, places: Mapping[str, Path], say: Callable[[str], None] = lambda line: None
) -> int:
    """Probe the executors that were not probed yet; return how many. Nothing where tasks run in this process.

    ``places``: the folders that driver and executors write to, by the name people know them by.

    Raises InvalidRequest, in one sentence that says what to do, for the first executor that does not fit.
    """
    if is_local(spark):
        return 0
    with _lock:
        if str(spark.sparkContext.applicationId) not in _proven:
            _refuse_other_python(spark)
        seen = _seen(spark)
        probed = 0

        def is_fresh(executor: str) -> bool:
            return any((executor, str(path)) not in seen for path in places.values())

        for _ in range(ROUNDS):
            there = executor_ids(spark)
            if there and not any(map(is_fresh, there)):
                break
            fresh = [one for one in executors_of(spark) if is_fresh(one.id)]
            with (
                _told_of_waiting(spark, say, waits=not there),
                _probe_folders(places) as (folders, token),
                probe_objects(places, token) as stores,
            ):
                _refuse_other_java(spark, places, folders)
                answers = _answers(spark, fresh, folders, stores, token)
                for answer in answers:
                    _refuse(answer, _named(answer, fresh), folders, token)
                    for name, seen_there in answer["stores"].items():
                        refuse_unreached(name, stores[name], _named(answer, fresh), seen_there, token)
            seen.update((one.id, str(path)) for one in fresh for path in places.values())
            probed += len(fresh)
        return probed


def _seen(spark: SparkSession) -> set[tuple[str, str]]:
    application = str(spark.sparkContext.applicationId)
    if application not in _proven:
        _proven.clear()  # of applications that are over
    return _proven.setdefault(application, set())


# --- asking -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _probe_folders(places: Mapping[str, Path]) -> Iterator[tuple[dict[str, Path], str]]:
    """Yield a new folder in every place, by its name, and what the driver has written there."""
    token = uuid.uuid4().hex
    folders = {
        name: path / f"{PROBE_FOLDER}{token[:12]}"
        for name, path in places.items()
        if exchange_of(path) is None
    }
    try:
        for name, folder in folders.items():
            try:
                folder.mkdir(parents=True)
                (folder / _DRIVERS_FILE).write_text(token, encoding="utf-8")
            except OSError as error:
                raise InvalidRequest(
                    f"{name} ({folder.parent}) cannot be written to: {error}. Name a folder that this process and all "
                    "executors may write to"
                ) from error
        yield folders, token
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _told_of_waiting(spark: SparkSession, say: Callable[[str], None], *, waits: bool) -> Iterator[None]:
    """Say that the run waits for executors, where none has come after a while."""
    master = spark.sparkContext.master
    line = (
        f"no executor has come from {master} yet: the run waits until the cluster has room for one "
        "(cores and memory: spark.executor.cores, spark.executor.memory, spark.cores.max)"
    )
    timer = threading.Timer(SAY_AFTER, say, [line])
    timer.daemon = True
    if waits:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _answers(
    spark: SparkSession,
    executors: Sequence[Executor],
    folders: Mapping[str, Path],
    stores: Mapping[str, RemoteFolder],
    token: str,
) -> list[dict[str, Any]]:
    from pyspark import cloudpickle

    given = {
        "places": {name: str(folder) for name, folder in folders.items()},
        "stores": {name: folder.text for name, folder in stores.items()},
        "token": token,
    }
    cloudpickle.register_pickle_by_value(sent)
    try:
        return run_on(spark, executors, sent.visit, given)
    except Exception as error:
        told = _without_python(str(error))
        if told is None:
            raise
        raise told from error
    finally:
        cloudpickle.unregister_pickle_by_value(sent)


def _without_python(text: str) -> InvalidRequest | None:
    """Return the sentence for executors whose Python cannot run our tasks; None for another error."""
    if found := _OTHER_PYTHON.search(text):
        return InvalidRequest(
            f"executors run Python {found[1]} and the driver {found[2]}: Spark needs the same one. Set PYSPARK_PYTHON "
            "(or spark.pyspark.python in the Spark resource's conf) to a Python of the driver's version that is on "
            "every machine under that name"
        )
    if found := _NO_PYTHON.search(text):
        return InvalidRequest(
            f"there is no Python called {found[1]!r} where executors run: set PYSPARK_PYTHON (or spark.pyspark.python "
            "in the Spark resource's conf) to one that is on every machine under that name, the driver's too"
        )
    return None


# --- judging ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ProbedPlace:
    """One place, as one executor sees it."""

    name: str
    folder: Path
    who: str
    """The executor, for people."""
    user: str

    @property
    def advice(self) -> str:
        return (
            f"give {self.name} a folder that every machine mounts under the same path (NFS, EFS, a volume that many "
            "nodes may write to)"
        )

    def refuse(self, seen: Mapping[str, str], token: str) -> None:
        at = self.folder.parent
        if (why := seen.get("unread")) is not None:
            detail = f": {why}" if why else ""
            raise InvalidRequest(
                f"{self.who} does not see what the driver has written to {self.name} ({at}){detail}. Its files would "
                f"be lost, and rows with them: {self.advice}"
            )
        if why := seen.get("unwritten"):
            raise InvalidRequest(
                f"{self.who}, as user {self.user}, cannot write to a folder that the driver has made in {self.name} "
                f"({at}): {why}. Run executors as the driver's user, or let a common group write there (a umask of 002 "
                "and a folder with the setgid bit)"
            )
        name = seen.get("wrote", "")
        refresh_listing(self.folder)
        listed = {path.name for path in self.folder.iterdir()}
        if name not in listed or (self.folder / name).read_text(encoding="utf-8") != token + name:
            raise InvalidRequest(
                f"the driver does not see what {self.who} has written to {self.name} ({at}): {self.advice}"
            )


def _refuse(answer: Mapping[str, Any], who: str, folders: Mapping[str, Path], token: str) -> None:
    _refuse_versions(answer, who)
    for name, seen in answer["places"].items():
        _ProbedPlace(name=name, folder=folders[name], who=who, user=answer["user"]).refuse(seen, token)


def _refuse_versions(answer: Mapping[str, Any], who: str) -> None:
    python, package, arrow = answer["python"], answer["package"], answer["pyarrow"]
    if package.startswith("!"):
        raise InvalidRequest(
            f"{who} cannot import dagster_ckpt with {python} ({package[2:]}): set ship_package on the Spark resource "
            f"(SparkSessionResource(ship_package=True)), or install dagster-ckpt=={__version__} there"
        )
    if package != __version__:
        raise InvalidRequest(
            f"{who} has dagster_ckpt {package} and the driver {__version__}: set ship_package on the Spark resource "
            f"(SparkSessionResource(ship_package=True)), or install dagster-ckpt=={__version__} there"
        )
    if arrow.startswith("!"):
        raise InvalidRequest(
            f"{who} has no pyarrow that PySpark can use with {python} ({arrow[2:].partition(chr(10))[0]}): stages read "
            "one another through it. Install it into that Python on every machine, or set PYSPARK_PYTHON to one that "
            "has it"
        )


_IMPORTS = (
    "import sys, pyarrow; sys.path[:0] = sys.argv[1:]; import dagster_ckpt; print(dagster_ckpt.__version__)"
)


def _refuse_other_python(spark: SparkSession) -> None:
    """Raise InvalidRequest where the Python that Spark starts on this machine cannot plan what stages read.

    It has one name on the driver and on executors, and here it need not be the Python that runs this process.
    """
    from pyspark import SparkFiles

    context = spark.sparkContext
    sent = [SparkFiles.get(name) for name in context._python_includes or ()]
    try:
        said = subprocess.run(
            [context.pythonExec, "-c", _IMPORTS, *sent], capture_output=True, text=True, check=False
        )
        why = "" if said.returncode == 0 else (said.stderr.strip().splitlines() or ["it failed"])[-1]
        if not why and (version := said.stdout.strip()) != __version__:
            why = f"dagster_ckpt is {version} there and {__version__} in this process"
    except OSError as error:
        why = str(error)
    if why:
        raise InvalidRequest(
            f"Spark starts {context.pythonExec!r} on this machine too, to plan what stages read, and it cannot: {why}. "
            f"Put the folder of this process's Python ({sys.executable}) first on PATH, or set spark.pyspark.python in "
            "the Spark resource's conf to a Python that has pyarrow and dagster-ckpt here, and is on every machine"
        )


def _refuse_other_java(spark: SparkSession, places: Mapping[str, Path], folders: Mapping[str, Path]) -> None:
    """Raise InvalidRequest where the driver's Java does not find a file that its Python has written."""
    for name, folder in folders.items():
        if not finds_file(spark, spark_uri(folder / _DRIVERS_FILE)):
            raise InvalidRequest(
                f"Spark's Java does not find under {spark_uri(places[name])} what this process has written to {name}: "
                "take spark.hadoop.fs.file.impl out of the settings, and let Spark's driver run on this machine"
            )


def _named(answer: Mapping[str, Any], asked: Sequence[Executor]) -> str:
    number = int(answer.get("number", 0))
    executor = f"executor {asked[number].id}" if number < len(asked) else "the executor"
    return f"{executor} on {answer['host']}"
