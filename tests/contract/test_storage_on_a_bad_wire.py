"""Checkpoint storage in an S3 that throttles, is slow and loses connections: nothing is lost or doubled."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from botocore.retries.standard import ExponentialBackoff

from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage, open_storage
from dagster_ckpt.adapters.remote_keys import ROUNDS, TRIES
from dagster_ckpt.core.paths import AlreadyExists, Digest
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import OutcomeUnknown, Unavailable
from tests.adapters.s3_proxy import Request, S3Proxy, Wire, always_fine, s3_proxy
from tests.adapters.servers import S3Server

FIRST_SEED = int(os.environ.get("DAGSTER_CKPT_SEED", "0"))
BAD = {Wire.SLOW_DOWN: 0.15, Wire.LOST: 0.07, Wire.UNHEARD: 0.07}


@pytest.fixture(autouse=True)
def _brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0.01)


@pytest.fixture(scope="module")
def reached(s3: S3Server) -> Iterator[tuple[S3Proxy, S3Server]]:
    with s3_proxy(s3) as both:
        yield both


@pytest.fixture
def wire(reached: tuple[S3Proxy, S3Server]) -> Iterator[S3Proxy]:
    proxy, _ = reached
    proxy.treat, proxy.latency = always_fine, 0.0
    yield proxy
    proxy.treat = always_fine


@pytest.fixture
def storage(s3: S3Server, reached: tuple[S3Proxy, S3Server], wire: S3Proxy) -> FsspecCheckpointStorage:
    return open_storage(f"s3://{s3.new_bucket()}/checkpoints", **reached[1].options)


def bad(seed: int) -> Callable[[Request], Wire]:
    chance = random.Random(seed)

    def treat(request: Request) -> Wire:
        drawn = chance.random()
        for wire, share in BAD.items():
            if drawn < share:
                return wire
            drawn -= share
        return Wire.FINE

    return treat


def stored(storage: FsspecCheckpointStorage, key: str, content: bytes | Path) -> Digest | AlreadyExists:
    """Store as callers do: what failed is tried again; only a try of unknown outcome may find its own object."""
    in_doubt = False
    while True:
        try:
            answer = storage.create(key, content)
        except Unavailable:
            continue
        except OutcomeUnknown:
            in_doubt = True
            continue
        if in_doubt and isinstance(answer, AlreadyExists):
            assert isinstance(content, bytes)
            return digest_bytes(content)
        return answer


def done(call: Callable[[], object]) -> object:
    while True:
        try:
            return call()
        except (Unavailable, OutcomeUnknown):
            continue


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 2))
def test_every_object_is_stored_whole_and_once(
    storage: FsspecCheckpointStorage, wire: S3Proxy, tmp_path: Path, seed: int
) -> None:
    wire.treat, wire.latency = bad(seed), 0.005
    contents = {f"p/chk-1/{n}": os.urandom(1 + n * 5_000) for n in range(24)}

    def bring(key: str) -> None:
        answer = stored(storage, key, contents[key])
        assert answer == digest_bytes(contents[key]), f"seed {seed}: nobody else writes {key}"
        target = tmp_path / key.rpartition("/")[2]
        done(lambda: storage.fetch(key, target, digest_bytes(contents[key])))
        assert target.read_bytes() == contents[key]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bring, contents))
    found = done(lambda: {found.key: found.size for found in storage.list("")})
    assert found == {key: len(content) for key, content in contents.items()}, f"seed {seed}"
    done(lambda: storage.delete(list(contents)))
    wire.treat = always_fine
    assert list(storage.list("")) == []
    assert {wire for _, wire in wire.seen} >= {*BAD, Wire.FINE}


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 3))
def test_of_writers_that_race_for_a_key_one_has_created_it(
    storage: FsspecCheckpointStorage, wire: S3Proxy, seed: int
) -> None:
    storage.create("p/before", b"so that the store is known")
    wire.treat = bad(seed)
    contents = [bytes([n]) * 1000 for n in range(6)]
    barrier = threading.Barrier(len(contents))

    def write(content: bytes) -> bool:
        barrier.wait()
        try:
            while True:
                try:
                    return isinstance(storage.create("p/chk-1/file", content), Digest)
                except Unavailable:
                    continue
        except OutcomeUnknown:
            return storage.read("p/chk-1/file") == content

    with ThreadPoolExecutor(len(contents)) as pool:
        won = list(pool.map(write, contents))
    wire.treat = always_fine
    assert [content for content, did in zip(contents, won, strict=True) if did] == [
        storage.read("p/chk-1/file")
    ], f"seed {seed}"


def test_a_store_that_always_throttles_is_asked_a_bounded_number_of_times(
    storage: FsspecCheckpointStorage, wire: S3Proxy
) -> None:
    storage.create("p/before", b"so that the store is known")
    before = wire.requests()
    wire.treat = lambda request: Wire.SLOW_DOWN
    with pytest.raises((Unavailable, OutcomeUnknown), match=r"p/chk-1/file.* was "):
        storage.create("p/chk-1/file", b"content")
    asked = wire.requests() - before
    assert asked["PUT"] == TRIES * ROUNDS
    assert asked.total() <= 4 * TRIES * ROUNDS  # what became of it is looked up
    wire.treat = always_fine
    assert [found.key for found in storage.list("")] == ["p/before"]


def test_an_object_costs_a_request_to_store_and_one_to_fetch(
    storage: FsspecCheckpointStorage, wire: S3Proxy, tmp_path: Path
) -> None:
    storage.create("p/before", b"so that the store is known")
    (tmp_path / "source").write_bytes(b"content")
    before = wire.requests()
    digest = storage.create("p/chk-1/file", tmp_path / "source")
    assert isinstance(digest, Digest)
    assert wire.requests() - before == {"PUT": 1}
    before = wire.requests()
    storage.fetch("p/chk-1/file", tmp_path / "target", digest)
    assert wire.requests() - before == {"GET": 1}


@pytest.mark.parametrize("poor", [Wire.UNCONDITIONAL, Wire.NOT_IMPLEMENTED])
def test_a_store_without_conditional_writes_is_found_out_and_asked_before_each_write(
    storage: FsspecCheckpointStorage, wire: S3Proxy, tmp_path: Path, poor: Wire
) -> None:
    wire.treat = lambda request: poor if request.is_conditional else Wire.FINE
    assert storage.create("p/chk-1/file", b"first") == digest_bytes(b"first")
    assert storage.create("p/chk-1/file", b"second") == AlreadyExists("p/chk-1/file")
    assert storage.read("p/chk-1/file") == b"first"
    (tmp_path / "source").write_bytes(b"third")
    assert storage.create("p/chk-1/other", tmp_path / "source") == digest_bytes(b"third")
    assert sorted(found.key for found in storage.list("")) == ["p/chk-1/file", "p/chk-1/other"]
