"""Others at work on a Delta table between our commits: a restore is exact, or refused by name."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Reader
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import given, settings

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
        found = Reader(self.place).to_pyarrow_table()
        return sorted(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))

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


@pytest.mark.parametrize("key", [(), ("k",)])
@settings(max_examples=examples(40))
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
