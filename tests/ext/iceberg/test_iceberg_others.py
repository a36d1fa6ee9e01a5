"""Others at work on an Iceberg table between our commits: a restore is exact, or refused by name."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from pyiceberg import exceptions as errors
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import StringType

from dagster_ckpt.testing import SinkRun
from dagster_ckpt.testing.sinks.run import Row
from tests.ext.iceberg.test_iceberg_table import NAME, begun, catalog_of
from tests.properties import examples
from tests.spark.sink.others_at_work import Table, steps

OTHERS = (
    "append",
    "delete",
    "overwrite",
    "add_column",
    "rename_column",
    "drop_column",
    "move_column",
    "require",
    "identify",
    "partition",
    "sort",
    "upgrade",
    "upsert",
    "to_a_time",
    "remove_tags",
    "properties",
    "branch_back",
    "branch",
    "expire",
    "drop_and_create",
    "drop",
)


class Others:
    """What pyiceberg's own client does; values of others are below zero."""

    def __init__(self, run: SinkRun) -> None:
        self.catalog = catalog_of(run)

    def table(self) -> IcebergTable:
        return self.catalog.load_table(NAME)

    def rows(self) -> list[Row] | None:
        try:
            found = self.table().scan().to_arrow()
        except errors.NoSuchTableError:
            return None
        value = "v" if "v" in found.column_names else "was_v"
        return sorted(zip(found["k"].to_pylist(), found[value].to_pylist(), strict=True), key=repr)

    def _new(self, number: int) -> pa.Table:
        names = [field.name for field in self.table().schema().fields]
        values = {
            "k": pa.array([number, 50], pa.int64()),
            "v" if "v" in names else "was_v": pa.array([-1, -number - 2], pa.int64()),
        }
        return pa.table({name: values[name] for name in names if name in values})

    def append(self, number: int) -> None:
        self.table().append(self._new(number))

    def delete(self, number: int) -> None:
        self.table().delete(f"k == {number}")

    def overwrite(self, number: int) -> None:
        self.table().overwrite(self._new(number))

    def add_column(self, number: int) -> None:
        table = self.table()
        if len(table.schema().fields) < 4:
            with table.update_schema() as update:
                update.add_column(f"c{len(table.schema().fields)}", StringType())

    def rename_column(self, number: int) -> None:
        with self.table().update_schema() as update:
            update.rename_column("v", "was_v")

    def drop_column(self, number: int) -> None:
        names = [field.name for field in self.table().schema().fields if field.name.startswith("c")]
        with self.table().update_schema() as update:
            update.delete_column(names[0] if names else "none")

    def move_column(self, number: int) -> None:
        table = self.table()
        fields = table.schema().fields
        with table.update_schema() as update:
            update.move_first(fields[number % len(fields)].name)

    def require(self, number: int) -> None:
        with self.table().update_schema(allow_incompatible_changes=True) as update:
            update.update_column("k", required=number % 2 == 0)

    def identify(self, number: int) -> None:
        with self.table().update_schema(allow_incompatible_changes=True) as update:
            update.set_identifier_fields("k")

    def partition(self, number: int) -> None:
        table = self.table()
        with table.update_spec() as update:
            if table.spec().is_unpartitioned():
                update.add_field("k", BucketTransform(2) if number % 2 else IdentityTransform(), "part")
            else:
                update.remove_field("part")

    def sort(self, number: int) -> None:
        with self.table().update_sort_order() as update:
            update.asc("k", IdentityTransform())

    def upgrade(self, number: int) -> None:
        if number > 4:
            with self.table().transaction() as transaction:
                transaction.upgrade_table_version(3)

    def upsert(self, number: int) -> None:
        self.table().upsert(self._new(number), join_cols=["k"])

    def to_a_time(self, number: int) -> None:
        table = self.table()
        found = table.history()
        if found:
            table.manage_snapshots().rollback_to_timestamp(
                found[number % len(found)].timestamp_ms + 1
            ).commit()

    def remove_tags(self, number: int) -> None:
        table = self.table()
        ours = [name for name in table.metadata.refs if name.startswith("dagster_ckpt/")]
        if ours:
            name, manage = ours[number % len(ours)], table.manage_snapshots()
            is_tag = table.metadata.refs[name].snapshot_ref_type == "tag"
            (manage.remove_tag if is_tag else manage.remove_branch)(name).commit()

    def properties(self, number: int) -> None:
        with self.table().transaction() as transaction:
            transaction.set_properties({"history.expire.max-snapshot-age-ms": "0"})

    def branch_back(self, number: int) -> None:
        table = self.table()
        snapshots = table.snapshots()
        if snapshots:
            chosen = snapshots[number % len(snapshots)].snapshot_id
            table.manage_snapshots().set_current_snapshot(chosen).commit()

    def branch(self, number: int) -> None:
        table = self.table()
        if (shown := table.current_snapshot()) is not None:
            table.manage_snapshots().create_branch(shown.snapshot_id, f"b{number}").commit()

    def expire(self, number: int) -> None:
        table = self.table()
        held = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in held]
        if old:
            table.maintenance.expire_snapshots().by_ids(old[: number + 1]).commit()

    def drop(self, number: int) -> None:
        self.catalog.drop_table(NAME)

    def drop_and_create(self, number: int) -> None:
        schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
        self.catalog.drop_table(NAME)
        self.catalog.create_table(NAME, schema)
        self.append(number)

    def try_(self, name: str, number: int) -> None:
        """Do one of these, unless the table is not as it needs it."""
        with contextlib.suppress(ValueError, errors.NoSuchTableError):
            getattr(self, name)(number)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("key", [(), ("k",)])
@settings(max_examples=examples(30))
@example(done=[("publish", 0), ("delete", 0), ("restart", 0), ("as_of", 0)])
@example(done=[*[("publish", 0)] * 2, ("append", 0), ("restart", 0), ("branch_back", 0), ("back", 1)])
@example(done=[("publish", 0), ("append", 0), ("exchange", 0), ("publish", 1), ("exchange", 0)])
@given(done=steps(OTHERS))
def test_a_restore_beside_others_is_exact_or_refused_by_name(
    key: tuple[str, ...], done: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = begun(Path(folder), key=key)
        others = Others(run)
        acts = {name: (lambda number, name=name: others.try_(name, number)) for name in OTHERS}
        table = Table(run=run, rows=others.rows, others=acts)
        for step in done:
            table.do(step)
