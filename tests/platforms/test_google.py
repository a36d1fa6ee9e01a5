"""Google's storage, played by an emulator: rows of a working directory there.

What storages promise is in ``tests/contract``, which runs on the emulator too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.spark.exchange.mounts import mount
from dagster_ckpt.spark.exchange.options import remote_folder
from dagster_ckpt.spark.exchange.probe import prove_reached
from tests.adapters.clouds import GoogleServer
from tests.spark.exchange.places import rows_come_and_go

pytestmark = pytest.mark.platform


def test_rows_written_by_a_task_are_listed_and_deleted_by_the_driver(
    google: GoogleServer, tmp_path: Path
) -> None:
    uri = f"gs://{google.new_bucket()}/work"
    rows_come_and_go(uri, google.options, tmp_path / "scratch")


def test_a_bucket_that_is_not_there_is_told(google: GoogleServer, tmp_path: Path) -> None:
    storage = open_storage("gs://nobody/x", **google.options)
    with pytest.raises(Unavailable, match=r"bucket or (the base )?folder exist"):
        storage.create("p/file", b"content")
    with pytest.raises(InvalidRequest, match=r"work_dir \(gs://nobody/x\) cannot be used"):
        prove_reached(mount(tmp_path, remote_folder("gs://nobody/x", google.options), storage), "work_dir")
