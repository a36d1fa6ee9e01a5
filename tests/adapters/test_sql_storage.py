"""What only checkpoint storage inside the coordinator store can get wrong; its contract is in tests/contract."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from dagster_ckpt.adapters import sql_database, sql_engine
from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.adapters.sql_store import SqlCheckpointStorage, SqlCoordinatorStore
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.paths import LARGEST_OBJECT, StoredObject
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import InvalidRequest, OutcomeUnknown, Unavailable
from dagster_ckpt.ports import StoredRecord
from tests.adapters import workers
from tests.adapters.servers import CommitLosingProxy, Loss, PostgresCluster

PIPELINE = PipelineId("flights")
KEY = "flights/chk-1/_metadata"
MB = 1024**2


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database that does not have our tables yet."""
    if request.param == "sqlite":
        (tmp_path / "store").mkdir()
        return f"sqlite:///{tmp_path}/store/store.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def store(url: str) -> Iterator[SqlCoordinatorStore]:
    opened = SqlCoordinatorStore(url)
    yield opened
    opened.close()


@pytest.fixture
def storage(store: SqlCoordinatorStore) -> SqlCheckpointStorage:
    return store.checkpoint_storage()


# --- many processes -------------------------------------------------------------------------------------------


def test_of_processes_that_race_for_a_key_exactly_one_is_told_that_it_stored(
    url: str, storage: SqlCheckpointStorage
) -> None:
    started = [workers.start("claim_key", url, KEY) for _ in range(3)]
    said = [process.communicate(timeout=120)[0].strip() for process in started]
    assert sorted(said) == ["False", "False", "True"]
    assert storage.read(KEY) == str(started[said.index("True")].pid).encode()


def test_a_killed_writer_leaves_whole_objects_only(
    url: str, storage: SqlCheckpointStorage, tmp_path: Path
) -> None:
    content = os.urandom(400_000)
    (tmp_path / "source").write_bytes(content)
    process = workers.start("fill_for_ever", url, str(tmp_path / "source"))
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    time.sleep(random.Random(1).uniform(0.05, 0.2))
    process.kill()
    process.communicate()
    found = list(storage.list("flights"))
    assert found
    for stored in found:
        assert storage.read(stored.key) == content


# --- COMMIT without an answer ---------------------------------------------------------------------------------


@pytest.fixture
def proxy(postgres_server: PostgresCluster) -> Iterator[CommitLosingProxy]:
    opened = CommitLosingProxy(postgres_server.port)
    yield opened
    opened.close()


@pytest.fixture
def behind_proxy(
    proxy: CommitLosingProxy, postgres_server: PostgresCluster, postgres_url: str
) -> Iterator[SqlCheckpointStorage]:
    opened = SqlCoordinatorStore(postgres_url.replace(f":{postgres_server.port}/", f":{proxy.port}/"))
    opened.migrate()
    storage = opened.checkpoint_storage()
    assert list(storage.list("")) == []
    yield storage
    opened.close()


@pytest.mark.parametrize("loss", [Loss.ANSWER, Loss.LATE])
def test_an_object_whose_commit_was_not_answered_is_found_to_be_ours(
    behind_proxy: SqlCheckpointStorage, proxy: CommitLosingProxy, loss: Loss
) -> None:
    proxy.loss = loss
    assert behind_proxy.create(KEY, b"content") == digest_bytes(b"content")
    assert proxy.fired.wait(5)
    assert behind_proxy.read(KEY) == b"content"


def test_an_object_whose_commit_never_arrived_was_certainly_not_stored(
    behind_proxy: SqlCheckpointStorage, proxy: CommitLosingProxy
) -> None:
    proxy.loss = Loss.REQUEST
    with pytest.raises(Unavailable, match="nothing was changed: retry"):
        behind_proxy.create(KEY, b"content")
    assert list(behind_proxy.list("")) == []
    assert behind_proxy.create(KEY, b"content") == digest_bytes(b"content")


def test_an_object_that_cannot_be_read_back_has_an_unknown_outcome(
    behind_proxy: SqlCheckpointStorage, proxy: CommitLosingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_database, "READ_BACK_PAUSES", (0.0, 0.05))
    proxy.loss = Loss.ANSWER_THEN_DEAF
    with pytest.raises(OutcomeUnknown, match="treat the key as taken"):
        behind_proxy.create(KEY, b"content")


def test_a_deletion_whose_commit_was_not_answered_is_to_be_repeated(
    behind_proxy: SqlCheckpointStorage, proxy: CommitLosingProxy
) -> None:
    behind_proxy.create(KEY, b"content")
    proxy.loss = Loss.REQUEST
    with pytest.raises(OutcomeUnknown, match="remove them again"):
        behind_proxy.delete([KEY])
    behind_proxy.delete([KEY])
    assert list(behind_proxy.list("")) == []


# --- places ---------------------------------------------------------------------------------------------------


def test_a_folder_of_the_store_is_a_storage_of_its_own(store: SqlCoordinatorStore) -> None:
    """As a restore point is opened by its URI: the base is split off before anything is known of it."""
    store.checkpoint_storage().create(KEY, b"content")
    folder = store.checkpoint_storage("store://checkpoints/flights/")
    assert folder.base_uri == "store://checkpoints/flights"
    assert folder.read("chk-1/_metadata") == b"content"
    assert list(folder.list("")) == [StoredObject("chk-1/_metadata", 7)]
    assert list(store.checkpoint_storage("store://check").list("")) == []


@pytest.mark.parametrize("uri", ["store", "store://", "s3://bucket", "store://a/../b", "store:///a"])
def test_what_names_no_folder_of_the_store_is_refused(store: SqlCoordinatorStore, uri: str) -> None:
    with pytest.raises(InvalidRequest):
        store.checkpoint_storage(uri)


def test_fsspec_is_told_that_it_is_the_wrong_door() -> None:
    with pytest.raises(InvalidRequest, match=r"open it through that, as CheckpointCoordinatorResource"):
        open_storage("store://checkpoints")


def test_an_object_no_row_may_hold_is_refused_before_it_is_read(
    storage: SqlCheckpointStorage, tmp_path: Path
) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(LARGEST_OBJECT + 1)
    with pytest.raises(InvalidRequest, match="64 mb at most: set checkpoint_storage to filesystem"):
        storage.create(KEY, tmp_path / "sparse")
    assert list(storage.list("")) == []


# --- the database ---------------------------------------------------------------------------------------------


def test_a_database_of_the_first_revision_gets_the_table_and_keeps_its_records(
    url: str, store: SqlCoordinatorStore, storage: SqlCheckpointStorage
) -> None:
    engine = sql_engine.build_engine(sql_engine.store_url(url))
    config = Config()
    config.set_main_option("script_location", "dagster_ckpt.adapters:migrations")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        row = "INSERT INTO coordinator_record VALUES ('flights', 1, 'id', 'body')"
        connection.execute(text(row))
    engine.dispose()
    assert storage.create(KEY, b"content") == digest_bytes(b"content")
    assert store.load(PIPELINE) == StoredRecord(1, "body")
    assert storage.read(KEY) == b"content"


def test_a_sqlite_file_uses_the_space_of_deleted_checkpoints_again(tmp_path: Path) -> None:
    store = SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")
    storage = store.checkpoint_storage()
    sizes = []
    for number in range(1, 31):
        storage.create(f"flights/chk-{number}/file", os.urandom(MB))
        storage.delete([f"flights/chk-{number - 2}/file"])
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert max(sizes) < 8 * MB, "30 MB were written, 2 MB are kept"
    assert sizes[-1] <= sizes[9]
