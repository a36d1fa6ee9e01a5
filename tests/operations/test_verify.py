"""Every damage to a snapshot is found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Unavailable
from dagster_ckpt.operations.deployment import Progress
from dagster_ckpt.operations.verify import ProblemKind, verify_snapshot
from dagster_ckpt.operations.verify_tables import with_tables
from dagster_ckpt.spark.sink.committables import TableFile
from dagster_ckpt.spark.snapshot.stored import open_snapshot
from dagster_ckpt.spark.table.log import Table, create_table
from dagster_ckpt.spark.table.records import Append, PublishRecord, Upsert
from dagster_ckpt.testing.faulty import Call, FaultyStorage, Operation
from tests.operations.world import World, data_keys
from tests.spark.table.tables import PIPELINE, Attempt

T = TypeVar("T")
ROWS = b"rows of a file"


class CutOff:
    """A network that carries small answers only."""

    def around(self, call: Call, proceed: Callable[[], T]) -> T:
        if call.operation is Operation.FETCH:
            raise Unavailable("the network is gone")
        return proceed()


def test_an_intact_snapshot_is_read_whole_and_progress_ends_at_its_size(world: World) -> None:
    stored = world.checkpoint(1)
    told: list[Progress] = []
    found = verify_snapshot(stored, progress=told.append)
    assert found.is_intact
    assert found.files > 5
    assert told[-1].done == told[-1].total == found.bytes


def test_every_missing_and_every_damaged_file_is_named(world: World) -> None:
    world.query().commit(2).snapshot(2)
    stored = world.checkpoint(1)
    first, second, *_ = data_keys(stored)
    del world.storage.contents[first]
    world.damage(world.storage, second)
    found = verify_snapshot(stored)
    assert [(p.problem, first.endswith(p.path) or second.endswith(p.path)) for p in found.problems] == [
        (ProblemKind.MISSING, True),
        (ProblemKind.DAMAGED, True),
    ]
    assert not found.is_intact


def test_a_damaged_file_list_is_one_problem_of_its_stage(world: World) -> None:
    stored = world.checkpoint(1)
    world.damage(world.storage, f"{stored.folder}/totals/manifest.parquet")
    (problem,) = verify_snapshot(stored).problems
    assert problem.problem is ProblemKind.UNREADABLE
    assert problem.stage == "totals"


def test_a_storage_that_cannot_be_reached_says_nothing_about_the_files(world: World) -> None:
    world.query().commit(2).snapshot(2)
    stored = world.checkpoint(1)
    faulty = FaultyStorage(world.storage, CutOff())
    with pytest.raises(Unavailable):
        verify_snapshot(open_snapshot(faulty, stored.folder))


# --- tables -----------------------------------------------------------------------------------------------------


def published(world: World, *names: str, mode: Append | Upsert | None = None, checksum: bool = True) -> Table:
    """A table whose publish 1 has these files."""
    table = create_table(
        str(world.folder / "totals-table"), pipeline=PipelineId("sales"), mode=mode or Append()
    )
    kept = digest_bytes(ROWS).checksum if checksum else ""
    files = tuple(
        TableFile(name=name, staged=f"staged/{name}", rows=1, bytes=len(ROWS), checksum=kept)
        for name in names
    )
    for name in names:
        table.paths.published(name).write_bytes(ROWS)
    table.add_record(PublishRecord(checkpoint_id=1, parent=None, through_batch=1, epoch=1, files=files))
    return table


def found_with_tables(world: World, table: Table) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    stored = world.checkpoint(1, table=TableSnapshot(uri=table.uri, head=1))
    found = with_tables(verify_snapshot(stored), stored)
    assert found.is_intact == (not found.problems)
    return [(problem.path, problem.problem.value) for problem in found.problems], found.remarks


def test_published_files_that_a_snapshot_counts_on_are_read(world: World) -> None:
    table = published(world, "part-1.parquet", "part-2.parquet", "part-3.parquet", "part-4.parquet")
    table.paths.published("part-2.parquet").write_bytes(ROWS.replace(b"rows", b"rowz"))
    table.paths.published("part-3.parquet").write_bytes(ROWS[:-1])
    table.paths.published("part-4.parquet").unlink()
    assert found_with_tables(world, table) == (
        [("part-2.parquet", "damaged"), ("part-3.parquet", "damaged"), ("part-4.parquet", "missing")],
        (),
    )


def test_files_of_before_are_compared_by_their_size(world: World) -> None:
    table = published(world, "part-1.parquet", "part-2.parquet", checksum=False)
    table.paths.published("part-2.parquet").write_bytes(ROWS[:-1])
    assert found_with_tables(world, table) == ([("part-2.parquet", "damaged")], ())


def test_a_publish_that_is_gone_is_one_problem_of_its_table(world: World) -> None:
    table = published(world, "part-1.parquet")
    table.paths.record(1).unlink()
    assert found_with_tables(world, table) == ([(table.uri, "unreadable")], ())


def test_the_files_of_a_keyed_table_are_read(world: World) -> None:
    made = create_table(str(world.folder / "table"), pipeline=PIPELINE, mode=Upsert(keys=("k",), buckets=4))
    attempt = Attempt(made, world.folder / "stage")
    attempt.batch([(k, 0) for k in range(4)])
    attempt.publish(attempt.cut(1))
    table = attempt.table
    assert found_with_tables(world, table) == ([], ())
    table.paths.bucket(1).write_bytes(b"in place: what readers see, and the version it is")
    table.paths.version(1, 2).unlink()
    assert found_with_tables(world, table) == (
        [("part-bucket-00001.parquet", "damaged"), ("part-bucket-00002.parquet", "missing")],
        (),
    )
    table.paths.record(1).unlink()
    assert found_with_tables(world, table) == ([(table.uri, "unreadable")], ())


def test_tables_that_cannot_be_compared_are_named(world: World) -> None:
    stored = world.checkpoint(2, table=TableSnapshot(uri=str(world.folder / "elsewhere"), head=1))
    found = with_tables(verify_snapshot(stored), stored)
    assert found.is_intact
    assert "elsewhere) is not here: its rows were not read" in found.remarks[0]
