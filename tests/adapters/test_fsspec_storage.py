"""What only the fsspec storage can get wrong: kills, links, durability, lost answers, odd file systems."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dagster_ckpt.adapters import local_keys, local_sync
from dagster_ckpt.adapters.fsspec_storage import Durability, FsspecCheckpointStorage, open_storage
from dagster_ckpt.adapters.local_keys import PARTIAL_PREFIX
from dagster_ckpt.core.paths import AlreadyExists, Digest
from dagster_ckpt.digests import digest_bytes, digest_file
from dagster_ckpt.errors import (
    CheckpointError,
    Corrupt,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from tests.adapters import filesystems, workers
from tests.adapters.filesystems import FlakyObjects
from tests.adapters.servers import S3Server, free_port


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


@pytest.fixture
def local(base: Path) -> FsspecCheckpointStorage:
    return open_storage(str(base))


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


# --- a key is whole or invisible ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("partials", ["nameless", "named"])
def test_a_killed_writer_never_leaves_a_visible_partial_key(
    base: Path, tmp_path: Path, partials: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(24 * 1024 * 1024))
    whole = digest_file(source)
    monkeypatch.setenv("DAGSTER_CKPT_TEST_PARTIALS", partials)
    for attempt in range(5):
        folder = base / str(attempt)
        process = workers.start("create_for_ever", str(folder), str(source))
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        time.sleep(random.Random(attempt).uniform(0.0, 0.1))
        process.kill()
        process.communicate()
        storage = open_storage(str(folder))
        stored = [*storage.list("pipeline")]
        assert stored
        assert {found.size for found in stored} == {whole.size}
        last = max(stored, key=lambda found: int(found.key.split("-")[1].split("/")[0]))
        storage.fetch(last.key, tmp_path / f"fetched-{attempt}", whole)
        if partials == "nameless":
            assert not [name for name in files_below(folder) if PARTIAL_PREFIX in name]


def test_a_write_that_fails_half_way_leaves_nothing(
    local: FsspecCheckpointStorage, base: Path, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(b"x" * 3_000_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, hard))
    try:
        with pytest.raises(Unavailable, match="p/chk-1/file"):
            local.create("p/chk-1/file", tmp_path / "source")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_below(base) == []


@pytest.fixture(params=["no nameless files", "no hard links either"])
def poorer_file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system that refuses what ext4 can do, with the error codes real ones give."""

    def refuse_nameless(folder: Path) -> tuple[int, Path | None]:
        os.stat(folder)
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    def refuse_link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(local_keys, "_open_nameless", refuse_nameless)
    if request.param == "no hard links either":
        monkeypatch.setattr(os, "link", refuse_link)
    return str(request.param)


def test_a_poorer_file_system_keeps_the_same_promises(
    poorer_file_system: str, base: Path, tmp_path: Path
) -> None:
    storage = open_storage(str(base))
    source = tmp_path / "source"
    source.write_bytes(os.urandom(2_000_000))
    digest = storage.create("p/chk-1/file", source)
    assert digest == digest_file(source)
    assert storage.create("p/chk-1/file", b"second") == AlreadyExists("p/chk-1/file")
    assert storage.read("p/chk-1/file") == source.read_bytes()
    storage.fetch("p/chk-1/file", tmp_path / "target", digest_file(source))
    assert (tmp_path / "target").read_bytes() == source.read_bytes()
    assert files_below(base) == ["p/chk-1/file"]


def test_what_a_killed_writer_left_under_a_temporary_name_is_not_listed(
    local: FsspecCheckpointStorage, base: Path
) -> None:
    local.create("p/chk-1/file", b"content")
    (base / "p" / "chk-1" / f"{PARTIAL_PREFIX}0123").write_bytes(b"half")
    assert [found.key for found in local.list("p")] == ["p/chk-1/file"]
    with pytest.raises(InvalidRequest, match="unfinished"):
        local.read(f"p/chk-1/{PARTIAL_PREFIX}0123")


# --- links and durability -------------------------------------------------------------------------------------


def test_fetch_on_one_file_system_links_instead_of_copying(
    local: FsspecCheckpointStorage, base: Path, tmp_path: Path
) -> None:
    digest = local.create("p/chk-1/file", b"content")
    assert isinstance(digest, Digest)
    local.fetch("p/chk-1/file", tmp_path / "target", digest)
    assert (tmp_path / "target").samefile(base / "p/chk-1/file")
    local.delete(["p/chk-1/file"])
    assert (tmp_path / "target").read_bytes() == b"content"


@pytest.fixture
def other_file_system(tmp_path: Path) -> Iterator[Path]:
    """A folder of another file system than the test's own: on disk where that one is in memory."""
    mine = os.stat(tmp_path).st_dev
    places = [
        place for place in ("/dev/shm", "/tmp") if os.path.isdir(place) and os.stat(place).st_dev != mine
    ]
    if not places:
        pytest.skip("needs a second file system, at /dev/shm or /tmp")
    with tempfile.TemporaryDirectory(dir=places[0], prefix="dagster-ckpt-test-") as folder:
        yield Path(folder)


def test_fetch_across_file_systems_copies(tmp_path: Path, other_file_system: Path) -> None:
    storage = open_storage(str(other_file_system))
    content = os.urandom(2_500_000)
    storage.create("p/file", content)
    storage.fetch("p/file", tmp_path / "target", digest_bytes(content))
    assert (tmp_path / "target").read_bytes() == content
    assert (tmp_path / "target").stat().st_nlink == 1


def test_a_stored_file_shares_no_bytes_with_its_source(
    local: FsspecCheckpointStorage, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"before")
    local.create("p/file", source)
    source.write_bytes(b"after!")
    assert local.read("p/file") == b"before"


class Disk:
    """Watches which files are brought to disk, and what was visible at that moment."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        self.events: list[str] = []
        self.visible: list[list[str]] = []
        self._real_fsync = os.fsync
        self._real_syncfs = local_sync._sync_file_system
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(local_sync, "_sync_file_system", self._syncfs)

    def _fsync(self, fd: int) -> None:
        self._note(os.readlink(f"/proc/self/fd/{fd}").removeprefix(f"{self.base}/"))
        self._real_fsync(fd)

    def _syncfs(self, folder: Path) -> bool:
        self._note("everything")
        return self._real_syncfs(folder)

    def _note(self, event: str) -> None:
        self.events.append("nameless" if "(deleted)" in event else event)
        self.visible.append(files_below(self.base))


def test_metadata_is_on_disk_before_its_key_is_visible(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(base, monkeypatch)
    open_storage(str(base)).create("p/_metadata", b"content")
    assert disk.events == ["nameless", "p"], "first the content, then the folder's entry"
    assert disk.visible == [[], ["p/_metadata"]]


@pytest.mark.parametrize(("files", "how"), [(3, ["p/0", "p/1", "p/2"]), (40, ["everything"])])
def test_files_are_on_disk_before_the_object_that_makes_them_count_is_visible(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, how: list[str]
) -> None:
    (tmp_path / "source").write_bytes(b"content")
    disk = Disk(base, monkeypatch)
    storage = open_storage(str(base))
    for number in range(files):
        storage.create(f"p/{number}", tmp_path / "source")
    assert disk.events == []
    storage.create("p/manifest", b"names them")
    assert [*sorted(disk.events[: len(how)]), *disk.events[len(how) :]] == [*how, "nameless", "p"]
    assert "p/manifest" not in disk.visible[len(how)]
    storage.create("p/other", b"nothing new to sync")
    assert disk.events[len(how) :] == ["nameless", "p", "nameless", "p"]


@pytest.mark.parametrize("damaged", ["p/0", "p/4"])
def test_files_that_cannot_be_brought_to_disk_keep_the_manifest_from_appearing(
    local: FsspecCheckpointStorage, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    """One of several that are synced side by side, in whichever thread; the next flush tries it again."""
    (tmp_path / "source").write_bytes(b"content")
    disk = Disk(base, monkeypatch)

    def failing_disk(event: str) -> None:
        time.sleep(0.05)  # so that every thread takes part
        if event == damaged:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "_note", failing_disk)
    keys = [f"p/{number}" for number in range(5)]
    for key in keys:
        local.create(key, tmp_path / "source")
    for _ in range(2):
        with pytest.raises(Unavailable, match="Input/output error"):
            local.create("p/manifest", b"names it")
        assert files_below(base) == keys


def test_files_are_brought_to_disk_in_a_fork_of_a_process_that_has_done_so(
    local: FsspecCheckpointStorage, base: Path, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(b"content")

    def store(process: str) -> None:
        for number in range(5):
            local.create(f"{process}/{number}", tmp_path / "source")
        local.create(f"{process}/manifest", b"names them")

    store("parent")
    child = os.fork()
    if not child:
        signal.alarm(20)  # for one that waits for its parent's threads
        with suppress(BaseException):
            store("child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert "child/manifest" in files_below(base)


def test_nothing_waits_for_the_disk_where_a_process_crash_is_all_to_survive(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(b"content")
    disk = Disk(base, monkeypatch)
    storage = open_storage(str(base), durability=Durability.PROCESS_CRASH)
    storage.create("p/file", tmp_path / "source")
    storage.create("p/manifest", b"names it")
    assert disk.events == []


def test_empty_folders_go_with_their_last_key_and_the_base_stays(
    local: FsspecCheckpointStorage, base: Path
) -> None:
    local.create("p/chk-1/uid/query/offsets/0", b"x")
    local.create("p/chk-2/uid/query/offsets/0", b"x")
    (base / "p" / "notes.txt").write_text("not ours")
    local.delete(["p/chk-1/uid/query/offsets/0"])
    assert sorted(os.listdir(base / "p")) == ["chk-2", "notes.txt"]
    local.delete(["p/chk-2/uid/query/offsets/0"])
    assert sorted(os.listdir(base / "p")) == ["notes.txt"]
    (base / "p" / "notes.txt").unlink()
    local.delete(["p/notes.txt"])
    assert os.listdir(base) == []


# --- what others put into the folder --------------------------------------------------------------------------


@pytest.mark.parametrize("linked", ["p/chk-7", "p"])
def test_a_symbolic_link_in_the_folder_is_told_and_nothing_behind_it_is_touched(
    local: FsspecCheckpointStorage, base: Path, tmp_path: Path, linked: str
) -> None:
    home = tmp_path / "home"
    (home / "chk-7" / "empty").mkdir(parents=True)
    for name in ("chk-7/letter", "letter"):
        (home / name).write_bytes(b"of its owner")
    (base / linked).parent.mkdir(parents=True)
    (base / linked).symlink_to(home)
    calls: list[Callable[[], object]] = [
        lambda: list(local.list("p/chk-7")),
        lambda: local.delete(["p/chk-7/letter"]),
        lambda: local.read("p/chk-7/letter"),
        lambda: local.create("p/chk-7/new/letter", b"x"),
        lambda: local.fetch("p/chk-7/letter", tmp_path / "here", digest_bytes(b"of its owner")),
    ]
    for call in calls:
        with pytest.raises(
            Corrupt, match=f"{linked} is a symbolic link, and checkpoint storage follows none"
        ):
            call()
    assert files_below(home) == ["chk-7/letter", "letter"]
    assert (home / "chk-7" / "empty").is_dir()
    assert not (tmp_path / "here").exists()
    local.delete([linked])
    assert not os.path.lexists(base / linked)
    assert files_below(home) == ["chk-7/letter", "letter"]


def test_a_folder_that_becomes_a_link_between_list_and_delete_is_not_entered(
    local: FsspecCheckpointStorage, base: Path, tmp_path: Path
) -> None:
    local.create("p/chk-7/uid/letter", b"ours")
    keys = [found.key for found in local.list("p/chk-7")]
    (base / "p" / "chk-7").rename(tmp_path / "moved")
    (base / "p" / "chk-7").symlink_to(tmp_path / "moved")
    with pytest.raises(Corrupt, match="symbolic link"):
        local.delete(keys)
    assert files_below(tmp_path / "moved") == ["uid/letter"]


@pytest.mark.parametrize(
    ("put", "told"),
    [
        (os.mkfifo, "is no file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a symbolic link"),
        (lambda path: path.symlink_to(path.parent / "plain"), "is a symbolic link"),
    ],
    ids=["pipe", "endless", "link"],
)
def test_only_a_file_is_read(
    local: FsspecCheckpointStorage, base: Path, tmp_path: Path, put: Callable[[Path], None], told: str
) -> None:
    local.create("p/plain", b"content")
    put(base / "p" / "put")
    with pytest.raises(Corrupt, match=told):
        local.read("p/put")
    with pytest.raises(Corrupt, match=told):
        local.fetch("p/put", tmp_path / "here", digest_bytes(b"content"))
    assert not os.path.lexists(tmp_path / "here")


def test_a_file_of_another_size_is_not_read_to_its_end(
    local: FsspecCheckpointStorage, base: Path, tmp_path: Path
) -> None:
    local.create("p/file", b"content")
    os.truncate(base / "p" / "file", 4 * 1024**4)
    with pytest.raises(
        Corrupt, match=r"7 bytes with .* were stored, 4398046511104 bytes with other content are there"
    ):
        local.fetch("p/file", tmp_path / "here", digest_bytes(b"content"))
    with pytest.raises(Corrupt, match="has more than 268 MB"):
        local.read("p/file")


def test_a_file_that_others_may_change_is_copied_and_not_linked(
    local: FsspecCheckpointStorage, base: Path, tmp_path: Path
) -> None:
    local.create("p/file", b"content")
    (base / "p" / "file").chmod(0o646)
    local.fetch("p/file", tmp_path / "here", digest_bytes(b"content"))
    (base / "p" / "file").write_bytes(b"changed")
    assert (tmp_path / "here").read_bytes() == b"content"


# --- URIs and options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "base_uri"),
    [
        ("/data/checkpoints/", "file:///data/checkpoints"),
        ("file:///data/checkpoints", "file:///data/checkpoints"),
        ("file:/data/checkpoints", "file:///data/checkpoints"),
        ("local:///data/a b", "file:///data/a b"),
        ("/data/other/../checkpoints", "file:///data/checkpoints"),
        ("file:///data/./checkpoints", "file:///data/checkpoints"),
        ("s3://bucket/some/prefix/", "s3://bucket/some/prefix"),
        ("memory://x", "memory://x"),
    ],
)
def test_a_uri_is_shown_in_one_form(uri: str, base_uri: str) -> None:
    assert open_storage(uri).base_uri == base_uri


def test_a_relative_path_means_the_folder_it_meant_when_the_storage_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage("checkpoints").base_uri == f"file://{tmp_path}/checkpoints"
    assert open_storage("../checkpoints").base_uri == f"file://{tmp_path.parent}/checkpoints"


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("", "empty"),
        ("s3://", "names no bucket"),
        ("simplecache::s3://bucket/x", "chained"),
        ("s3:/bucket/x", "one slash: write s3://"),
        ("HDFS:/data/x", "one slash: write hdfs://"),
        ("sftp://me:secret-word@host/path", "password"),
        ("https://secret-word@host/path", "password"),
        ("https://host/path?token=secret-word", "contains options"),
        ("s3://bucket/x?aws_secret_access_key=secret-word", "contains options"),
        ("https://host/path;sig=secret-word", "contains options"),
    ],
)
def test_a_uri_that_cannot_serve_is_refused_at_once(uri: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        open_storage(uri)
    assert "secret-word" not in str(caught.value)


def test_an_unknown_protocol_is_refused_at_first_use() -> None:
    with pytest.raises(InvalidRequest, match="nosuch"):
        open_storage("nosuch://host/path").read("key")


def test_options_are_neither_shown_nor_part_of_the_uri() -> None:
    storage = open_storage("s3://bucket/x", key="user", secret="secret-word")
    assert "secret-word" not in f"{storage!r} {storage.base_uri}"


# --- failures -------------------------------------------------------------------------------------------------


def test_check_writable_passes_and_leaves_nothing(local: FsspecCheckpointStorage, base: Path) -> None:
    local.check_writable()
    assert files_below(base) == []


def test_check_writable_says_in_one_sentence_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match="cannot be used") as caught:
        open_storage(f"{tmp_path}/file/base").check_writable()
    assert "\n" not in str(caught.value)


def test_a_key_below_another_object_is_an_invalid_request(local: FsspecCheckpointStorage) -> None:
    local.create("p/file", b"content")
    with pytest.raises(InvalidRequest, match="itself an object"):
        local.create("p/file/below", b"content")


def test_a_folder_is_not_an_object(local: FsspecCheckpointStorage) -> None:
    local.create("p/chk-1/file", b"content")
    with pytest.raises(NotFound):
        local.read("p/chk-1")


def test_a_missing_bucket_is_unavailable_and_the_message_asks_for_it(s3: S3Server) -> None:
    storage = open_storage("s3://no-such-bucket/x", **s3.options)
    with pytest.raises(Unavailable, match=r"no-such-bucket"):
        storage.create("p/file", b"content")
    with pytest.raises(Unavailable):
        storage.check_writable()


def test_an_endpoint_that_does_not_answer_is_unavailable() -> None:
    endpoint = {"endpoint_url": f"http://127.0.0.1:{free_port()}", "region_name": "us-east-1"}
    settings = {"connect_timeout": 1, "retries": {"max_attempts": 0}}
    storage = open_storage("s3://b/x", key="k", secret="s", client_kwargs=endpoint, config_kwargs=settings)
    calls: list[Callable[[], object]] = [
        lambda: storage.read("p/file"),
        lambda: list(storage.list("p")),
        lambda: storage.create("p/file", b"content"),
    ]
    for call in calls:
        with pytest.raises(Unavailable):
            call()


def test_endpoint_and_credentials_may_come_from_the_environment_alone(
    s3: S3Server, s3_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-the-environment")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    open_storage(s3_uri).check_writable()


def test_a_large_object_goes_up_in_parts_and_comes_down_whole(
    s3: S3Server, s3_uri: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(11 * 1024 * 1024))
    storage = open_storage(s3_uri, default_block_size=5 * 1024 * 1024, **s3.options)
    digest = storage.create("p/large", source)
    assert digest == digest_file(source)
    storage.fetch("p/large", tmp_path / "target", digest_file(source))
    assert (tmp_path / "target").read_bytes() == source.read_bytes()


def test_an_upload_in_parts_that_was_never_completed_is_invisible(s3: S3Server, s3_uri: str) -> None:
    import boto3

    bucket = s3_uri.split("/")[2]
    client = boto3.client(
        "s3", aws_access_key_id="k", aws_secret_access_key="s", **s3.options["client_kwargs"]
    )
    begun = client.create_multipart_upload(Bucket=bucket, Key="checkpoints/p/file")
    part = {"Bucket": bucket, "Key": "checkpoints/p/file", "UploadId": begun["UploadId"], "PartNumber": 1}
    client.upload_part(Body=b"x" * 100, **part)
    client.close()
    storage = open_storage(s3_uri, **s3.options)
    assert list(storage.list("p")) == []
    assert storage.create("p/file", b"content") == digest_bytes(b"content")
    assert storage.read("p/file") == b"content"


# --- answers lost on the way ------------------------------------------------------------------------------------


@pytest.fixture
def flaky() -> Iterator[FsspecCheckpointStorage]:
    filesystems.register()
    FlakyObjects.store.clear()
    yield open_storage("r2://bucket/base")
    FlakyObjects.on_put = FlakyObjects.on_look = None


def fail() -> None:
    raise TimeoutError("no answer")


def test_a_put_whose_answer_was_lost_is_found_by_its_content(
    flaky: FsspecCheckpointStorage, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(b"from a file")

    def store_then_fail(put: Callable[[], None]) -> None:
        put()
        fail()

    for key, source in (("p/1", b"bytes"), ("p/2", tmp_path / "source")):
        FlakyObjects.on_put = staticmethod(store_then_fail)
        content = source if isinstance(source, bytes) else source.read_bytes()
        assert flaky.create(key, source) == digest_bytes(content)
        assert flaky.read(key) == content


def test_a_put_that_did_not_happen_is_unavailable(flaky: FsspecCheckpointStorage) -> None:
    FlakyObjects.on_put = staticmethod(lambda put: fail())
    with pytest.raises(Unavailable, match="was not stored"):
        flaky.create("p/1", b"bytes")
    assert list(flaky.list("p")) == []
    assert flaky.create("p/1", b"bytes") == digest_bytes(b"bytes")


def test_a_put_that_cannot_be_read_back_has_an_unknown_outcome(flaky: FsspecCheckpointStorage) -> None:
    def store_then_go_dark(put: Callable[[], None]) -> None:
        put()
        FlakyObjects.on_look = staticmethod(fail)
        fail()

    FlakyObjects.on_put = staticmethod(store_then_go_dark)
    with pytest.raises(OutcomeUnknown, match="p/1"):
        flaky.create("p/1", b"bytes")


def test_a_put_that_lost_a_race_leaves_the_winners_content(flaky: FsspecCheckpointStorage) -> None:
    def another_first(put: Callable[[], None]) -> None:
        flaky.create("p/1", b"theirs")
        fail()

    FlakyObjects.on_put = staticmethod(another_first)
    assert flaky.create("p/1", b"ours") == AlreadyExists("p/1")
    assert flaky.read("p/1") == b"theirs"


def test_a_put_that_stored_too_few_bytes_is_removed_again(flaky: FsspecCheckpointStorage) -> None:
    def store_half(put: Callable[[], None]) -> None:
        put()
        FlakyObjects.store["/bucket/base/p/1"].truncate(2)

    FlakyObjects.on_put = staticmethod(store_half)
    with pytest.raises(Unavailable, match="2 of 5 bytes"):
        flaky.create("p/1", b"bytes")
    assert list(flaky.list("p")) == []


def test_every_failure_of_a_client_is_an_error_of_this_library(flaky: FsspecCheckpointStorage) -> None:
    FlakyObjects.on_look = staticmethod(fail)
    with pytest.raises(CheckpointError):
        flaky.create("p/1", b"bytes")
