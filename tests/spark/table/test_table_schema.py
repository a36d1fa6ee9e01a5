"""Which rows a Parquet table takes beside those it has."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_ckpt.core.ids import CheckpointId
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.core.model import TableSnapshot
from dagster_ckpt.errors import Corrupt, InvalidRequest
from dagster_ckpt.spark.sink.committables import encoded
from dagster_ckpt.spark.sink.port import SinkCut
from dagster_ckpt.spark.table.log import create_table, open_table
from dagster_ckpt.spark.table.records import Append, Upsert
from dagster_ckpt.spark.table.schema import has_same_columns, is_wider, merged, refuse_changed, refuse_unfit
from dagster_ckpt.testing.sinks.base import FIRST
from dagster_ckpt.testing.sinks.run import context_in, stage
from tests.spark.table import test_table_contract as contract
from tests.spark.table.tables import (
    PIPELINE,
    Attempt,
    permit,
    publish_through,
    restored,
    roll_back_to,
    rows_of,
)


def schema(**types: object) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


STRUCT = {"type": "struct", "fields": []}


@pytest.mark.parametrize(
    ("rows", "keys", "says"),
    [
        (schema(), (), "no columns"),
        (schema(k="long", K="string"), (), r"\['k', 'K'\] differ in case only"),
        (schema(k="long"), ("key",), "no key column 'key'"),
        (schema(k=STRUCT), ("k",), "key column 'k' is of type struct.*restore_from"),
        (schema(k="variant"), ("k",), "type variant"),
    ],
)
def test_rows_no_table_can_take_are_refused_when_the_stage_starts(
    rows: str, keys: tuple[str, ...], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        refuse_unfit("table t", rows, keys)


@pytest.mark.parametrize("keys", [[], ["k"]])
def test_a_column_whose_name_changes_its_case_is_no_new_column(keys: list[str]) -> None:
    """Readers found two columns of one name in a file, or none of the values in it."""
    with pytest.raises(InvalidRequest, match=r"table t: column 'V' is called 'v' there.*keep its name"):
        refuse_changed("table t", schema(k="long", v="long"), schema(k="long", V="long"), keys=keys)


def test_columns_are_added_and_left_out_and_types_stay() -> None:
    old = schema(k="long", v="integer")
    refuse_changed("table t", old, schema(k="long", w="string"), keys=[])
    with pytest.raises(InvalidRequest, match=r"column 'v' was integer and is long now.*give the table a key"):
        refuse_changed("table t", old, schema(k="long", v="long"), keys=[])
    with pytest.raises(InvalidRequest, match="is long now: cast it in the flow, or give the dataset a name"):
        refuse_changed("table t", old, schema(k="long", v="long"), keys=[], of_project=True)
    refuse_changed("table t", old, schema(k="long", v="long"), keys=["k"])
    with pytest.raises(InvalidRequest, match="column 'v' was integer and is string now"):
        refuse_changed("table t", old, schema(k="long", v="string"), keys=["k"])


def test_a_column_that_was_left_out_for_a_while_keeps_its_type() -> None:
    table = merged(schema(k="long", v="integer"), schema(k="long"))
    with pytest.raises(InvalidRequest, match="column 'v' was integer"):
        refuse_changed("table t", table, schema(k="long", v="string"), keys=["k"])
    assert not has_same_columns(table, schema(k="long"))
    assert has_same_columns("", schema(k="long")), "unknown is no change"


def test_a_key_keeps_its_type_where_another_one_would_put_its_rows_elsewhere() -> None:
    """Spark hashes a long otherwise than an integer: the same key was in two buckets, and twice in the table."""
    for was, now in [("integer", "long"), ("float", "double"), ("decimal(18,2)", "decimal(19,2)")]:
        with pytest.raises(InvalidRequest, match=r"column 'k' was .* now: its rows would be there twice"):
            refuse_changed("table t", schema(k=was), schema(k=now), keys=["k"])
    for was, now in [("byte", "integer"), ("short", "integer"), ("decimal(9,2)", "decimal(18,2)")]:
        refuse_changed("table t", schema(k=was), schema(k=now), keys=["k"])


def test_wider_types_hold_every_value() -> None:
    assert is_wider("decimal(9,2)", "decimal(12,2)")
    assert not is_wider("decimal(9,2)", "decimal(12,3)")
    assert not is_wider("long", "integer")
    assert not is_wider(STRUCT, STRUCT)


# --- what of a table is kept ----------------------------------------------------------------------------------


def two_publishes(folder: Path) -> tuple[Attempt, list[object]]:
    attempt = Attempt(create_table(str(folder / "table"), pipeline=PIPELINE, mode=Append()), folder / "s")
    cuts = []
    for number in (1, 2):
        attempt.batch([(number, number)])
        cuts.append(attempt.cut(number))
        attempt.publish(cuts[-1])
    return attempt, list(cuts)


def test_a_restore_shows_the_rows_of_its_cut_also_where_a_publish_record_is_missing(tmp_path: Path) -> None:
    attempt, cuts = two_publishes(tmp_path)
    attempt.table.paths.record(2).unlink()
    restored(attempt.table, cuts[0], tmp_path / "s2", epoch=2)  # type: ignore[arg-type]
    roll_back_to(attempt.table, cuts[0], tmp_path / "s2", epoch=2)  # type: ignore[arg-type]
    assert rows_of(tmp_path / "table") == [(1, 1)]


@pytest.mark.parametrize("lost", ["record", "file", "extra"])
def test_a_table_of_which_a_part_is_missing_is_not_continued(tmp_path: Path, lost: str) -> None:
    attempt, _ = two_publishes(tmp_path)
    visible = sorted((tmp_path / "table").glob("part-*.parquet"))
    match lost:
        case "record":
            attempt.table.paths.record(2).unlink()
        case "file":
            visible[0].unlink()
        case _:
            visible[0].with_name("part-000001-0000000009-00000-0123456789ab.parquet").write_bytes(b"")
    with pytest.raises(Corrupt, match="table"):
        attempt.sink.take_over()


@pytest.mark.parametrize("mode", [Append(), Upsert(keys=("k",), buckets=1)])
def test_a_publish_record_that_was_swapped_for_another_deployments_is_told(
    tmp_path: Path, mode: Append | Upsert
) -> None:
    attempt = Attempt(create_table(str(tmp_path / "table"), pipeline=PIPELINE, mode=mode), tmp_path / "s")
    attempt.batch([(1, 1)])
    attempt.publish(attempt.cut(1))
    record = attempt.table.record(1)
    assert record is not None
    theirs = record.model_copy(update={"lineage": "theirs"})
    attempt.table.paths.record(1).write_bytes(encoded(theirs))
    with pytest.raises(Corrupt, match=r"is another history's \(theirs, the table's is one\)"):
        attempt.sink.take_over()


def test_another_historys_publish_of_the_same_number_is_no_publish_of_ours(tmp_path: Path) -> None:
    """Store, work and checkpoints deleted, tables kept: the old record of the number must not win."""
    attempt, cuts = two_publishes(tmp_path)
    record = attempt.table.record(2)
    assert record is not None
    attempt.table.write_state(attempt.table.state().model_copy(update={"head": 1, "published_through": 0}))
    again = Attempt(attempt.table, tmp_path / "other", next_batch=1)
    again.batch([(7, 7)])
    again.cut(2)
    with pytest.raises(Corrupt, match="with other files"):
        publish_through(attempt.table, again.stage_dir, again.next_batch - 1, permit(2))  # type: ignore[arg-type]
    assert cuts


def test_a_column_that_stays_away_rewrites_no_bucket_and_stays_in_all_of_them(tmp_path: Path) -> None:
    run = contract.TestParquetSink().begun(tmp_path, key=("k",))
    run.batch([(0, 0, "x")], types={"w": pa.string()})
    run.publish(1)
    for number in (1, 2):  # each the first row of its bucket, and none of them has w
        run.batch([(number, number)])
        run.publish(number + 1)
    table = open_table(run.sink.place)
    versions = sorted(path.parent.name.lstrip("0") for path in table.paths.meta.glob("versions/*/*.parquet"))
    assert versions == ["1", "2", "3"], "one file for each publish"
    for path in table.paths.root.glob("*.parquet"):
        assert pq.read_schema(path).names == ["k", "v", "w"]
    assert pq.read_table(table.paths.root).column("w").to_pylist() == ["x", None, None]


def test_a_column_that_the_code_of_a_fork_adds_reaches_every_file_of_its_table(tmp_path: Path) -> None:
    """A fork did not know the columns it began with: plain readers of the folder found the new one in some files."""
    table = contract.TestParquetSink()
    run = table.begun(tmp_path, key=("k",))
    run.batch([(0, 0)], [(1, 1)], [(2, 2)])
    run.publish(1)
    context = context_in(tmp_path / "fork", FIRST, pipeline="fork", key=("k",))
    sink = table.open(context)
    snapshot = TableSnapshot(uri=run.sink.place, head=1)
    sink.fork(SinkCut(snapshot=snapshot, batches=(), checkpoint_id=CheckpointId(1)))
    more = pa.table({"k": [1], "v": [5], "w": ["x"]})
    batch = stage(table.staging(sink, context), FIRST, 1, [more])
    sink.publish(
        [batch], CommitPermit(context.pipeline, FIRST.epoch, CheckpointId(2), object(), FIRST.lineage)
    )
    files = sorted(Path(sink.place).glob("*.parquet"))
    assert [pq.read_schema(path).names for path in files] == [["k", "v", "w"]] * 3
    rows = pq.read_table(sink.place).to_pylist()
    assert sorted((row["k"], row["v"], row["w"]) for row in rows) == [(0, 0, None), (1, 5, "x"), (2, 2, None)]
