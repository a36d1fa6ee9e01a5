"""Where a table's staged files are: its folder, or its object store as pyarrow sees it; commits are delta-rs's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest, Unavailable
from dagster_ckpt.ext.delta.lake import Lake
from dagster_ckpt.ext.tables.marks import SinkNames
from dagster_ckpt.ext.tables.staged_files import StagedFiles, areas_of
from dagster_ckpt.spark.exchange.objects import s3_client
from dagster_ckpt.spark.exchange.options import azure_folder, remote_folder


def staged_files(lake: Lake, names: SinkNames, work_dir: Path) -> StagedFiles:
    """Return a table's staged files; the files of each sink of a table have a folder of their own."""
    area, *former = areas_of(names.pipeline, (names.uid, *names.previous))
    return StagedFiles(
        place=lake.uri,
        table_dir=lake.root,
        work_dir=work_dir,
        open_store=lambda: open_store(lake.uri, lake.storage_options),
        area=area,
        former_areas=tuple(former),
    )


def open_store(uri: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return the file system that holds a table, and the table's folder in it.

    It is reached by pyarrow itself, with delta-rs's options and variables: delta-rs's own handler holds Python's lock
    while it uploads, and a streaming run has other threads.
    """
    import pyarrow as pa
    import pyarrow.fs as pafs

    parts = urlsplit(uri)
    if parts.scheme in ("s3", "s3a"):
        return s3_client(**_s3_settings(options)), parts.netloc + parts.path
    if parts.scheme in _AZURE:
        return _azure_store(uri, options)
    if parts.scheme == "gs":
        return _google_store(uri, options)
    try:
        found: tuple[Any, str] = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, ValueError) as error:
        raise InvalidRequest(
            f"rows cannot be staged in {uri}: {error}. Use a path, s3://, gs:// or abfs://"
        ) from error
    except OSError as error:
        raise Unavailable(f"{uri} could not be reached: {error}") from error
    return found


def _azure_store(uri: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return pyarrow's client of a container, with the words of delta-rs (some have a dozen spellings)."""
    parts = urlsplit(uri)
    given = {name.lower(): value for name, value in options.items()}

    def setting(*names: str) -> str:
        spelt = [f"{prefix}{name}" for name in names for prefix in ("azure_storage_", "azure_", "")]
        found = (
            given.get(name) or (os.environ.get(name.upper()) if name.startswith("azure_") else "")
            for name in spelt
        )
        return next((value for value in found if value), "")

    said = {name: setting(*names) for name, names in _AZURE_WORDS.items()}
    if said["endpoint"]:
        told = {"BlobEndpoint": "endpoint", "AccountName": "account_name", "AccountKey": "account_key"}
        told |= {"SharedAccessSignature": "sas_token"}
        said["connection_string"] = ";".join(
            f"{name}={said[word]}" for name, word in told.items() if said[word]
        )
    chosen = {name: value for name, value in said.items() if value and name != "endpoint"}
    folder = azure_folder(f"abfss://{parts.netloc}{parts.path}", chosen, what=f"table {uri}")
    return folder.connected()


def _google_store(uri: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return pyarrow's client of a bucket, with the words of delta-rs. Raises InvalidRequest for a key among them."""
    given = {name.lower().removeprefix("google_"): value for name, value in options.items()}
    files = [given[name] for name in _GOOGLE_FILES if given.get(name)]
    emulator = _emulator_in(given.get("service_account_key", ""))
    if emulator:
        return remote_folder(uri, {"endpoint_url": emulator, "token": "anon"}).connected()
    if given.get("service_account_key") or any(file != os.environ.get(_GOOGLE_FILE) for file in files):
        raise InvalidRequest(
            f"storage_options of table {uri} names a key of a service account, and pyarrow, by which rows are staged "
            f"there, takes none: name its file in the variable {_GOOGLE_FILE}, which delta-rs reads too, and leave it "
            "out of storage_options"
        )
    told = {
        "endpoint_url": given.get("base_url") or os.environ.get("GOOGLE_BASE_URL", ""),
        "token": "anon"
        if given.get("skip_signature", "").lower() in ("true", "1", "yes", "on", "t", "y")
        else "",
    }
    return remote_folder(uri, {name: value for name, value in told.items() if value}).connected()


def _emulator_in(key: str) -> str:
    """Return the address in a key that stands for none, as delta-rs is told of an emulator; empty: it is a real one."""
    with suppress(ValueError):
        told = parse_json(key)
        if isinstance(told, dict) and told.get("disable_oauth") is True:
            return str(told.get("gcs_base_url", ""))
    return ""


_GOOGLE_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_GOOGLE_FILES = ("service_account", "service_account_path", "application_credentials")
"""Words of delta-rs for such a file."""
_AZURE = ("abfs", "abfss", "az", "azure", "adl")
_AZURE_WORDS = {
    "account_name": ("account_name",),
    "account_key": ("account_key", "access_key", "master_key"),
    "sas_token": ("sas_token", "sas_key"),
    "client_id": ("client_id",),
    "client_secret": ("client_secret",),
    "tenant_id": ("tenant_id", "authority_id"),
    "endpoint": ("endpoint",),
}
"""Options of adlfs, and the words that delta-rs has for them."""


def _s3_settings(options: Mapping[str, str]) -> dict[str, Any]:
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}

    def setting(*names: str) -> str | None:
        for name in names:
            value = given.get(name) or os.environ.get(f"AWS_{name.upper()}")
            if value:
                return value
        return None

    endpoint = setting("endpoint_url_s3", "endpoint_url", "endpoint")
    found: dict[str, Any] = {"region": setting("region", "default_region")}
    if endpoint:
        parts = urlsplit(endpoint)
        found |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    if setting("access_key_id"):
        found |= {"access_key": setting("access_key_id"), "secret_key": setting("secret_access_key")}
        found |= {"session_token": setting("session_token", "token")}
    return {name: value for name, value in found.items() if value}
