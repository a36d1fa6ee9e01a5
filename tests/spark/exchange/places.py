"""A working directory whose rows lie elsewhere: in a folder, in S3, in an S3 that is slow and throttles."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.spark.channel.entries import AppendResult
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.directories import AttemptDirectory
from dagster_ckpt.spark.exchange.mounts import Exchange, begin, mount, prove_reached, work_in
from dagster_ckpt.spark.exchange.objects import RemoteFolder
from dagster_ckpt.spark.exchange.options import remote_folder
from dagster_ckpt.spark.exchange.task_files import write_part
from dagster_ckpt.spark.files import DataFile, batch_folder_name
from tests.adapters.s3_proxy import Request, Wire, s3_proxy
from tests.adapters.servers import S3Server

KINDS = ("folder", "s3", "slow s3")
KV = pa.schema([("k", pa.int64()), ("v", pa.int64())])
LINEAGE = "history-1"


def throttling(seed: int) -> Callable[[Request], Wire]:
    chance = random.Random(seed)
    return lambda request: Wire.SLOW_DOWN if chance.random() < 0.15 else Wire.FINE


@dataclass
class Place:
    """A working directory, and what its rows go through."""

    work_dir: Path
    exchange: Exchange

    def attempt(self, number: int = 1, lineage: str = LINEAGE) -> AttemptDirectory:
        directory = AttemptDirectory(self.work_dir / "shop" / f"attempt-{number}")
        begin(directory.root, lineage)
        work_in(directory.root)
        return directory

    def log(self, attempt: AttemptDirectory, uid: str = "orders") -> ChannelLog:
        return ChannelLog.create(attempt.root / uid / "log")

    def stored(self) -> set[str]:
        """Every key there is, once what is to be deleted is."""
        self.exchange.deletions.wait()
        return {found.key for found in self.exchange.storage.list("")}

    def append(self, log: ChannelLog, batch: int, *values: int) -> AppendResult:
        return log.append_data(BatchId(batch), [self.written(log, batch, *values)])

    def written(self, log: ChannelLog, batch: int, *values: int) -> DataFile:
        folder = log.data_folder / batch_folder_name(batch)
        [file] = parts(self.exchange.below(folder), list(values))
        return DataFile(f"data/{folder.name}/{file.name}", file.rows, file.bytes)


def parts(remote: RemoteFolder, *batches: list[int]) -> list[DataFile]:
    """Write what one task is given; return what it names."""
    rows = (pa.RecordBatch.from_arrays([pa.array(v, pa.int64())] * 2, schema=KV) for v in batches)
    said = (batch.to_pylist() for batch in write_part(rows, remote, KV))
    return [DataFile(one["name"], one["rows"], one["bytes"]) for batch in said for one in batch]


def values(remote: RemoteFolder, names: list[str]) -> list[int]:
    return [v for file in remote.parquet_files(names) for v in file.read()["v"].to_pylist()]


@contextmanager
def place_of(kind: str, folder: Path, s3: S3Server, *, endpoint: str = "") -> Iterator[Place]:
    work_dir = folder / "scratch"
    if kind == "folder":
        uri = f"file://{folder / 'store'}"
        yield Place(work_dir, mount(work_dir, RemoteFolder(uri), open_storage(uri)))
        return
    with s3_proxy(s3) if kind == "slow s3" else nullcontext((None, s3)) as (proxy, reached):
        if proxy is not None:
            proxy.latency, proxy.treat = 0.03, throttling(1)
        uri = f"s3://{s3.new_bucket()}/work"
        options = {"endpoint_url": endpoint or reached.endpoint, "key": "test", "secret": "test"}
        yield Place(work_dir, mount(work_dir, remote_folder(uri, options), open_storage(uri, **options)))


def rows_come_and_go(uri: str, options: Mapping[str, str], scratch: Path) -> None:
    """Write rows as tasks do, and read, list and delete them as the driver does."""
    storage = open_storage(uri, **options)
    remote = remote_folder(uri, options)
    prove_reached(mount(scratch, remote, storage), "work_dir")
    names = [parts(remote.below("log"), [number])[0].name for number in range(5)]
    assert values(remote.below("log"), names) == list(range(5))
    assert {found.key for found in storage.list("log")} == {f"log/{name}" for name in names}
    with pytest.raises(FileNotFoundError):
        remote.read("log/never")
    storage.delete([f"log/{names[0]}"])
    assert len(list(storage.list(""))) == 4
