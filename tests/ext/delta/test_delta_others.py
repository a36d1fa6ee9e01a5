"""Others at work on a Delta table between our commits: a restore is exact, or refused by name."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Reader
from deltalake import TableFeatures as F
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import example, given, settings

from dagster_ckpt.testing.sinks.run import Row
from tests.ext.delta.test_delta_table import begun
from tests.properties import examples
from tests.spark.sink.others_at_work import Table, steps

OTHERS = (
    "append",
    "update",
    "delete",
    "merge",
    "overwrite",
    "compact",
    "z_order",
    "vacuum",
    "add_column",
    "properties",
    "put_back",
    "feature",
    "only_appends",
    "compact_log",
    "clean_log",
    "repair",
    "mapped",
    "rename_column",
    "drop_column",
    "drop_and_create",
    "drop",
    "checkpoint",
)


class Others:
    """What deltalake's own client does; values of others are below zero."""

    def __init__(self, place: str) -> None:
        self.place = place

    def rows(self) -> list[Row] | None:
        if not (Path(self.place) / "_delta_log").is_dir():
            return None
        found = pa.table(Reader(self.place).scan().read_all())
        value = next(name for name in found.column_names if name in ("v", "was_v"))
        return sorted(zip(found["k"].to_pylist(), found[value].to_pylist(), strict=True), key=repr)

    def _new(self, number: int) -> pa.Table:
        values = {"k": pa.array([number, 50], pa.int64()), "v": pa.array([-1, -number - 2], pa.int64())}
        return pa.table(values)

    def append(self, number: int) -> None:
        write_deltalake(self.place, self._new(number), mode="append")

    def update(self, number: int) -> None:
        Reader(self.place).update(updates={"v": f"{-20 - number}"}, predicate=f"k <= {number}")

    def delete(self, number: int) -> None:
        Reader(self.place).delete(predicate=f"k = {number}")

    def merge(self, number: int) -> None:
        merging = Reader(self.place).merge(self._new(number), "t.k = s.k", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    def overwrite(self, number: int) -> None:
        write_deltalake(self.place, self._new(number), mode="overwrite")

    def compact(self, number: int) -> None:
        Reader(self.place).optimize.compact()

    def z_order(self, number: int) -> None:
        Reader(self.place).optimize.z_order(["k"])

    def vacuum(self, number: int) -> None:
        Reader(self.place).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    def add_column(self, number: int) -> None:
        table = Reader(self.place)
        if len(table.schema().fields) < 4:
            field = pa.field(f"c{len(table.schema().fields)}", pa.string())
            table.alter.add_columns(Reader.create("memory:///", pa.schema([field])).schema().fields)

    def properties(self, number: int) -> None:
        Reader(self.place).alter.set_table_properties({"delta.checkpointInterval": str(number + 1)})

    def put_back(self, number: int) -> None:
        table = Reader(self.place)
        if table.version():
            table.restore(number % table.version())

    def feature(self, number: int) -> None:
        kinds = [
            F.AppendOnly,
            F.ChangeDataFeed,
            F.DeletionVectors,
            F.Invariants,
            F.V2Checkpoint,
            F.ColumnMapping,
        ]
        Reader(self.place).alter.add_feature(kinds[number % 6], allow_protocol_versions_increase=True)

    def only_appends(self, number: int) -> None:
        Reader(self.place).alter.set_table_properties({"delta.appendOnly": "true" if number % 2 else "false"})

    def compact_log(self, number: int) -> None:
        table = Reader(self.place)
        table.compact_logs(max(0, table.version() - number), table.version())

    def clean_log(self, number: int) -> None:
        Reader(self.place).create_checkpoint()
        Reader(self.place).cleanup_metadata()

    def repair(self, number: int) -> None:
        Reader(self.place).repair()

    def _as_spark(self, did: str, change: Callable[[dict[str, str], list[Any]], None]) -> None:
        """Commit other columns of the same files, as Spark does once they are mapped to names."""
        table = Reader(self.place)
        metadata, fields = table.metadata(), json.loads(table.schema().to_json())["fields"]
        properties = dict(metadata.configuration)
        change(properties, fields)
        said = {"timestamp": int(time.time() * 1000), "operation": did, "operationParameters": {}}
        columns = {
            "id": str(metadata.id),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": properties,
        }
        actions: list[dict[str, Any]] = [{"commitInfo": said}, {"metaData": columns}]
        if did == "SET TBLPROPERTIES":
            actions.append({"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}})
        entry = Path(self.place) / "_delta_log" / f"{table.version() + 1:020d}.json"
        entry.write_text("\n".join(map(json.dumps, actions)))

    def mapped(self, number: int) -> None:
        def change(properties: dict[str, str], fields: list[Any]) -> None:
            properties |= {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
            for at, field in enumerate(fields):
                named = {"delta.columnMapping.physicalName": field["name"]}
                field["metadata"] = {"delta.columnMapping.id": at + 1} | named

        if Reader(self.place).protocol().min_writer_version < 7:
            self._as_spark("SET TBLPROPERTIES", change)

    def rename_column(self, number: int) -> None:
        if "delta.columnMapping.mode" in Reader(self.place).metadata().configuration:
            self._as_spark("RENAME COLUMN", lambda _, fields: fields[1].update(name="was_v"))

    def drop_column(self, number: int) -> None:
        if "delta.columnMapping.mode" in Reader(self.place).metadata().configuration:
            self._as_spark("DROP COLUMNS", lambda _, fields: fields.__delitem__(slice(2, None)))

    def drop(self, number: int) -> None:
        shutil.rmtree(self.place)

    def drop_and_create(self, number: int) -> None:
        shutil.rmtree(self.place)
        for _ in range(number + 1):
            write_deltalake(self.place, self._new(number), mode="append")

    def checkpoint(self, number: int) -> None:
        Reader(self.place).create_checkpoint()

    def try_(self, name: str, number: int) -> None:
        """Do one of these, unless the table is not as it needs it."""
        if not (Path(self.place) / "_delta_log").is_dir():
            return
        with contextlib.suppress(DeltaError, OSError):
            getattr(self, name)(number)


@pytest.mark.slow
@pytest.mark.parametrize("key", [(), ("k",)])
@settings(max_examples=examples(40))
@example(done=[("publish", 0), ("delete", 0), ("restart", 0), ("as_of", 0)])
@example(done=[("publish", 0), ("append", 0), ("exchange", 0), ("publish", 1), ("exchange", 0)])
@example(done=[("publish", 0), ("publish", 0), ("mapped", 0), ("back", 0)])
@example(done=[("publish", 0), ("nothing", 0), ("put_back", 1), ("publish", 0)])
@example(
    done=[
        ("publish", 0),
        ("publish", 1),
        ("back", 0),
        ("put_back", 2),
        ("publish", 2),
        ("back", 0),
        ("publish", 3),
    ]
)
@given(done=steps(OTHERS))
def test_a_restore_beside_others_is_exact_or_refused_by_name(
    key: tuple[str, ...], done: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = begun(Path(folder), key=key)
        others = Others(run.sink.place)
        acts = {name: (lambda number, name=name: others.try_(name, number)) for name in OTHERS}
        table = Table(run=run, rows=others.rows, others=acts)
        for step in done:
            table.do(step)
