"""What every CheckpointStorage promises, held against each implementation, also while it is failing."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.core.paths import AlreadyExists, Digest, StoredObject
from dagster_ckpt.digests import digest_bytes, digest_file
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from dagster_ckpt.ports import CheckpointStorage
from dagster_ckpt.testing.faults import UnreliableStorage
from dagster_ckpt.testing.memory import MemoryCheckpointStorage
from tests.adapters import filesystems

FIRST_SEED = int(os.environ.get("DAGSTER_CKPT_SEED", "0"))
KINDS = [
    "memory",
    "local",
    "fsspec-memory",
    "remote-folder",
    "real-folders",
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("azure", marks=pytest.mark.platform),
    pytest.param("google", marks=pytest.mark.platform),
    "store-sqlite",
    pytest.param("store-postgres", marks=pytest.mark.postgres),
]


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStorage]:
    match request.param:
        case "memory":
            yield MemoryCheckpointStorage()
        case "local":
            yield open_storage(f"file://{tmp_path}/storage/base folder")
        case "fsspec-memory":
            yield open_storage(f"memory://{uuid.uuid4().hex}/base")
        case "remote-folder":
            filesystems.register()
            yield open_storage(f"remotefolder://{tmp_path}/storage/base")
        case "real-folders":
            filesystems.register_hierarchical()
            yield open_storage(f"az://{uuid.uuid4().hex}/base")
            filesystems.HierarchicalObjects.reset()
        case "store-sqlite":
            yield from in_store(f"sqlite:///{tmp_path}/store/store.db")
        case "store-postgres":
            yield from in_store(request.getfixturevalue("postgres_url"))
        case "azure":
            azure = request.getfixturevalue("azure")
            yield open_storage(f"abfs://{azure.new_container()}/checkpoints", **azure.options)
        case "google":
            google = request.getfixturevalue("google")
            yield open_storage(f"gs://{google.new_bucket()}/checkpoints", **google.options)
        case _:
            options = request.getfixturevalue("s3").options
            yield open_storage(request.getfixturevalue("s3_uri"), **options)


def in_store(url: str) -> Iterator[CheckpointStorage]:
    store = SqlCoordinatorStore(url)
    yield store.checkpoint_storage()
    store.close()


def keys_below(storage: CheckpointStorage, prefix: str) -> list[str]:
    return sorted(found.key for found in storage.list(prefix))


# --- create and read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4096, 1024 * 1024, 3 * 1024 * 1024 + 7])
def test_bytes_come_back_as_they_were_stored(storage: CheckpointStorage, size: int) -> None:
    content = os.urandom(size)
    assert storage.create("p/chk-1/_metadata", content) == digest_bytes(content)
    assert storage.read("p/chk-1/_metadata") == content


@pytest.mark.parametrize("size", [0, 1, 1024 * 1024, 3 * 1024 * 1024 + 7])
def test_a_local_file_is_stored_with_the_digest_of_its_content(
    storage: CheckpointStorage, tmp_path: Path, size: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(size))
    assert storage.create("p/shared/count/1/query/state/0/3/12.zip", source) == digest_file(source)
    assert storage.read("p/shared/count/1/query/state/0/3/12.zip") == source.read_bytes()
    assert source.exists(), "the source is left where it was"


def test_the_digest_is_xxh3_of_128_bits_in_hex(storage: CheckpointStorage) -> None:
    """The empty input's value is published with the algorithm."""
    assert storage.create("empty", b"") == Digest(0, "xxh3_128:99aa06d3014798d86001c324468d497f")


def test_a_taken_key_is_not_written_again(storage: CheckpointStorage, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"another")
    storage.create("p/chk-1/_metadata", b"first")
    assert storage.create("p/chk-1/_metadata", b"second") == AlreadyExists("p/chk-1/_metadata")
    assert storage.create("p/chk-1/_metadata", tmp_path / "other") == AlreadyExists("p/chk-1/_metadata")
    assert storage.read("p/chk-1/_metadata") == b"first"


def test_a_source_that_is_gone_is_the_callers_file_not_found(
    storage: CheckpointStorage, tmp_path: Path
) -> None:
    """Spark may remove a file between plan and copy; that is no failure of the storage."""
    with pytest.raises(FileNotFoundError):
        storage.create("p/chk-1/file", tmp_path / "gone")
    assert keys_below(storage, "p") == []


def test_reading_what_does_not_exist_is_not_found_and_names_it(storage: CheckpointStorage) -> None:
    with pytest.raises(NotFound, match="p/chk-9/_metadata"):
        storage.read("p/chk-9/_metadata")


@pytest.mark.parametrize("key", ["/etc/passwd", "../up", "a/../../b", "a//b", "", "a/./b", "a\\b"])
def test_a_key_that_could_leave_the_base_is_refused(
    storage: CheckpointStorage, key: str, tmp_path: Path
) -> None:
    for attempt in (
        lambda: storage.create(key, b"x"),
        lambda: storage.read(key),
        lambda: storage.fetch(key, tmp_path / "t", Digest(0, "")),
        lambda: storage.delete([key]),
    ):
        with pytest.raises(InvalidRequest):
            attempt()


@pytest.mark.parametrize(
    "name", ["with space", "ümläut-😀", "per%20cent", "star*?[a]", "hash#1", "a+b&c=d", "{braces}", ".hidden"]
)
def test_a_key_with_unusual_characters_means_exactly_itself(storage: CheckpointStorage, name: str) -> None:
    key = f"p/{name}/file"
    storage.create(key, b"mine")
    storage.create("p/other/file", b"other")
    assert storage.read(key) == b"mine"
    assert keys_below(storage, f"p/{name}") == [key]
    storage.delete([key])
    assert keys_below(storage, "p") == ["p/other/file"]


def test_of_writers_that_race_for_a_key_all_leave_one_whole_content(
    storage: CheckpointStorage, tmp_path: Path
) -> None:
    contents = [bytes([n]) * 300_000 for n in range(6)]
    barrier = threading.Barrier(len(contents))

    def write(content: bytes) -> Digest | AlreadyExists:
        barrier.wait()
        return storage.create("p/chk-1/file", content)

    with ThreadPoolExecutor(len(contents)) as pool:
        answers = list(pool.map(write, contents))
    assert storage.read("p/chk-1/file") in contents
    assert any(isinstance(answer, Digest) for answer in answers)
    if storage.base_uri.startswith(("file://", "store://", "s3://", "abfs://")):
        assert sum(isinstance(answer, Digest) for answer in answers) == 1


# --- fetch ----------------------------------------------------------------------------------------------------


def test_fetch_brings_the_content_verified(storage: CheckpointStorage, tmp_path: Path) -> None:
    content = os.urandom(2 * 1024 * 1024 + 3)
    storage.create("p/chk-1/file", content)
    storage.fetch("p/chk-1/file", tmp_path / "target", digest_bytes(content))
    assert (tmp_path / "target").read_bytes() == content


def test_fetch_replaces_what_an_earlier_attempt_left(storage: CheckpointStorage, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"half of an earlier at")
    storage.create("p/chk-1/file", b"content")
    storage.fetch("p/chk-1/file", tmp_path / "target", digest_bytes(b"content"))
    assert (tmp_path / "target").read_bytes() == b"content"


@pytest.mark.parametrize("expected", [b"contenT", b"content and more", b""])
def test_fetch_of_damaged_content_is_corrupt_and_leaves_nothing(
    storage: CheckpointStorage, tmp_path: Path, expected: bytes
) -> None:
    storage.create("p/chk-1/file", b"content")
    folder = tmp_path / "restored"
    folder.mkdir()
    with pytest.raises(Corrupt, match="p/chk-1/file"):
        storage.fetch("p/chk-1/file", folder / "target", digest_bytes(expected))
    assert list(folder.iterdir()) == []


def test_fetch_of_what_does_not_exist_is_not_found_and_leaves_nothing(
    storage: CheckpointStorage, tmp_path: Path
) -> None:
    folder = tmp_path / "restored"
    folder.mkdir()
    with pytest.raises(NotFound):
        storage.fetch("p/chk-1/file", folder / "target", digest_bytes(b""))
    assert list(folder.iterdir()) == []


# --- list and delete ------------------------------------------------------------------------------------------


def test_list_yields_exactly_what_lies_below_the_prefix_with_sizes(storage: CheckpointStorage) -> None:
    for key in ("p/chk-1/_metadata", "p/chk-1/a/b/c", "p/chk-10/_metadata", "p/chk-1x", "q/chk-1/_metadata"):
        storage.create(key, key.encode())
    assert sorted(storage.list("p/chk-1"), key=lambda found: found.key) == [
        StoredObject("p/chk-1/_metadata", 17),
        StoredObject("p/chk-1/a/b/c", 13),
    ]
    assert len(keys_below(storage, "")) == 5
    assert keys_below(storage, "p/chk-2") == []
    assert keys_below(storage, "p/chk-1/_metadata") == []


def test_a_listing_is_never_stale(storage: CheckpointStorage) -> None:
    for number in range(5):
        storage.create(f"p/chk-{number}/file", b"x")
        assert len(keys_below(storage, "p")) == number + 1
    storage.delete(["p/chk-0/file"])
    assert len(keys_below(storage, "p")) == 4


def test_delete_removes_the_named_keys_and_nothing_else(storage: CheckpointStorage) -> None:
    for key in ("p/a/1", "p/a/2", "p/b/1", "p/*"):
        storage.create(key, b"x")
    storage.delete(["p/a/1", "p/*"])
    assert keys_below(storage, "p") == ["p/a/2", "p/b/1"]


def test_deleting_what_is_gone_is_no_error(storage: CheckpointStorage) -> None:
    storage.create("p/a/1", b"x")
    storage.delete(["p/never/was", "p/a/1"])
    storage.delete(["p/a/1"])
    storage.delete([])
    assert keys_below(storage, "p") == []


def test_a_deleted_key_may_be_created_again(storage: CheckpointStorage) -> None:
    storage.create("p/a/1", b"old")
    storage.delete(["p/a/1"])
    assert storage.create("p/a/1", b"new") == digest_bytes(b"new")
    assert storage.read("p/a/1") == b"new"


def test_many_threads_create_fetch_and_delete_at_once(storage: CheckpointStorage, tmp_path: Path) -> None:
    """Each thread prunes the folder another one is about to write into."""

    def churn(worker: int) -> None:
        for turn in range(8):
            key = f"p/chk-{turn}/{worker}"
            digest = storage.create(key, f"{worker} {turn}".encode())
            assert isinstance(digest, Digest)
            storage.fetch(key, tmp_path / f"{worker}", digest)
            storage.delete([key])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(churn, range(6)))
    assert keys_below(storage, "") == []


# --- faults ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 5))
def test_a_client_that_repeats_stores_everything_whole_while_calls_fail(
    storage: CheckpointStorage, seed: int
) -> None:
    unreliable = UnreliableStorage(storage, seed=seed, happened=0.7, heard=0.7)
    contents = {f"p/chk-1/{n}": bytes([n]) * (n + 1) for n in range(10)}
    for key, content in contents.items():
        _store(unreliable, key, content)
    assert {key: storage.read(key) for key in keys_below(storage, "p")} == contents, f"seed {seed}"
    _until_done(lambda: unreliable.delete(list(contents)))
    assert keys_below(storage, "p") == [], f"seed {seed}"


def _store(storage: CheckpointStorage, key: str, content: bytes) -> None:
    while True:
        try:
            answer = storage.create(key, content)
        except (Unavailable, OutcomeUnknown):
            continue
        assert answer in (digest_bytes(content), AlreadyExists(key))
        return


def _until_done(call: object) -> None:
    assert callable(call)
    while True:
        try:
            call()
        except (Unavailable, OutcomeUnknown):
            continue
        return


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 5))
def test_what_an_unreliable_storage_calls_unavailable_did_not_happen(
    storage: CheckpointStorage, seed: int
) -> None:
    unreliable = UnreliableStorage(storage, seed=seed, happened=0.5, heard=0.5)
    outcomes = set()
    for number in range(24):
        key = f"p/{number}"
        try:
            unreliable.create(key, b"x")
            outcomes.add("stored")
            assert keys_below(storage, "p").count(key) == 1
        except Unavailable:
            outcomes.add("unavailable")
            assert key not in keys_below(storage, "p")
        except OutcomeUnknown:
            outcomes.add(f"unknown, stored: {key in keys_below(storage, 'p')}")
    assert outcomes == {"stored", "unavailable", "unknown, stored: True", "unknown, stored: False"}, (
        f"seed {seed}"
    )
