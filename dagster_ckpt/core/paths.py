"""Places in a storage: its keys, spelled here alone, and the folder of a snapshot, as a URI and back.

::

    <base>/<pipeline>/chk-<N>/{_metadata, <uid>/manifest.parquet, <uid>/<file>…}   of checkpoint N alone
    <base>/<pipeline>/shared/<uid>/<N>/<file>…      first uploaded by N, reusable by later ones
    <target>/savepoint-<pipeline>-<6 random>/…      one savepoint: self-contained, relocatable

A key is relative to the base of its storage and uses '/'. ``<file>`` is the path relative to the stage's
working directory (``query/offsets/7``).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid, leaves_room, relative_path
from dagster_ckpt.core.model import CheckpointKind, CheckpointMetadata, Record, RelativePath
from dagster_ckpt.errors import InvalidRequest, NotFound

METADATA_FILE = "_metadata"
MANIFEST_FILE = "manifest.parquet"


def checked_relative(path: str) -> str:
    """Return ``path`` when it stays below its root; raises InvalidRequest for absolute paths and '..'."""
    try:
        return relative_path(path)
    except ValueError as error:
        raise InvalidRequest(f"{path!r} is not a relative path below its root") from error


def is_below(folder: str, key: str) -> bool:
    """Tell whether ``key`` names an object in ``folder``; a key that leaves it by '..' does not."""
    if not key.startswith(f"{folder}/"):
        return False
    try:
        relative_path(key.removeprefix(f"{folder}/"))
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class CheckpointPaths:
    """Storage keys of one pipeline."""

    pipeline: PipelineId

    def checkpoint(self, number: CheckpointId) -> str:
        """Folder of the exclusive files of a checkpoint."""
        return f"{self.pipeline}/chk-{number}"

    def shared(self) -> str:
        """Folder of all files that several checkpoints may use."""
        return f"{self.pipeline}/shared"

    def shared_of(self, uid: StageUid, number: CheckpointId) -> str:
        """Folder of the shared files of a stage that checkpoint ``number`` uploaded first."""
        return f"{self.shared()}/{uid}/{number}"

    def shared_file(self, uid: StageUid, number: CheckpointId, relative: str) -> str:
        """Key of one such file; ``relative`` is relative to the stage's working directory."""
        return f"{self.shared_of(uid, number)}/{checked_relative(relative)}"

    def number_of(self, key: str) -> CheckpointId | None:
        """Checkpoint that wrote ``key``, read off the key; None for a key that is not one of these."""
        found = re.match(rf"{re.escape(self.pipeline)}/(?:chk-|shared/[^/]+/)([1-9][0-9]*)/.", key)
        return _written_by(found[1]) if found else None

    def shared_creator(self, key: str) -> CheckpointId | None:
        """Checkpoint that uploaded the shared file ``key``; None for a key that is no shared file."""
        parts = key.split("/", 4)
        is_shared = len(parts) == 5 and parts[0] == self.pipeline and parts[1] == "shared"
        return _written_by(parts[3]) if is_shared and parts[3].isdecimal() else None

    def savepoint(self, suffix: str) -> str:
        """Folder of a savepoint below its target; ``suffix`` is six random characters."""
        return f"savepoint-{self.pipeline}-{suffix}"


def _written_by(digits: str) -> CheckpointId | None:
    """Return the number in a key; None for one that no checkpoint of ours has."""
    number = int(digits) if len(digits) <= 20 else 0
    return CheckpointId(number) if number and leaves_room(number) else None


def metadata(location: str) -> str:
    """Key of ``_metadata`` in a checkpoint's or savepoint's folder; its existence makes the folder
    complete."""
    return f"{location}/{METADATA_FILE}"


def manifest(location: str, uid: StageUid) -> str:
    """Key of a stage's file list in a checkpoint's or savepoint's folder."""
    return f"{location}/{uid}/{MANIFEST_FILE}"


def exclusive_file(location: str, uid: StageUid, relative: str) -> str:
    """Key of a file that belongs to one checkpoint or savepoint alone."""
    return f"{location}/{uid}/{checked_relative(relative)}"


def checkpoint_key(number: CheckpointId) -> str:
    """Partition key of a checkpoint in Dagster: zero-padded, so that lists sort."""
    return f"chk-{number:06d}"


def savepoint_key(number: CheckpointId) -> str:
    """Partition key of a savepoint in Dagster: zero-padded, so that lists sort."""
    return f"savepoint-{number:06d}"


def snapshot_key(kind: CheckpointKind, number: int) -> str:
    """Partition key of a checkpoint or savepoint: what ``restore_from`` takes."""
    make = savepoint_key if kind.is_savepoint else checkpoint_key
    return make(CheckpointId(number))


@dataclass(frozen=True, slots=True)
class Digest:
    """Size in bytes and checksum (``xxh3_128:<32 hex digits>``) of stored content."""

    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class AlreadyExists:
    """The key is taken; nothing was written."""

    key: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object found by ``list``."""

    key: str
    size: int


class SnapshotLocation(Record):
    """Location of a snapshot: a storage base and its folder there."""

    base_uri: str
    """Keys of a checkpoint's files are relative to it."""
    folder: RelativePath
    """``<pipeline>/chk-31``, or a savepoint's folder, to which the keys of its files are relative."""

    @property
    def uri(self) -> str:
        """The folder as one URI: what a person passes around."""
        base = "" if self.base_uri == "/" else self.base_uri
        return f"{base}/{self.folder}"


def folder_of(uri: str) -> SnapshotLocation:
    """Split the URI of a folder so that its ``_metadata`` can be read before anything is known of it.

    Raises InvalidRequest for one that ends in no name, such as ``s3://bucket/..``, NotFound for one in the root.
    """
    base, _, name = uri.rpartition("/")
    if base == "file://":
        raise NotFound(
            f"{uri} is no checkpoint or savepoint: it has no {METADATA_FILE} file (none lies in the root of the "
            "file system: check the path)"
        )
    try:
        return SnapshotLocation(base_uri=base or "/", folder=name)
    except ValueError as error:
        raise InvalidRequest(f"{uri!r} is not the URI of a snapshot's folder: it ends in no name") from error


def location_of(uri: str, metadata: CheckpointMetadata) -> SnapshotLocation:
    """Return where the files of the snapshot at ``uri`` are, now that its metadata says what it is.

    A savepoint may be anywhere. A checkpoint's shared files are beside its folder, so raises
    InvalidRequest when the folder does not have the name a checkpoint has in its storage.
    """
    if metadata.kind.is_savepoint:
        return folder_of(uri)
    folder = CheckpointPaths(PipelineId(metadata.pipeline)).checkpoint(CheckpointId(metadata.checkpoint_id))
    if not uri.endswith(f"/{folder}"):
        raise InvalidRequest(
            f"{uri} holds checkpoint {metadata.checkpoint_id} of pipeline {metadata.pipeline!r}, but not "
            f"at <storage>/{folder}: a checkpoint cannot be moved away from its shared files. "
            "Give its place in the storage it was written to, or use a savepoint, which can be moved"
        )
    return SnapshotLocation(base_uri=uri.removesuffix(f"/{folder}"), folder=folder)


_OF_LOCAL = re.compile(r"(file|local):(//(localhost(?=/))?)?", re.IGNORECASE)


def local_path(uri: str) -> str | None:
    """Return the path where a URI names a local file (``/x``, ``file:/x``, ``file://localhost/x``), else None."""
    path = _without_scheme(uri)
    return None if "://" in path else path


def _without_scheme(text: str) -> str:
    found = _OF_LOCAL.match(text)
    return text if found is None else text[found.end() :]


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def scheme_of(text: str) -> str:
    """Return the scheme of a URI in lower case, also where a slash was forgotten (``s3:/b``); empty: a path."""
    found = _SCHEME.match(text)
    return found[1].lower() if found else ""


def local_folder(text: str, *, setting: str) -> str:
    """Return the path of a setting that must be a folder of a file system; ``file:///x`` is one.

    Raises InvalidRequest for any other URI: as a path it would be a folder ``s3:`` of the working directory.
    """
    path = _without_scheme(text)
    scheme = text.partition(":")[0] if path != text else scheme_of(text)
    if scheme not in ("", "file", "local") or (path != text and not path.startswith("/")):
        raise InvalidRequest(
            f"{setting} is a URI ({scheme}:) but has to be a local folder, or one that all machines mount: queries, "
            "channel logs and tables need its renames and links. Give a path or file:///path, also on a disk that is "
            "lost with its machine: what must last goes elsewhere (checkpoint_dir, savepoint_dir, Delta and Iceberg "
            "tables at s3://…). work_dir alone may also be a folder of a bucket (s3://, s3a://, gs://, abfs://, abfss://)"
        )
    return path


def same_place(one: str, other: str) -> bool:
    """Return True where two URIs name the same folder, however a local one is spelt (``file:/x``, ``/a/../x/``).

    Relative paths must have been made absolute before: where they lead is not known here.
    """
    return one_spelling(one) == one_spelling(other)


SAME_STORES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "wasbs": "wasb", "abfss": "abfs"}
"""Names of one store's scheme."""
_SERVERS = ("http", "https", "kafka", "postgresql")
"""Schemes of servers, whose names are the same in any case."""


def one_spelling(uri: str) -> str:
    """Return the spelling of a place that all its spellings share; where links lead is not asked."""
    path = local_path(uri)
    if path is not None:
        return re.sub("^//+", "/", posixpath.normpath(path))
    # Keys of an object store are not paths: '..' in them is a name like others.
    scheme, _, rest = uri.rstrip("/").partition("://")
    scheme = SAME_STORES.get(scheme.lower(), scheme.lower())
    host, slash, key = rest.partition("/")
    return f"{scheme}://{host.lower() if scheme in _SERVERS and '#' not in host else host}{slash}{key}"


def sqlite_url(path: str) -> str:
    """Return the URL of a SQLite file, as SQLAlchemy reads it: it takes ``?`` for options, and decodes ``%20``."""
    return "sqlite:///" + path.replace("%", "%25").replace("?", "%3F")


def sqlite_path(url: str) -> str | None:
    """Return the path that ``sqlite_url`` made a URL of, or None for the URL of another database."""
    return unquote(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


SCHEME = "store://"
CHECKPOINTS_IN_STORE = "store://checkpoints"
"""Base URI of the checkpoints in the store. It names no database: it is the store of whoever opens it."""

LARGEST_OBJECT = 64 * 1024**2
"""Bytes a row may hold at all: it passes through memory whole, several times."""

NO_SAVEPOINTS_IN_STORE = (
    "the coordinator store holds checkpoints only; a savepoint is yours to keep and needs a folder or bucket "
    "outside of it"
)


class StorageKind(StrEnum):
    """Kind of checkpoint storage (Flink: execution.checkpointing.storage)."""

    FILESYSTEM = "filesystem"
    """To checkpoint storage: a folder or a bucket (``checkpoint_dir``)."""
    STORE = "store"
    """Into the coordinator store, as rows: for small state (Flink: jobmanager)."""

    @classmethod
    def _missing_(cls, value: object) -> StorageKind | None:
        return cls.STORE if value == "jobmanager" else None


def is_in_store(uri: str) -> bool:
    """Tell whether a storage's or a snapshot's URI is in the coordinator store."""
    return uri.startswith(SCHEME)


def size_text(count: int) -> str:
    """Return a size as people say it: ``5 mb``, ``6.1 mb``, ``900 b``."""
    for unit, size in (("gb", 1024**3), ("mb", 1024**2), ("kb", 1024)):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} b"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Limits of what is kept in the store, in bytes."""

    per_object: int
    per_checkpoint: int

    def refusal(self, sizes: Sequence[int], *, others: int = 0) -> str:
        """Return why these files do not fit, beside ``others`` bytes of the same checkpoint; empty: they do."""
        largest = max(sizes, default=0)
        if largest > self.per_object:
            return _too_large(
                f"a file of {size_text(largest)}", largest, f"files of up to {size_text(self.per_object)}"
            )
        whole = sum(sizes) + others
        if whole > self.per_checkpoint:
            what = f"a checkpoint of {size_text(whole)}"
            return _too_large(what, whole, f"checkpoints of up to {size_text(self.per_checkpoint)}")
        return ""


STORE_LIMITS = StoreLimits(per_object=5 * 1024**2, per_checkpoint=50 * 1024**2)
"""The largest file (Flink: maxStateSize), and all files of a checkpoint, also those that an earlier one has written."""


def _too_large(what: str, found: int, holds: str) -> str:
    return (
        f"{what} ({found} bytes) does not fit into the coordinator store, which holds {holds}: "
        "set checkpoint_storage to filesystem and checkpoint_dir to a folder or bucket; the previous checkpoint stays"
    )


def refuse_split_password(host: str | None, what: str) -> None:
    """Raise InvalidRequest for a password with '@' in it, of which a part would stand in the host, and be shown."""
    if "@" in (host or ""):
        raise InvalidRequest(
            f"the password in {what} has a character that ends it: write it percent-encoded, '@' as %40 and '/' as %2F"
        )
