"""Records that a two-phase table persists beside its rows, and their paths.

::

    <table>/part-<epoch>-<batch>-<n>-<id>.parquet    append: a published file; its name never changes
    <table>/part-bucket-<i>.parquet                  upsert: the newest version of one bucket, replaced whole
    <table>/_dagster_ckpt/table.json                 whose table it is and how rows are added to it
    <table>/_dagster_ckpt/state.json                 head of the publish log, owner's epoch
    <table>/_dagster_ckpt/log/<checkpoint>.json      one publish: files, parent; written before anything moves
    <table>/_dagster_ckpt/staged/<epoch>/…           prepared rows nobody sees yet
    <table>/_dagster_ckpt/versions/<checkpoint>/…    upsert: the buckets a publish wrote
    <table>/_dagster_ckpt/set_aside/<epoch>/…        append: files a roll-back took out
    <stage>/sink/prepared/<batch>.json               what one micro-batch has prepared

Readers skip names that begin with an underscore, so a published table is a plain Parquet dataset.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from dagster_ckpt.authoring.targets import META_FOLDER
from dagster_ckpt.core.model import Record
from dagster_ckpt.spark.sink.committables import TableFile

SEED = 0
"""The record of a forked table's first rows has this id: no checkpoint has it."""
BUCKET_COLUMN = "__dagster_ckpt_bucket"


class Append(Record):
    """Every row of every batch is in the table once."""

    kind: Literal["append"] = "append"


class Upsert(Record):
    """One row per key, the latest: for running results. Rows of one batch must not repeat a key."""

    kind: Literal["upsert"] = "upsert"
    keys: tuple[str, ...] = Field(min_length=1)
    """Columns that identify a row."""
    buckets: int = Field(default=8, ge=1, le=4096)
    """Files the rows are spread over by key; a publish rewrites those it touches. Fixed at creation."""


TableMode = Annotated[Append | Upsert, Field(discriminator="kind")]


class TableDescription(Record):
    """``table.json``: written when the table is made, never changed."""

    format_version: Literal[1] = 1
    pipeline: str
    mode: TableMode


class BucketVersion(NamedTuple):
    """One bucket as a publish left it."""

    checkpoint_id: int
    lineage: str
    """History of the publish that wrote it; empty: not known, the file may be anybody's."""


class PublishRecord(Record):
    """One publish, written durably before its first file moves: after a crash it is finished from this
    record.
    """

    format_version: Literal[1] = 1
    checkpoint_id: int = Field(ge=0)
    parent: int | None
    """The publish before it in this lineage; None: the first one, or the older ones are merged into this one.
    """
    through_batch: int | None
    """Last batch that this publish and its ancestors contain."""
    epoch: int
    lineage: str = ""
    """History of the checkpoint; empty: written before histories had an identity."""
    files: tuple[TableFile, ...]
    buckets: dict[int, int] = Field(default_factory=dict)
    """Upsert: for every bucket of the table the checkpoint id whose version is current."""
    bucket_lineages: dict[int, str] = Field(default_factory=dict)
    """Upsert: history of the version, for buckets that an attempt of another history wrote."""
    replaces: bool = False
    """Upsert: these rows are all there are (output mode *complete*); nothing of the parent is in it."""
    row_schema: str = ""
    """Spark schema of the rows, so that a change of it can be told; empty: written by an earlier version."""
    origin: str = ""
    """Where a fork's first rows come from, for people."""

    @property
    def versions(self) -> dict[int, BucketVersion]:
        """Upsert: the current version of every bucket."""
        return {
            bucket: BucketVersion(number, self.bucket_lineages.get(bucket, self.lineage))
            for bucket, number in self.buckets.items()
        }


class TableState(Record):
    """``state.json``: replaced whole; its head is what makes a publish done."""

    format_version: Literal[1] = 1
    epoch: int = 0
    """Newest attempt that works on the table: an older one is fenced."""
    lineage: str = ""
    """History of that attempt."""
    written_through: bool = False
    """It was written at-least-once: rows are visible that no checkpoint tells apart."""
    head: int | None = None
    head_lineage: str = ""
    """History of the head's publish; empty: written before this was kept."""
    published_through: int | None = None
    """Prepared batches up to here are published already."""
    publishing: int | None = None
    """Checkpoint id of a publish that has begun to move files and has not set the head."""
    rolling_back_to: int | None = None
    """Checkpoint id of a roll-back that has begun and not ended."""


@dataclass(frozen=True, slots=True)
class TablePaths:
    """Every path of one table; nothing else spells them."""

    root: Path

    @property
    def meta(self) -> Path:
        """The folder that readers do not see."""
        return self.root / META_FOLDER

    @property
    def description(self) -> Path:
        """``table.json``."""
        return self.meta / "table.json"

    @property
    def state(self) -> Path:
        """``state.json``."""
        return self.meta / "state.json"

    @property
    def lock(self) -> Path:
        """The file that publishing processes lock."""
        return self.meta / "lock"

    @property
    def log(self) -> Path:
        """Folder of publish records."""
        return self.meta / "log"

    def record(self, checkpoint_id: int) -> Path:
        """One publish record."""
        return self.log / f"{checkpoint_id:020d}.json"

    def staged(self, epoch: int) -> Path:
        """Folder of one attempt's staged files."""
        return self.meta / "staged" / str(epoch)

    @property
    def all_staged(self) -> Path:
        """Folder of all staged files."""
        return self.meta / "staged"

    def set_aside(self, epoch: int) -> Path:
        """Folder of the rows that the roll-back at the start of one attempt took out."""
        return self.meta / "set_aside" / str(epoch)

    @property
    def all_set_aside(self) -> Path:
        """Folder of the rows that all roll-backs took out."""
        return self.meta / "set_aside"

    def published(self, name: str) -> Path:
        """A published file."""
        return self.root / name

    def bucket(self, bucket: int) -> Path:
        """The published file of one bucket."""
        return self.root / f"part-bucket-{bucket:05d}.parquet"

    def version(self, checkpoint_id: int, bucket: int) -> Path:
        """One bucket as a publish left it."""
        return self.meta / "versions" / f"{checkpoint_id:020d}" / f"part-bucket-{bucket:05d}.parquet"
