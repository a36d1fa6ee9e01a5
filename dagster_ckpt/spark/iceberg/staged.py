"""Where an Iceberg table's staged files are: its location, on a disk or in an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO

from dagster_ckpt.spark.iceberg.lake import Lake, folder_at
from dagster_ckpt.spark.sink.table_files import STAGED, StagedFiles


def staged_files(lake: Lake, work_dir: Path) -> StagedFiles:
    """Return a table's staged files; the files of each sink of a table have a folder of their own."""
    location = lake.location

    def open_store() -> tuple[Any, str]:
        version = lake.load()
        properties = version.table.io.properties if version is not None else lake.settings.open().properties
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        return PyArrowFileIO(properties).fs_by_scheme(scheme, netloc), path

    return StagedFiles(
        place=lake.place,
        table_dir=folder_at(location),
        work_dir=work_dir,
        open_store=open_store,
        area=f"{STAGED}/{lake.pipeline}/{lake.uid}",
    )
