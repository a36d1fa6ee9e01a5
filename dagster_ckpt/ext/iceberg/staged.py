"""Where an Iceberg table's staged files are: its location, on a disk or in an object store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.io import ADLS_BLOB_STORAGE_AUTHORITY
from pyiceberg.io.pyarrow import PyArrowFileIO

from dagster_ckpt.ext.iceberg.lake import Lake, folder_at
from dagster_ckpt.spark.exchange.options import AZURE, azure_folder
from dagster_ckpt.spark.sink.table_files import StagedFiles, areas_of
from dagster_ckpt.spark.sink.versioned.marks import SinkNames


def staged_files(lake: Lake, names: SinkNames, work_dir: Path) -> StagedFiles:
    """Return a table's staged files; the files of each sink of a table have a folder of their own."""
    location = lake.location
    area, *former = areas_of(names.pipeline, (names.uid, *names.previous))

    def open_store() -> tuple[Any, str]:
        table = lake.table()
        properties = table.io.properties if table is not None else lake.settings.open().properties
        parts = urlsplit(location)
        if parts.scheme in ("abfs", "abfss") and ADLS_BLOB_STORAGE_AUTHORITY not in properties:
            return azure_store(location, properties)
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        return PyArrowFileIO(properties).fs_by_scheme(scheme, netloc), path

    return StagedFiles(
        place=lake.place,
        table_dir=folder_at(location),
        work_dir=work_dir,
        open_store=open_store,
        area=area,
        former_areas=tuple(former),
    )


def azure_store(location: str, properties: Mapping[str, Any]) -> tuple[Any, str]:
    """Return pyarrow's client of a container, by the properties that PyIceberg itself hands to adlfs.

    PyIceberg's own pyarrow client takes neither a connection string nor the account that a location names.
    """
    given = {word: str(properties.get(f"adls.{word.replace('_', '-')}") or "") for word in AZURE}
    options = {word: value for word, value in given.items() if value}
    return azure_folder(location, options, what=f"the table at {location}").connected()
