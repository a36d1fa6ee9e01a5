"""What only the SQL store can get wrong: processes that race or are killed, broken connections, migrations."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from dagster_ckpt.adapters import sql_database, sql_engine
from dagster_ckpt.adapters.sql_database import HEAD_REVISION, VERSION_TABLE, metadata
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.errors import Corrupt, InvalidRequest, OutcomeUnknown, Unavailable
from dagster_ckpt.ports import Committed, Conflict, StoredRecord
from tests.adapters import workers
from tests.adapters.servers import CommitLosingProxy, Loss, PostgresCluster, free_port
from tests.adapters.workers import history_row
from tests.progress import QUIET, output_of

PIPELINE = PipelineId("flights")
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database that does not have our tables yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store/store.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def store(url: str) -> Iterator[SqlCoordinatorStore]:
    opened = SqlCoordinatorStore(url)
    yield opened
    opened.close()


# --- many processes -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_eight_processes_increment_one_record_and_no_update_is_lost(
    url: str, store: SqlCoordinatorStore
) -> None:
    started = [workers.start("increment", url, PIPELINE, "25") for _ in range(8)]
    for process in started:
        output_of(process)
    codes = [process.returncode for process in started]
    assert codes == [0] * 8
    assert store.load(PIPELINE) == StoredRecord(200, "200")
    rows = store.history(PIPELINE, limit=300)
    assert [row.checkpoint_id for row in rows] == list(range(200, 0, -1))
    assert len({row.body for row in rows}) > 1, "more than one process must have won"


@pytest.mark.slow
def test_a_killed_writer_leaves_record_and_history_of_the_same_write(
    url: str, store: SqlCoordinatorStore
) -> None:
    for attempt in range(4):
        pipeline = PipelineId(f"killed-{attempt}")
        process = workers.start("count_for_ever", url, pipeline)
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        time.sleep(random.Random(attempt).uniform(0.0, 0.15))
        process.kill()
        process.communicate()
        record = store.load(pipeline)
        assert record is not None
        assert record.body == str(record.version)
        assert store.history(pipeline, limit=1)[0].checkpoint_id == record.version
        assert store.compare_and_set(pipeline, record.version, "next") == Committed(record.version + 1)


def test_processes_that_start_together_migrate_once(url: str) -> None:
    started = [workers.start("migrate", url) for _ in range(4)]
    said = [output_of(process) for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert said == ["[]\n"] * 4


def test_a_store_object_may_be_used_on_both_sides_of_a_fork(url: str) -> None:
    process = workers.start("use_after_fork", url)
    said = output_of(process)
    assert said.strip() == "0 StoredRecord(version=3, body='parent again')"


# --- COMMIT without an answer ---------------------------------------------------------------------------------


@pytest.fixture
def proxy(postgres_server: PostgresCluster) -> Iterator[CommitLosingProxy]:
    opened = CommitLosingProxy(postgres_server.port)
    yield opened
    opened.close()


@pytest.fixture
def behind_proxy(
    proxy: CommitLosingProxy, postgres_server: PostgresCluster, postgres_url: str
) -> Iterator[SqlCoordinatorStore]:
    direct = SqlCoordinatorStore(postgres_url)
    direct.migrate()
    direct.close()
    opened = SqlCoordinatorStore(postgres_url.replace(f":{postgres_server.port}/", f":{proxy.port}/"))
    assert opened.load(PIPELINE) is None
    yield opened
    opened.close()


@pytest.mark.parametrize("earlier_versions", [0, 1])
@pytest.mark.parametrize("loss", [Loss.ANSWER, Loss.LATE])
def test_a_commit_whose_answer_was_lost_is_found_by_its_write_id(
    behind_proxy: SqlCoordinatorStore, proxy: CommitLosingProxy, loss: Loss, earlier_versions: int
) -> None:
    """LATE: the server still holds the transaction open while we read back; a plain read would say "not committed"."""
    _write_versions(behind_proxy, earlier_versions)
    proxy.loss = loss
    answer = behind_proxy.compare_and_set(PIPELINE, earlier_versions, "new", [history_row(PIPELINE, 7)])
    assert proxy.fired.wait(QUIET)
    assert answer == Committed(earlier_versions + 1)
    assert behind_proxy.load(PIPELINE) == StoredRecord(earlier_versions + 1, "new")
    assert behind_proxy.history(PIPELINE, limit=1)[0].checkpoint_id == 7


@pytest.mark.parametrize("earlier_versions", [0, 1])
def test_a_commit_that_never_arrived_is_certainly_not_done(
    behind_proxy: SqlCoordinatorStore, proxy: CommitLosingProxy, earlier_versions: int
) -> None:
    _write_versions(behind_proxy, earlier_versions)
    proxy.loss = Loss.REQUEST
    with pytest.raises(Unavailable, match="nothing was changed"):
        behind_proxy.compare_and_set(PIPELINE, earlier_versions, "new", [history_row(PIPELINE, 7)])
    assert behind_proxy.history(PIPELINE, limit=9) == []
    assert behind_proxy.compare_and_set(PIPELINE, earlier_versions, "new") == Committed(earlier_versions + 1)


def test_a_commit_that_cannot_be_read_back_has_an_unknown_outcome(
    behind_proxy: SqlCoordinatorStore,
    proxy: CommitLosingProxy,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sql_database, "READ_BACK_PAUSES", (0.0, 0.05))
    proxy.loss = Loss.ANSWER_THEN_DEAF
    with pytest.raises(OutcomeUnknown, match="load the record"):
        behind_proxy.compare_and_set(PIPELINE, 0, "new")
    direct = SqlCoordinatorStore(postgres_url)
    assert direct.load(PIPELINE) == StoredRecord(1, "new"), "it had happened, which nobody could know"
    direct.close()


def _write_versions(store: SqlCoordinatorStore, number: int) -> None:
    for version in range(number):
        assert store.compare_and_set(PIPELINE, version, f"old {version}") == Committed(version + 1)


# --- failures that certainly changed nothing --------------------------------------------------------------------


def test_a_server_that_does_not_answer_is_unavailable_and_its_password_is_not_told(
    postgres_server: PostgresCluster,
) -> None:
    store = SqlCoordinatorStore(f"postgresql://someone:secret-word@127.0.0.1:{free_port()}/db")
    with pytest.raises(Unavailable, match="does not answer") as caught:
        store.compare_and_set(PIPELINE, 0, "new")
    assert "secret-word" not in f"{caught.value} {store!r}"


def test_connections_that_the_server_closed_meanwhile_are_replaced_unnoticed(
    postgres_server: PostgresCluster, postgres_url: str
) -> None:
    store = SqlCoordinatorStore(postgres_url)
    store.compare_and_set(PIPELINE, 0, "new")
    engine = create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        connection.execute(text(f"{others} AND pid <> pg_backend_pid()"))
    engine.dispose()
    assert store.compare_and_set(PIPELINE, 1, "newer") == Committed(2)
    store.close()


def test_a_database_that_stays_locked_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_engine, "BUSY_SECONDS", 0.2)
    store = SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")
    store.compare_and_set(PIPELINE, 0, "new")
    blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        store.compare_and_set(PIPELINE, 1, "newer")
    assert store.load(PIPELINE) == StoredRecord(1, "new"), "readers are not blocked by a writer"
    blocker.close()
    assert store.compare_and_set(PIPELINE, 1, "newer") == Committed(2)


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match=r"store.db"):
        SqlCoordinatorStore(f"sqlite:///{tmp_path}/file/store.db").load(PIPELINE)


def test_a_file_that_is_no_database_is_corrupt_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_text("these are my notes, not a database" * 100)
    before = path.read_bytes()
    with pytest.raises(Corrupt, match="damaged"):
        SqlCoordinatorStore(f"sqlite:///{path}").load(PIPELINE)
    assert path.read_bytes() == before


def test_a_sqlite_file_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    store = SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")
    store.compare_and_set(PIPELINE, 0, "new")
    for path in tmp_path.iterdir():
        path.unlink()
    assert store.load(PIPELINE) is None
    assert store.compare_and_set(PIPELINE, 0, "again") == Committed(1)


def test_a_value_the_database_cannot_hold_is_an_invalid_request(url: str, store: SqlCoordinatorStore) -> None:
    if url.startswith("sqlite"):
        assert store.compare_and_set(PIPELINE, 0, "a\x00b") == Committed(1)
        assert store.load(PIPELINE) == StoredRecord(1, "a\x00b")
    else:
        with pytest.raises(InvalidRequest, match="cannot hold"):
            store.compare_and_set(PIPELINE, 0, "a\x00b")
        assert store.load(PIPELINE) is None


# --- construction and URLs ------------------------------------------------------------------------------------


def test_constructing_a_store_touches_nothing(tmp_path: Path) -> None:
    SqlCoordinatorStore(f"sqlite:///{tmp_path}/folder/store.db").close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "name a file"),
        ("sqlite:///:memory:", "name a file"),
        ("sqlite:////data/store.db?mode=ro", "without '\\?'"),
        ("mysql://root@host/db", "mysql"),
        ("not a url", "cannot be read"),
    ],
)
def test_a_url_that_cannot_serve_is_refused_at_once(url: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        SqlCoordinatorStore(url)


def test_a_closed_store_opens_again_at_need(store: SqlCoordinatorStore) -> None:
    store.compare_and_set(PIPELINE, 0, "new")
    store.close()
    assert store.load(PIPELINE) == StoredRecord(1, "new")


# --- migrations -----------------------------------------------------------------------------------------------


def test_migrating_again_changes_nothing(store: SqlCoordinatorStore) -> None:
    store.migrate()
    store.compare_and_set(PIPELINE, 0, "new")
    store.migrate()
    assert store.load(PIPELINE) == StoredRecord(1, "new")


def test_the_migrations_end_at_the_schema_the_code_uses(url: str, store: SqlCoordinatorStore) -> None:
    config = Config()
    config.set_main_option("script_location", "dagster_ckpt.adapters:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD_REVISION]
    store.migrate()
    engine = sql_engine.build_engine(sql_engine.store_url(url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_a_database_of_a_newer_version_is_refused_and_left_alone(
    url: str, store: SqlCoordinatorStore
) -> None:
    store.migrate()
    engine = sql_engine.build_engine(sql_engine.store_url(url))
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(InvalidRequest, match="newer than this dagster_ckpt"):
        store.migrate()
    with pytest.raises(InvalidRequest, match="upgrade dagster_ckpt"):
        SqlCoordinatorStore(url).load(PIPELINE)
    with engine.connect() as connection:
        assert connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() == "9999"
    engine.dispose()


def test_a_current_database_costs_no_import_of_alembic(url: str, store: SqlCoordinatorStore) -> None:
    store.migrate()
    said = output_of(workers.start("load_without_alembic", url))
    assert said == "False\n"


def test_the_store_shares_a_database_with_other_users_of_alembic(
    url: str, store: SqlCoordinatorStore
) -> None:
    engine = sql_engine.build_engine(sql_engine.store_url(url))
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('theirs')"))
    assert store.compare_and_set(PIPELINE, 0, "new") == Committed(1)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "theirs"
    engine.dispose()


def test_a_conflict_after_an_unanswered_commit_is_judged_by_versions(store: SqlCoordinatorStore) -> None:
    """Version n+1 by someone else: we lost. Version n+2: ours may have been there in between."""
    store.compare_and_set(PIPELINE, 0, "theirs")
    lost = sql_database.CommitFailed("connection lost")
    assert store._read_back(PIPELINE, 0, "ours", lost) == Conflict(StoredRecord(1, "theirs"))
    store.compare_and_set(PIPELINE, 1, "theirs too")
    with pytest.raises(OutcomeUnknown):
        store._read_back(PIPELINE, 0, "ours", lost)


# --- which store it is ------------------------------------------------------------------------------------------


def test_a_store_is_told_from_its_copy_also_where_that_was_put_in_its_place(tmp_path: Path) -> None:
    def opened(name: str) -> SqlCoordinatorStore:
        return SqlCoordinatorStore(f"sqlite:///{tmp_path / name}")

    mine = opened("mine.db")
    assert mine.place == ""
    mine.migrate()
    known = mine.place
    assert known != ""
    assert opened("mine.db").place == known
    (tmp_path / "copy.db").write_bytes((tmp_path / "mine.db").read_bytes())
    assert opened("copy.db").place not in ("", known)
    (tmp_path / "copy.db").rename(tmp_path / "mine.db")
    assert opened("mine.db").place not in ("", known)


def test_a_database_of_a_server_is_known_by_both_and_by_no_user_or_password() -> None:
    store = SqlCoordinatorStore("postgresql://ann:secret@db.example:5433/checkpoints")
    assert store.place == "db.example:5433/checkpoints"
