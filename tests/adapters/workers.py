"""What other processes do in races and kills: ``python -m tests.adapters.workers <name> <arguments>``."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

from dagster_ckpt.adapters import local_keys
from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.paths import Digest
from dagster_ckpt.ports import Committed, HistoryRow
from tests.root import ROOT


def start(name: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a worker; the caller waits for it or kills it."""
    command = [sys.executable, "-m", "tests.adapters.workers", name, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def history_row(pipeline: PipelineId, number: int, status: str = "completed", body: str = "{}") -> HistoryRow:
    return HistoryRow(
        pipeline=pipeline,
        checkpoint_id=CheckpointId(number),
        epoch=CoordinatorEpoch(1),
        kind="checkpoint",
        status=status,
        triggered_at=1000.0 + number,
        body=body,
    )


def increment(url: str, pipeline_name: str, times: str) -> None:
    """Add 1 to the record ``times`` times, each with a history row of its own."""
    store = SqlCoordinatorStore(url)
    pipeline = PipelineId(pipeline_name)
    for _ in range(int(times)):
        while True:
            record = store.load(pipeline)
            version = record.version if record else 0
            count = int(record.body) if record else 0
            row = history_row(pipeline, count + 1, body=str(os.getpid()))
            if isinstance(store.compare_and_set(pipeline, version, str(count + 1), [row]), Committed):
                break
    store.close()


def count_for_ever(url: str, pipeline_name: str) -> None:
    """Write version after version, its number as body and as history row, until killed."""
    store = SqlCoordinatorStore(url)
    pipeline = PipelineId(pipeline_name)
    for version in itertools.count():
        store.compare_and_set(pipeline, version, str(version + 1), [history_row(pipeline, version + 1)])
        if version == 3:
            print("running", flush=True)


def create_for_ever(uri: str, source: str) -> None:
    """Store the same local file under key after key, until killed."""
    if os.environ.get("DAGSTER_CKPT_TEST_PARTIALS") == "named":
        local_keys._open_nameless = local_keys._open_named
    storage = open_storage(uri)
    for number in itertools.count():
        storage.create(f"pipeline/chk-{number}/file", Path(source))
        if number == 0:
            print("running", flush=True)


def fill_for_ever(url: str, source: str) -> None:
    """Store the same local file in the database under key after key, until killed."""
    storage = SqlCoordinatorStore(url).checkpoint_storage()
    for number in itertools.count():
        storage.create(f"flights/chk-{number}/file", Path(source))
        if number == 0:
            print("running", flush=True)


def claim_key(url: str, key: str) -> None:
    """Store this process's id under a key that others want too; say whether it was the first."""
    storage = SqlCoordinatorStore(url).checkpoint_storage()
    print(isinstance(storage.create(key, str(os.getpid()).encode()), Digest))


def migrate(url: str) -> None:
    """Migrate a database that others migrate at the same time."""
    store = SqlCoordinatorStore(url)
    store.migrate()
    print(store.pipelines())
    store.close()


def load_without_alembic(url: str) -> None:
    """Read from a database that is current; say whether alembic was needed for it."""
    store = SqlCoordinatorStore(url)
    store.load(PipelineId("flights"))
    store.close()
    print("alembic" in sys.modules)


def use_after_fork(url: str) -> None:
    """Write before a fork, in the child and in the parent, with the same store object."""
    store = SqlCoordinatorStore(url)
    pipeline = PipelineId("flights")
    store.compare_and_set(pipeline, 0, "parent")
    child = os.fork()
    if child == 0:
        store.compare_and_set(pipeline, 1, "child")
        store.close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    store.compare_and_set(pipeline, 2, "parent again")
    record = store.load(pipeline)
    store.close()
    print(status, record)


WORKERS = (
    increment,
    count_for_ever,
    create_for_ever,
    fill_for_ever,
    claim_key,
    migrate,
    load_without_alembic,
    use_after_fork,
)

if __name__ == "__main__":
    {f.__name__: f for f in WORKERS}[sys.argv[1]](*sys.argv[2:])
