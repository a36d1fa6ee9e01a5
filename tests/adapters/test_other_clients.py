"""Clients of Azure and Google tell the same things in other words than Amazon's: played by fakes, without a server."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from dagster_ckpt.adapters.conditional_put import is_refusal, lacks_credentials, status_of
from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage, open_storage
from dagster_ckpt.core.paths import AlreadyExists
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import (
    CheckpointError,
    Corrupt,
    Declined,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from dagster_ckpt.spark.exchange import objects
from tests.adapters.filesystems import ConditionalObjects, register_conditional

# --- creating exclusively --------------------------------------------------------------------------------------


@pytest.fixture(params=["az", "gcs"])
def storage(request: pytest.FixtureRequest) -> Iterator[FsspecCheckpointStorage]:
    register_conditional(request.param)
    yield open_storage(f"{request.param}://bucket/base")
    ConditionalObjects.reset()


def race(storage: FsspecCheckpointStorage) -> Callable[[Callable[[], None]], None]:
    """Another writer's object is there when the put arrives, though it was not when one could look."""

    def another_first(put: Callable[[], None]) -> None:
        ConditionalObjects.put_another(f"{storage.base_uri}/p/1", b"theirs")
        put()

    return another_first


def test_of_two_writers_one_creates_a_key(storage: FsspecCheckpointStorage, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x" * (9 * 1024 * 1024))
    assert storage.create("p/0", b"first") == digest_bytes(b"first")
    for source in (b"ours", tmp_path / "source"):
        ConditionalObjects.on_put = staticmethod(race(storage))
        assert storage.create("p/1", source) == AlreadyExists("p/1")
        assert storage.read("p/1") == b"theirs"
        storage.delete(["p/1"])
    assert sorted(found.key for found in storage.list("")) == ["p/0"]


def test_a_put_that_is_repeated_because_its_answer_was_lost_knows_its_object(
    storage: FsspecCheckpointStorage,
) -> None:
    def twice(put: Callable[[], None]) -> None:
        put()
        put()

    assert storage.create("p/0", b"first") == digest_bytes(b"first")
    ConditionalObjects.on_put = staticmethod(twice)
    assert storage.create("p/1", b"ours") == digest_bytes(b"ours")
    assert storage.create("p/1", b"ours") == AlreadyExists("p/1")


def test_a_store_that_passes_over_the_condition_is_looked_at_before_each_put(
    storage: FsspecCheckpointStorage,
) -> None:
    ConditionalObjects.honors = False
    assert storage.create("p/1", b"first") == digest_bytes(b"first")
    assert storage.create("p/1", b"second") == AlreadyExists("p/1")
    assert storage.read("p/1") == b"first"
    assert [found.key for found in storage.list("")] == ["p/1"]


def test_an_object_has_nothing_below_it(storage: FsspecCheckpointStorage) -> None:
    storage.create("p/chk-1/_metadata", b"x")
    assert list(storage.list("p/chk-1/_metadata")) == []
    assert [found.key for found in storage.list("p/chk-1")] == ["p/chk-1/_metadata"]


# --- failures ----------------------------------------------------------------------------------------------------


class HttpResponseError(Exception):
    """As azure.core's."""

    def __init__(self, status: int) -> None:
        super().__init__(
            "Server failed to authenticate the request.\nRequestId:1\nErrorCode:AuthenticationFailed"
        )
        self.status_code = status


class HttpError(Exception):
    """As gcsfs's."""

    def __init__(self, code: object) -> None:
        super().__init__("Invalid Credentials, 401")
        self.code = code


class DefaultCredentialsError(Exception):
    """As google.auth's."""


REFUSALS = [
    HttpResponseError(403),
    HttpError(401),
    HttpError("403"),
    OSError("Forbidden: https://…"),
    PermissionError(),
]


@pytest.mark.parametrize("error", REFUSALS, ids=repr)
def test_who_is_refused_is_told_to_check_credentials_and_nothing_was_stored(
    storage: FsspecCheckpointStorage, error: Exception
) -> None:
    def refuse(put: Callable[[], None]) -> None:
        raise error

    storage.create("p/0", b"first")
    ConditionalObjects.on_put = staticmethod(refuse)
    with pytest.raises(Unavailable, match="check the permissions or credentials") as caught:
        storage.create("p/1", b"x")
    assert "\n" not in str(caught.value)
    with pytest.raises(NotFound):
        storage.read("p/1")


def test_other_failures_are_no_refusals() -> None:
    for error in (HttpResponseError(503), HttpError(None), OSError(5, "i/o"), ValueError("Forbidden fruit")):
        assert not is_refusal(error)
        assert not lacks_credentials(error)
    assert status_of(HttpResponseError(503)) == 503
    assert lacks_credentials(DefaultCredentialsError("none"))


# --- URIs and options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri",
    [
        "abfs://c@a.dfs.core.windows.net/x?sv=2024-01-01&sp=rw&sig=hidden%3D",
        "az://c/x?sig=hidden",
        "gs://b/x?X-Goog-Signature=hidden",
    ],
)
def test_a_signed_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(InvalidRequest, match="contains options") as caught:
        open_storage(uri)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", ["abfs://c@a.dfs.core.windows.net/x", "gs://b/design=1", "s3://b/what?/signature"]
)
def test_a_uri_without_a_signature_is_taken(uri: str) -> None:
    assert open_storage(uri).base_uri == uri


def test_options_that_do_not_fit_the_uri_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise TypeError("dict() got multiple values for keyword argument 'account_name'")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(InvalidRequest, match=r"multiple values for keyword argument 'account_name'.*options"):
        open_storage("abfs://c@a.dfs.core.windows.net/x", account_name="b").read("key")


@pytest.mark.parametrize(
    ("uri", "package"), [("abfss://c/x", "adlfs"), ("gs://b/x", "gcsfs"), ("s3a://b/x", "s3fs")]
)
def test_a_client_that_is_not_installed_is_named(
    uri: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ImportError("Install the client")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(InvalidRequest, match=rf"pip install '{package}>="):
        open_storage(uri).read("key")


@pytest.mark.parametrize("kind", [InvalidRequest, NotFound, Unavailable, OutcomeUnknown, Corrupt, Declined])
def test_no_message_repeats_a_signature(kind: type[CheckpointError]) -> None:
    error = kind("PUT http://a/c/x?se=2026&sig=hidden%2Bhidden%3D&sp=rw failed, design=1 too")
    assert str(error) == "PUT http://a/c/x?se=2026&sig=…&sp=rw failed, design=1 too"
    assert str(kind("nothing to hide")) == "nothing to hide"


def test_an_error_of_pyarrow_that_tells_a_signature_is_told_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Any:
        raise PermissionError(13, "GET http://a/c/x?sv=1&sig=hidden: 403")

    monkeypatch.setattr(objects, "_PAUSES", (0.0,))
    monkeypatch.setattr(objects._Folders, "open_input_file", refuse)
    monkeypatch.setattr(objects._Folders, "open_output_stream", refuse)
    folder = objects.RemoteFolder(f"file://{tmp_path}")
    with pytest.raises(PermissionError) as reading:
        folder.read("x")
    with pytest.raises(PermissionError) as writing, folder.write("x"):
        pass
    with pytest.raises(Unavailable) as bringing:
        folder.download("x", tmp_path / "x", size=1)
    for caught in (reading, writing, bringing):
        told = "".join(traceback.format_exception(caught.value))
        assert "sig=…" in told
        assert "hidden" not in told
    assert reading.value.errno == 13
