"""``IcebergSink``: an Iceberg table behind the port of sinks.

Tables that change together: a SQL catalog is changed in one transaction of its database, a REST catalog by one
request. Only one that names ``transactions/commit`` among its endpoints is asked for it, and only one that has shown,
with a change that must not happen, that it carries out all of a request or nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from uuid import uuid4

from pyiceberg.catalog.rest import Endpoint, RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    RESTError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
)

from dagster_ckpt.core.ids import BatchId
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import CheckpointError, NotFound, Unavailable
from dagster_ckpt.ext.iceberg.backend import IcebergBackend
from dagster_ckpt.ext.iceberg.catalogs import CatalogSettings, identifier_of, settings_of
from dagster_ckpt.ext.iceberg.columns import (
    PART,
    accepted,
    columns_of_partitions,
    schema_columns,
)
from dagster_ckpt.ext.iceberg.lake import OF_TABLES_KEPT_SMALL, Lake, Outside, committing, reading
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.ext.iceberg.together import Step, TableCommit, commit_all, keeping, publishing, step_at_hand
from dagster_ckpt.ext.iceberg.upkeep import Garbage, ReadManifests, maintained, merge_small, planned
from dagster_ckpt.ext.iceberg.version import MAIN, IcebergVersion
from dagster_ckpt.ext.tables.columns import spelt
from dagster_ckpt.ext.tables.engine import Engine, Raced
from dagster_ckpt.ext.tables.marks import SinkNames
from dagster_ckpt.ext.tables.sink import VersionedSink
from dagster_ckpt.spark.quoting import quoted
from dagster_ckpt.spark.sink.accepts import Accepts
from dagster_ckpt.spark.sink.committables import PreparedBatch
from dagster_ckpt.spark.sink.port import (
    AlreadyPublished,
    AttemptId,
    Joint,
    Published,
    SinkContext,
    SinkDescription,
    Upkeep,
)
from dagster_ckpt.spark.sink.staged_rows import stage_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

T = TypeVar("T")
_ENDPOINT = Endpoint.from_string("POST /v1/{prefix}/transactions/commit")
_TRIES = 20
"""Commits of others that may come in between before the next checkpoint tries again."""
_PROBE = "dagster_ckpt.probe"
"""Property of a table that no request leaves behind in a catalog that keeps its word."""
_NO_SNAPSHOT = 1
"""Id that no snapshot has: they are random."""
_PASSING = (
    AuthorizationExpiredError,
    CommitStateUnknownException,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
)
"""Answers that say nothing of what a catalog can do."""
_SHOWN: dict[CatalogSettings, str] = {}
"""Why the catalog cannot be trusted with several tables, once it was tried; empty: it can."""


@dataclass(frozen=True)
class CatalogJoint:
    """The tables of one catalog."""

    settings: CatalogSettings

    @classmethod
    def of(cls, settings: CatalogSettings) -> CatalogJoint | None:
        """Return the joint of a catalog that changes several tables at once, or says that it does; None for others."""
        if settings.is_missing:  # a SQL catalog that is made with the first table
            return cls(settings)
        try:
            catalog = settings.open()
        except (CheckpointError, RESTError, OSError):  # what is wrong is said by what needs the catalog
            return None
        says_so = isinstance(catalog, RestCatalog) and _ENDPOINT in catalog._supported_endpoints
        return cls(settings) if says_so or isinstance(catalog, SqlCatalog) else None

    @property
    def why_apart(self) -> str:
        """Why the catalog is not asked for it, though it names the endpoint."""
        return _SHOWN.get(self.settings, "")

    def step(self, work: Callable[[], T]) -> T:
        """Publish to several tables, and commit all of it at once; again where others came in between."""
        for _ in range(_TRIES):
            step = Step()
            with publishing(None if self.why_apart else step):
                done = work()
            try:
                self._commit(step.commits)
            except Raced:
                continue
            for act in step.afterwards:
                act()
            return done
        raise Unavailable(
            f"the tables of {self.settings.place} were changed by others {_TRIES} times in a row before we could: it "
            "is tried again"
        )

    def _commit(self, commits: list[TableCommit]) -> None:
        if not commits:
            return
        catalog: Any = self.settings.open()
        with committing(f"of {self.settings.place}"):
            is_tried = not isinstance(catalog, RestCatalog) or self.settings in _SHOWN
            if len(commits) > 1 and not is_tried:
                _SHOWN[self.settings] = _why_not_together(catalog, self.settings.place, commits)
                if self.why_apart:
                    raise Raced  # the work is done again, one table after the other
            Outside.commit_together(catalog, commits)


def _why_not_together(catalog: Any, place: str, commits: list[TableCommit]) -> str:
    """Return a catalog's fault with a request that must change nothing; empty: it changes nothing."""
    first, second = commits[0].table, commits[1].table
    token = uuid4().hex
    mark = SetPropertiesUpdate(updates={_PROBE: token})
    never = AssertRefSnapshotId.model_validate({"ref": MAIN, "snapshot-id": _NO_SNAPSHOT})
    request = [
        TableCommit(first, (AssertTableUUID(uuid=first.metadata.table_uuid),), (mark,)),
        TableCommit(second, (never,), (mark,)),
    ]
    told = f"the catalog {place} names transactions/commit among its endpoints, but"
    apart = (
        "its tables are changed one after the other, and a reader of several may find them at two checkpoints"
    )
    try:
        commit_all(catalog, request)
        why = f"{told} takes no notice of what a table has to be like: {apart}"
    except CommitFailedException:
        why = ""
    except _PASSING:
        raise
    except (NotImplementedError, RESTError) as error:
        return f"{told} does not serve it ({error}): {apart}"
    left = [one for one in (first, second) if catalog.load_table(one.name()).properties.get(_PROBE) == token]
    for table in left:
        catalog.commit_table(table, (), (RemovePropertiesUpdate(removals=[_PROBE]),))
    return why or (f"{told} carries out a part of a request: {apart}" if left else "")


class IcebergSink(VersionedSink[IcebergVersion]):
    """An Iceberg table of any catalog that pyiceberg knows."""

    kind: ClassVar[str] = "iceberg"

    def __init__(self, target: IcebergTable, context: SinkContext) -> None:
        self._context = context
        self._merges = target.upkeep == "auto"
        kept = (
            OF_TABLES_KEPT_SMALL
            if self._merges and OF_TABLES_KEPT_SMALL.keys().isdisjoint(target.properties)
            else {}
        )
        lake = Lake(
            settings=settings_of(target.catalog, context.table_dir),
            identifier=identifier_of(target.table or context.name),
            partition_by=target.partition_by,
            given_location=target.location,
            properties=kept | target.properties,
        )
        names = SinkNames.of(context, target.shared_with)
        self._backend = IcebergBackend(lake, names, context.work_dir, context.key)
        self._engine = Engine(self._backend, names, context.work_dir / "owner.json")
        self._read = ReadManifests()

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Columns whose values tell staged files apart."""
        return () if self._context.key else self._backend.lake.partition_by

    @property
    def accepts(self) -> Accepts:
        """Values and types that Iceberg's own rules and its readers allow, in partitions that it has or gets."""
        return accepted(self.partition_by, self._backend.lake.table())

    @property
    def joint(self) -> Joint | None:
        """The catalog, where it changes several tables in one request."""
        return CatalogJoint.of(self._backend.lake.settings)

    def publish(self, batches: Sequence[PreparedBatch], permit: CommitPermit) -> Published | AlreadyPublished:
        """Make the batches visible in one commit: of this table, or of all that are published in this step."""
        step = step_at_hand()
        if step is None:
            return super().publish(batches, permit)
        self._upload(batches)
        with keeping(step):
            done = self._engine.publish(
                AttemptId(permit.lineage, permit.epoch), batches, permit.checkpoint_id
            )
        files = [file for batch in batches for file in batch.files]
        step.afterwards.append(lambda: self.staged.forget_copies(files))
        return done

    def prepare(self, frame: DataFrame, batch_id: BatchId) -> PreparedBatch:
        """Stage a micro-batch below the table's location, or in the sink's own folder where that is an object store.

        The rows of a partition have files of their own; unlike folders of Hive, the files keep the column.
        """
        attempt = self._context.attempt()
        row_schema = frame.schema.json()
        parts = self.partition_by
        for number, name in enumerate(parts):
            # Spark puts null and "" into one folder: a letter in front tells them apart.
            column = frame[quoted(name)].cast("string")
            frame = frame.withColumn(f"{PART}{number}", _prefixed(column))
        return stage_rows(
            frame,
            batch_id,
            attempt,
            root=self.staged.root,
            staged=self.staged.folder(attempt.epoch),
            replaces=self._context.is_complete,
            row_schema=row_schema,
            partition_by=[f"{PART}{number}" for number in range(len(parts))],
        )

    # --- upkeep -----------------------------------------------------------------------------------------------

    def keep_small(self, version: IcebergVersion, needed: Sequence[TableSnapshot]) -> None:
        """Merge some small files."""
        merge_small(self._backend, version, self._context.attempt())

    def clean_up(self, needed: Sequence[TableSnapshot], waiting: Sequence[PreparedBatch]) -> int:
        """Expire snapshots of ours, and remove staged files, that nothing needs."""
        attempt = self._context.attempt()
        return Garbage(self._engine, attempt, time.time(), needed, waiting, self._read).collect()

    def upkeep(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Return which files would be merged, and which snapshots expired."""
        return planned(self._backend, needed)

    def maintain(self, needed: Sequence[TableSnapshot]) -> Sequence[Upkeep]:
        """Merge small files, and expire snapshots of ours that neither readers nor these cuts need."""
        return maintained(self._backend, needed)

    def describe(self) -> SinkDescription:
        """Return the description that any reader of the table finds."""
        version = self._backend.load()
        if version is None:
            raise NotFound(f"there is no table at {self.place} yet: it is made with the first rows")
        table = version.table
        with reading(self.place):
            files = [task.file for task in table.scan().plan_files()]
        return SinkDescription(
            place=self.place,
            columns=tuple(
                (column["name"], spelt(column["type"])) for column in schema_columns(table.schema())
            ),
            rows=sum(file.record_count for file in files),
            bytes=sum(file.file_size_in_bytes for file in files),
            version=str(version.number or ""),
            details={
                "format": "iceberg",
                "location": table.location(),
                "files": str(len(files)),
                "snapshots": str(len(version.snapshots)),
                "partitioned by": ", ".join(columns_of_partitions(table)),
            },
        )


def _prefixed(column: Column) -> Column:
    from pyspark.sql import functions

    return functions.concat(functions.lit("v"), column)
