"""An Iceberg table: loaded, made, committed to; the calls of pyiceberg, and what its errors mean."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyiceberg import exceptions as errors
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.types import NestedField
from sqlalchemy.exc import SQLAlchemyError

from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest, OutcomeUnknown, Unavailable
from dagster_ckpt.ext.iceberg.catalogs import CatalogSettings, why_forgetful
from dagster_ckpt.ext.iceberg.files import data_file
from dagster_ckpt.ext.iceberg.together import TableCommit, commit_all, kept
from dagster_ckpt.ext.iceberg.version import MAIN, IcebergVersion
from dagster_ckpt.ext.tables.engine import Raced
from dagster_ckpt.ext.tables.marks import Mark

_OF_NEW_TABLES = {
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "history.expire.max-snapshot-age-ms": str(86_400_000),
}
OF_TABLES_KEPT_SMALL = {
    "history.expire.max-snapshot-age-ms": str(10_000),
    "history.expire.min-snapshots-to-keep": "50",
}
"""A checkpoint every second is a snapshot every second, and each commit copies what is told of all of them."""


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """One commit: everything in it becomes visible together."""

    mark: Mark
    columns: Sequence[NestedField] = ()
    """New columns."""
    back_to: int | None = None
    """Snapshot that the branch is moved to first."""
    set_aside: str = ""
    """Branch that keeps what the table shows before that."""
    staged: Sequence[str] = ()
    """Locations of files to be added as they are."""
    replaces: bool = False
    """All other files leave."""
    rewrite: Callable[[Transaction], tuple[Sequence[DataFile], Sequence[DataFile]]] | None = None
    """Returns files that are added, and those that leave, given the transaction so far."""
    rearranges: bool = False
    """The files that are added hold the same rows as those that leave."""


class StagedCommit(Transaction):
    """A transaction that copies the metadata once for each of its states, and not whenever it is asked for.

    With a thousand snapshots the copies were nine tenths of a commit.
    """

    _known: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata as it will be."""
        if not self._updates:
            return self._table.metadata
        if self._known is None or self._known[0] is not self._updates:
            self._known = (self._updates, super().table_metadata)
        return self._known[1]


class Rearranged(_OverwriteFiles):
    """Files that hold the rows of those that leave: Iceberg's operation ``replace``, which pyiceberg only reads."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        summary = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **summary.additional_properties)


class Outside:
    """The calls of pyiceberg that commit; nothing else of this package changes a table."""

    @staticmethod
    def create(lake: Lake, schema: Schema) -> None:
        """Make the table, without rows."""
        catalog = lake.settings.open()
        catalog.create_namespace_if_not_exists(lake.identifier[:-1])
        fields = [
            PartitionField(schema.find_field(name).field_id, 1000 + number, IdentityTransform(), name)
            for number, name in enumerate(lake.partition_by)
        ]
        catalog.create_table(
            lake.identifier,
            schema,
            location=lake.location,
            partition_spec=PartitionSpec(*fields),
            properties=_OF_NEW_TABLES | lake.properties,
        )

    @staticmethod
    def commit(version: IcebergVersion, change: TableChange) -> int:
        """Add a snapshot on top of the one that was read, and return its id."""
        transaction = StagedCommit(version.table)
        if change.columns:
            with transaction.update_schema() as update:
                for column in change.columns:
                    update.add_column(column.name, column.field_type)
        schema_asserted = transaction._requirements
        if transaction.table_metadata.name_mapping() is None:  # staged files have no ids of columns
            mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        if change.back_to is not None:
            transaction._stage(_moved(version, change))
        added, removed = _files(version, transaction, change)
        producer: Any = transaction.update_snapshot(snapshot_properties=summary_of(change.mark))
        merges = version.table.metadata.properties.get(TableProperties.MANIFEST_MERGE_ENABLED) == "true"
        append = producer.merge_append if merges else producer.fast_append
        snapshot = producer.overwrite() if removed else append()
        if change.rearranges:
            snapshot = Rearranged(
                Operation.OVERWRITE,
                transaction,
                version.table.io,
                snapshot_properties=summary_of(change.mark),
            )
        with snapshot:
            for file in removed:
                snapshot.delete_data_file(file)
            for file in added:
                snapshot.append_data_file(file)
        transaction._stage(tuple(_tagged(version, change, snapshot.snapshot_id)))
        commit_exactly(version, transaction, schema_asserted, (MAIN, version.refs.newest))
        return int(snapshot.snapshot_id)

    @staticmethod
    def commit_together(catalog: Catalog, commits: Sequence[TableCommit]) -> None:
        """Change several tables, all or none of them."""
        commit_all(catalog, commits)

    @staticmethod
    def keep_and_expire(
        version: IcebergVersion, tags: dict[str, int], untagged: Sequence[str], expired: Sequence[int]
    ) -> None:
        """Set and remove tags, and remove snapshots."""
        updates: list[TableUpdate] = [_tag(name, number) for name, number in tags.items()]
        updates += [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in untagged]
        if expired:
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(expired)}))
        transaction = StagedCommit(version.table)
        transaction._stage(tuple(updates))
        commit_exactly(version, transaction, (), (MAIN, version.refs.newest))


def commit_exactly(
    version: IcebergVersion, transaction: Transaction, also: Sequence[TableRequirement], refs: Sequence[str]
) -> None:
    """Commit in one try, if these references still are where they were read."""
    exact = [
        AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": version.ref(name)}) for name in refs
    ]
    transaction._requirements = (*also, *exact[: None if version.snapshots else 1])
    whole = (*transaction._requirements, AssertTableUUID(uuid=version.table.metadata.table_uuid))
    producers = tuple(transaction._snapshot_producers)
    if kept(TableCommit(version.table, whole, transaction._updates, producers)):
        return
    # Of this handle only: with the table's own setting pyiceberg would commit on top of what was not read.
    version.table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
    told = {update.ref_name for update in transaction._updates if isinstance(update, SetSnapshotRefUpdate)}
    transaction.commit_transaction()
    if not told <= version.table.metadata.refs.keys():
        raise InvalidRequest(why_forgetful(version.place))


def _files(
    version: IcebergVersion, transaction: Transaction, change: TableChange
) -> tuple[list[DataFile], list[DataFile]]:
    io, metadata = version.table.io, transaction.table_metadata
    added = [data_file(io, metadata, location) for location in change.staged]
    removed: list[DataFile] = []
    if change.replaces:
        removed = [task.file for task in transaction._scan().plan_files()]
    if change.rewrite is not None:
        more, touched = change.rewrite(transaction)
        added += more
        removed += touched
    return added, removed


def _moved(version: IcebergVersion, change: TableChange) -> tuple[TableUpdate, ...]:
    assert change.back_to is not None
    main = _ref("branch", MAIN, change.back_to)
    if not change.set_aside or version.number is None:
        return (main,)
    aside = _ref("branch", change.set_aside, version.number)
    return (aside, main)


def _tagged(version: IcebergVersion, change: TableChange, number: int) -> Iterator[TableUpdate]:
    yield _tag(version.refs.newest, number)
    if change.set_aside and change.back_to is None and version.number is not None:
        yield _ref("branch", change.set_aside, version.number)
    if change.mark.base is not None and version.ref(version.refs.base) is None:
        yield _tag(version.refs.base, change.mark.base)


def _ref(kind: str, name: str, number: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate.model_validate({"ref-name": name, "type": kind, "snapshot-id": number})


def _tag(name: str, number: int) -> SetSnapshotRefUpdate:
    return _ref("tag", name, number)


def summary_of(mark: Mark) -> dict[str, str]:
    """Return a mark as properties of a snapshot."""
    return {name: str(value) for name, value in mark.fields().items() if value is not None}


@dataclass(frozen=True)
class Lake:
    """A table, by its name in a catalog."""

    settings: CatalogSettings
    identifier: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    given_location: str = ""
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The table for people and checkpoints."""
        return f"{self.settings.place}#{'.'.join(self.identifier)}"

    @property
    def location(self) -> str:
        """Where the table's files lie, or will once it is made. Raises InvalidRequest where that is not known."""
        table = self.table()
        if table is not None:
            return str(table.location()).rstrip("/")
        warehouse = dict(self.settings.properties).get("warehouse") or (
            "" if self.settings.is_missing else str(self._catalog().properties.get("warehouse", ""))
        )
        if self.given_location:
            return self.given_location.rstrip("/")
        if "/" in warehouse:
            return "/".join((warehouse.rstrip("/"), *self.identifier))
        raise InvalidRequest(
            f"table {self.place} is not there, and its catalog does not say where it would lie: make it first, or give "
            "IcebergTable a location"
        )

    def create(self, schema: Schema) -> None:
        """Make the table, without rows, unless somebody did."""
        with contextlib.suppress(Raced), committing(self.place):
            Outside.create(self, schema)

    def elsewhere(self, settings: CatalogSettings, identifier: tuple[str, ...]) -> Lake:
        """Return another table."""
        return replace(self, settings=settings, identifier=identifier, given_location="")

    def _catalog(self) -> Catalog:
        return self.settings.open()

    def table(self) -> Table | None:
        """Return the table as it is now; None: there is none."""
        if self.settings.is_missing:
            return None
        with reading(self.place):
            try:
                table = self._catalog().load_table(self.identifier)
            except (errors.NoSuchTableError, errors.NoSuchNamespaceError):
                return None
        self._refuse_of_a_copy(str(table.location()))
        return table

    def _refuse_of_a_copy(self, location: str) -> None:
        """Iceberg names files by their whole paths: of two copies of a catalog each would delete the other's."""
        ours, lies = self.settings.own_folder, folder_at(location)
        if ours is None or self.given_location or lies is None:
            return
        if not lies.resolve().is_relative_to(ours.resolve()):
            raise InvalidRequest(
                f"table {self.place} has its files in {lies}, outside {ours}: the folder of tables was copied, and the "
                "copy would change files of the original. Work with the original; in a copied deployment remove "
                f"{ours} and fork a snapshot, or begin with restore_from: none"
            )


def folder_at(location: str) -> Path | None:
    """Return the folder that a location names; None: it is in an object store."""
    plain = location.removeprefix("file://")
    return None if "://" in plain else Path(plain.removeprefix("file:"))


def _is_outside(error: Exception) -> bool:
    """Tell errors of the network, of databases and of AWS (which share no class)."""
    if isinstance(error, OSError | SQLAlchemyError | errors.RESTError | errors.DynamoDbError):
        return True
    return type(error).__module__.split(".")[0] in ("botocore", "google", "thrift")


@contextlib.contextmanager
def reading(place: str) -> Iterator[None]:
    """Turn the client's failures while reading into the library's."""
    try:
        yield
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise Corrupt(
            f"table {place} has lost a file of its metadata: {error}. Bring it back from a backup (a folder of tables "
            "that was moved: to its old place), or write to a new table"
        ) from error
    except Exception as error:
        if not _is_outside(error):
            raise
        raise Unavailable(f"table {place} could not be read: {error}. It is tried again") from error


@contextlib.contextmanager
def committing(place: str) -> Iterator[None]:
    """Turn the client's failures while committing into the library's; Raced where another commit was first."""
    try:
        yield
    except CheckpointError:
        raise
    except (errors.CommitFailedException, errors.TableAlreadyExistsError) as error:
        raise Raced from error
    except FileNotFoundError as error:
        raise Corrupt(f"table {place} has lost rows: {error}. Choose a later checkpoint") from error
    except (ValueError, NotImplementedError, errors.NotInstalledError, errors.ValidationException) as error:
        raise InvalidRequest(f"the rows do not fit table {place}: {error}") from error
    except Exception as error:
        if not _is_outside(error):
            raise
        raise OutcomeUnknown(
            f"a commit to table {place} failed and may have happened: {error}. It is repeated: it is idempotent"
        ) from error
