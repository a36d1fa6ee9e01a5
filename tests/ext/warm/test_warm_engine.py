"""Runs that share a JVM: one at a time, each with a context of its own; what dies takes the JVM with it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.warm.keeper import EngineFiles, KeeperAddress
from dagster_ckpt.ext.warm.session import warm_session
from tests.needs import needs
from tests.progress import wait_until

PROGRAM = """
import json, logging, sys
from pathlib import Path
folder, idle, memory, what = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4:]
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
logging.getLogger("py4j").setLevel(logging.WARNING)
from dagster_ckpt.ext.warm.session import warm_session
import users

def collected(batch, number):
    from py4j.java_gateway import _garbage_collect_proxy
    batch.count()
    for of_a_run_before in range(100):  # as Java says it when it collects what those have left
        _garbage_collect_proxy(spark.sparkContext._gateway.gateway_property.pool, f"p{of_a_run_before}")

def seen(batch, number):
    batch.selectExpr("id").collect()
    counts.append(batch.count())

conf = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.driver.memory": memory,
        "spark.sql.shuffle.partitions": "1"}
with warm_session("t", folder=folder, idle=idle, master="local[1]", conf=conf) as spark:
    answer = {"jvm": spark._jvm.java.lang.ProcessHandle.current().pid(), "app": spark.sparkContext.applicationId}
    if "work" in what:
        from pyspark.sql.functions import udf
        counts = []
        source = str(Path(folder).parent / "in")
        spark.range(3).write.mode("overwrite").parquet(source)
        query = (spark.readStream.schema("id long").parquet(source).groupBy("id").count().writeStream
            .outputMode("update").foreachBatch(seen).option("checkpointLocation", folder + "-chk-" + str(id(counts)))
            .trigger(availableNow=True).start())
        query.awaitTermination()
        answer |= {"rows": counts, "udf": spark.range(1).select(udf(users.version)("id")).first()[0]}
    if "collect" in what:
        source = str(Path(folder).parent / "files")
        spark.range(4).repartition(4).write.mode("overwrite").parquet(source)
        query = (spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(source).writeStream
            .foreachBatch(collected).option("checkpointLocation", folder + "-gc-" + str(id(answer)))
            .trigger(availableNow=True).start())
        query.awaitTermination()
    print(json.dumps(answer), flush=True)
    if "wait" in what:
        sys.stdin.read()
"""
MEMORY = "512m"


class Runs:
    """Programs that borrow the engine of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "an engine"
        self.code = folder / "users.py"
        self.says("one")
        self.said = ""

    def says(self, version: str) -> None:
        """Change the user's code."""
        self.code.write_text(f"def version(_):\n    return '{version}'\n")

    def run(self, *what: str, idle: float = 600, memory: str = MEMORY) -> dict[str, object]:
        """Run a program to its end."""
        done = subprocess.run(
            [*self._command(idle, memory), *what], capture_output=True, text=True, check=False, **self.where()
        )
        assert done.returncode == 0, done.stderr[-3000:]
        self.said = done.stderr
        answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return answer

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
        """Start a program that keeps its session until its input ends."""
        with subprocess.Popen(
            [*self._command(600, MEMORY), "wait"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            **self.where(),
        ) as process:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())

    def where(self) -> dict[str, Any]:
        # what pytest tells of the test that runs differs from test to test, and so would the engine
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        return {"env": environment, "cwd": self.folder.parent}

    def _command(self, idle: float, memory: str) -> list[str]:
        return [sys.executable, "-c", PROGRAM, str(self.folder), str(idle), memory]

    def keeper(self) -> int | None:
        """Return the process that keeps the engine."""
        address = EngineFiles(self.folder).read()
        return None if address is None else address.pid


@pytest.fixture
@needs("spark")
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    if (keeper := made.keeper()) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGKILL)


def is_alive(pid: object) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at processes in /proc")


def test_the_next_run_uses_the_jvm_with_a_context_and_python_processes_of_its_own(runs: Runs) -> None:
    first = runs.run("work")
    runs.says("two")
    second = runs.run("work")
    assert second["jvm"] == first["jvm"]
    assert second["app"] != first["app"]
    assert (first["udf"], second["udf"]) == ("one", "two")  # no Python process of the first run is left
    assert first["rows"] == second["rows"] == [3]
    for path in (runs.folder / "engine.json",):
        assert path.stat().st_mode & 0o077 == 0  # its key lets one run anything
    assert runs.folder.stat().st_mode & 0o077 == 0


@pytest.mark.nightly
def test_one_process_may_borrow_it_again_and_again(runs: Runs) -> None:
    program = """
import sys
from dagster_ckpt.ext.warm.session import warm_session
for _ in range(2):
    with warm_session("t", folder=sys.argv[1], idle=60, master="local[1]", conf={"spark.ui.enabled": "false"}) as spark:
        seen = []
        query = (spark.readStream.format("rate").load().writeStream.foreachBatch(lambda b, n: seen.append(b.count()))
            .trigger(availableNow=True).start())
        query.awaitTermination()
        print(spark._jvm.java.lang.ProcessHandle.current().pid(), len(seen) > 0, spark.range(3).count())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(runs.folder)],
        capture_output=True,
        text=True,
        check=False,
        **runs.where(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.endswith("True 3")


@pytest.mark.nightly
def test_functions_of_runs_before_go_without_those_of_this_run(runs: Runs) -> None:
    """Java names a function it has thrown away by its number, to whoever has the engine."""
    first = runs.run("work")
    assert runs.run("collect")["jvm"] == first["jvm"]


@pytest.mark.nightly
def test_a_run_beside_another_has_a_jvm_of_its_own(runs: Runs) -> None:
    with runs.running() as (process, first):
        beside = runs.run()
        assert beside["jvm"] != first["jvm"]
        assert "another run uses the warm engine" in runs.said
        assert is_alive(first["jvm"])
        process.communicate()
        assert process.returncode == 0
    assert runs.run()["jvm"] == first["jvm"]


@pytest.mark.nightly
def test_a_run_that_is_killed_takes_the_jvm_with_it(runs: Runs) -> None:
    with runs.running() as (process, first):
        keeper = runs.keeper()
        process.kill()
    wait_until(lambda: not is_alive(first["jvm"]) and not is_alive(keeper), "the engine has ended")
    assert runs.keeper() is None
    assert runs.run()["jvm"] != first["jvm"]


@pytest.mark.nightly
def test_a_run_with_other_settings_gets_another_jvm_and_says_which(runs: Runs) -> None:
    first = runs.run()
    second = runs.run(memory="600m")
    assert second["jvm"] != first["jvm"]
    assert "the warm engine had other settings and ends: setting spark.driver.memory" in runs.said
    wait_until(lambda: not is_alive(first["jvm"]), "one JVM for each folder is left")


def test_an_engine_nobody_uses_ends(runs: Runs) -> None:
    first = runs.run(idle=0.2)
    wait_until(lambda: not is_alive(first["jvm"]), "the engine has ended")
    assert runs.keeper() is None
    assert "nobody used it for 0.2 s" in (runs.folder / "engine.log").read_text()


@pytest.mark.nightly
def test_an_engine_whose_folder_was_removed_ends_and_leaves_the_next_one_alone(runs: Runs) -> None:
    runs.run()
    first = runs.keeper()
    shutil.rmtree(runs.folder)
    second = runs.run()
    wait_until(lambda: not is_alive(first), "the keeper that nobody finds ends")
    assert runs.run()["jvm"] == second["jvm"]


@pytest.mark.parametrize("kept", ["", "{}", '{"host": "127.0.0.1", "port": 1, "key": "00", "pid": 1}'])
def test_what_is_no_address_of_a_keeper_that_lives_is_not_read(tmp_path: Path, kept: str) -> None:
    files = EngineFiles(tmp_path)
    files.address.write_text(kept)
    assert files.read() is None
    lock = files.take()
    assert lock is not None
    with lock:
        assert files.take() is None  # one keeper
        files.address.write_text(kept)
        assert (files.read() is None) == (len(kept) < 3)


@pytest.mark.nightly
def test_a_port_that_is_somebody_elses_now_is_not_asked(runs: Runs) -> None:
    runs.folder.mkdir(mode=0o700)
    with socket.create_server(("127.0.0.1", 0)) as somebody:  # never answers
        port = somebody.getsockname()[1]
        EngineFiles(runs.folder).write(KeeperAddress(host="127.0.0.1", port=port, key="00", pid=1))
        assert is_alive(runs.run()["jvm"])


@pytest.mark.nightly
def test_a_keeper_answers_nobody_who_does_not_know_the_key(runs: Runs) -> None:
    first = runs.run()
    files = EngineFiles(runs.folder)
    address = files.read()
    assert address is not None
    with pytest.raises(AuthenticationError):
        Client((address.host, address.port), authkey=b"\0" * 32)
    assert runs.run()["jvm"] == first["jvm"]


def test_a_master_elsewhere_and_a_folder_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidRequest, match="`master` is 'spark://there:7077', not local"),
        warm_session("t", folder=str(tmp_path / "e"), idle=1, master="spark://there:7077"),
    ):
        pass
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(InvalidRequest, match=r"`warm_engine`: the folder .*file/e cannot be used"),
        warm_session("t", folder=str(tmp_path / "file" / "e"), idle=1, master="local[1]"),
    ):
        pass
    assert not (tmp_path / "e").exists()
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    (tmp_path / "linked").symlink_to(tmp_path / "own")
    (tmp_path / "own").mkdir(mode=0o700)
    for folder in (shared, tmp_path / "linked"):
        with pytest.raises(InvalidRequest, match="is not this user's alone"):
            EngineFiles(folder).make()
    EngineFiles(tmp_path / "own").make()
