"""Publishing a two-phase table, without Spark: every batch visible exactly once, whatever crashes."""

from __future__ import annotations

import datetime
import errno
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dagster_ckpt.core.ids import BatchId, PipelineId
from dagster_ckpt.errors import Corrupt, Fenced, InvalidRequest, NotFound, Unavailable
from dagster_ckpt.spark.sink.committables import TableFile, read_committables
from dagster_ckpt.spark.sink.latest import latest_rows, replaced
from dagster_ckpt.spark.sink.phases import cut_of_sink
from dagster_ckpt.spark.sink.port import AlreadyPublished, Published
from dagster_ckpt.spark.table import buckets
from dagster_ckpt.spark.table.buckets import write_versions
from dagster_ckpt.spark.table.log import create_table, open_table
from dagster_ckpt.spark.table.publish import adopt
from dagster_ckpt.spark.table.records import (
    BUCKET_COLUMN,
    Append,
    Upsert,
)
from tests.spark.crashing import crashes_at_every_change
from tests.spark.table.tables import PIPELINE, Attempt, attempt_id, permit, publish_through, rows_of

MODES = [pytest.param(Append(), id="append"), pytest.param(Upsert(keys=("k",), buckets=3), id="upsert")]


def new_attempt(folder: Path, mode: Append | Upsert) -> Attempt:
    return Attempt(create_table(str(folder / "table"), pipeline=PIPELINE, mode=mode), folder / "stage")


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_invisible_until_their_checkpoint_is_published(
    tmp_path: Path, mode: Append | Upsert
) -> None:
    attempt = new_attempt(tmp_path, mode)
    attempt.batch([(1, 10), (2, 20)], [(3, 30)])
    attempt.batch([(4, 40)])
    cut = attempt.cut(1)
    attempt.batch([(5, 50)])
    assert rows_of(tmp_path / "table") == []
    published = attempt.publish(cut)
    assert isinstance(published, Published)
    assert (published.version, published.rows, published.files) == ("1", 4, 3)
    assert rows_of(tmp_path / "table") == [(1, 10), (2, 20), (3, 30), (4, 40)]
    assert attempt.publish(cut) == AlreadyPublished()
    assert rows_of(tmp_path / "table") == cut.rows


@pytest.mark.parametrize("mode", MODES)
def test_a_skipped_publish_is_made_up_by_the_next_one(tmp_path: Path, mode: Append | Upsert) -> None:
    attempt = new_attempt(tmp_path, mode)
    attempt.batch([(1, 1)])
    attempt.cut(1)
    attempt.batch([(2, 2)])
    attempt.publish(attempt.cut(2))
    assert rows_of(tmp_path / "table") == [(1, 1), (2, 2)]


def test_an_upsert_shows_the_latest_row_of_each_key_once(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Upsert(keys=("k",), buckets=2))
    attempt.batch([(k, 0) for k in range(10)])
    attempt.publish(attempt.cut(1))
    attempt.batch([(3, 1), (4, 1)])
    attempt.batch([(3, 2), (11, 2)])
    attempt.publish(attempt.cut(2))
    assert rows_of(tmp_path / "table") == sorted({**dict.fromkeys(range(10), 0), 3: 2, 4: 1, 11: 2}.items())
    names = sorted(path.name for path in (tmp_path / "table").glob("*.parquet"))
    assert names == ["part-bucket-00000.parquet", "part-bucket-00001.parquet"]
    assert pq.read_schema(tmp_path / "table" / names[0]).names == ["k", "v"]


def test_only_touched_buckets_are_rewritten(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Upsert(keys=("k",), buckets=4))
    attempt.batch([(k, 0) for k in range(8)])
    attempt.publish(attempt.cut(1))
    before = {path.name: path.stat().st_ino for path in (tmp_path / "table").glob("*.parquet")}
    attempt.batch([(2, 1)])
    attempt.publish(attempt.cut(2))
    after = {path.name: path.stat().st_ino for path in (tmp_path / "table").glob("*.parquet")}
    assert {name for name in after if after[name] != before[name]} == {"part-bucket-00002.parquet"}


def test_the_table_is_a_plain_dataset_for_any_reader(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Append())
    attempt.batch([(1, 10)], [(2, 20)])
    attempt.publish(attempt.cut(1))
    attempt.batch([(3, 30)])
    found = ds.dataset(tmp_path / "table", format="parquet").to_table().sort_by("k")
    assert found.to_pydict() == {"k": [1, 2], "v": [10, 20]}


def test_empty_batches_publish_nothing(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Append())
    attempt.batch()
    attempt.batch([])
    assert attempt.publish(attempt.cut(1)) == AlreadyPublished()
    assert open_table(str(tmp_path / "table")).state().head is None


@pytest.mark.parametrize("mode", MODES)
def test_a_publish_stopped_at_any_file_operation_is_finished_by_repeating_it(
    tmp_path: Path, mode: Append | Upsert
) -> None:
    attempt = new_attempt(tmp_path, mode)
    attempt.batch([(1, 1), (2, 1), (3, 1)])
    attempt.publish(attempt.cut(1))
    attempt.batch([(2, 2), (5, 2)], [(7, 2)])
    attempt.batch([(5, 3), (6, 3)])
    cut = attempt.cut(2)
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "table", saved)
    before = rows_of(saved)

    def prepare() -> None:
        shutil.rmtree(tmp_path / "table")
        shutil.copytree(saved, tmp_path / "table")

    for _ in crashes_at_every_change(tmp_path / "table", prepare, lambda: attempt.publish(cut)):
        halfway = rows_of(tmp_path / "table")
        assert set(halfway) <= set(before) | set(cut.rows)
        if isinstance(mode, Upsert):
            assert len({k for k, _ in halfway}) == len(halfway)
        attempt.publish(cut)
        assert rows_of(tmp_path / "table") == cut.rows
        assert attempt.publish(cut) == AlreadyPublished()


@pytest.mark.parametrize("mode", MODES)
def test_a_publish_stopped_half_way_is_finished_by_the_attempt_that_takes_over(
    tmp_path: Path, mode: Append | Upsert
) -> None:
    attempt = new_attempt(tmp_path, mode)
    attempt.batch([(1, 1)], [(2, 1)])
    cut = attempt.cut(1)
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "table", saved)

    def prepare() -> None:
        shutil.rmtree(tmp_path / "table")
        shutil.copytree(saved, tmp_path / "table")

    outcomes = set()
    for _ in crashes_at_every_change(tmp_path / "table", prepare, lambda: attempt.publish(cut)):
        adopt(attempt.table, attempt_id(2))
        outcomes.add(tuple(rows_of(tmp_path / "table")))
        follower = Attempt(attempt.table, attempt.stage_dir, epoch=2, next_batch=1)
        follower.publish(cut)
        assert rows_of(tmp_path / "table") == cut.rows
    assert outcomes == {(), tuple(cut.rows)}


def test_an_older_attempt_is_fenced_once_a_newer_one_took_the_table_over(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Append())
    attempt.batch([(1, 1)])
    cut = attempt.cut(1)
    adopt(attempt.table, attempt_id(2))
    with pytest.raises(Fenced, match="attempt 2 has taken it over"):
        attempt.publish(cut)
    with pytest.raises(Fenced):
        adopt(attempt.table, attempt_id(1))
    assert rows_of(tmp_path / "table") == []


def test_a_permit_of_another_pipeline_publishes_nothing(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Append())
    attempt.batch([(1, 1)])
    with pytest.raises(InvalidRequest, match="belongs to pipeline 'shop'"):
        publish_through(attempt.table, attempt.stage_dir, BatchId(0), permit(1, pipeline=PipelineId("other")))


@pytest.mark.parametrize("mode", MODES)
def test_a_staged_file_that_is_gone_is_named_and_nothing_is_published(
    tmp_path: Path, mode: Append | Upsert
) -> None:
    attempt = new_attempt(tmp_path, mode)
    attempt.batch([(1, 1)], [(2, 2)])
    cut = attempt.cut(1)
    victim = sorted((tmp_path / "table").rglob("1.parquet"))[0]
    victim.unlink()
    with pytest.raises(Corrupt, match=r"1\.parquet"):
        attempt.publish(cut)
    assert rows_of(tmp_path / "table") == []


def test_a_missing_committable_is_named(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Append())
    attempt.batch([(1, 1)])
    cut = attempt.cut(1)
    (attempt.stage_dir / "sink" / "prepared" / "0.json").unlink()
    with pytest.raises(Corrupt, match=r"0\.json"):
        read_committables(attempt.stage_dir, cut.snapshot.prepared)


def test_flushing_a_cut_finds_staged_and_published_files(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Append())
    attempt.batch([(1, 1)])
    batches = read_committables(attempt.stage_dir, attempt.cut(1).snapshot.prepared)
    attempt.sink.flush(batches)
    attempt.publish(attempt.cut(1))
    attempt.sink.flush(batches)
    next((tmp_path / "table").glob("part-*.parquet")).unlink()
    with pytest.raises(Corrupt, match="is gone"):
        attempt.sink.flush(batches)


def test_a_cut_names_the_head_and_what_is_prepared_and_not_published(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Append())
    assert attempt.cut(1).snapshot.prepared == ()
    attempt.batch([(1, 1)])
    attempt.batch([(2, 2)])
    first = attempt.cut(1)
    assert (first.snapshot.head, first.snapshot.prepared) == (None, (0, 1))
    attempt.publish(first)
    attempt.batch([(3, 3)])
    second = attempt.cut(2)
    assert (second.snapshot.head, second.snapshot.prepared) == (1, (2,))
    earlier = cut_of_sink(attempt.sink, attempt.stage_dir, BatchId(1)).snapshot
    assert earlier is not None
    assert earlier.prepared == ()


def test_a_table_belongs_to_one_pipeline_and_keeps_its_mode(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    with pytest.raises(NotFound):
        open_table(uri)
    create_table(uri, pipeline=PIPELINE, mode=Append())
    create_table(f"file://{uri}", pipeline=PIPELINE, mode=Append())
    with pytest.raises(InvalidRequest, match="belongs to pipeline 'shop'"):
        create_table(uri, pipeline=PipelineId("other"), mode=Append())
    with pytest.raises(InvalidRequest, match="was made as a table of all rows"):
        create_table(uri, pipeline=PIPELINE, mode=Upsert(keys=("k",)))


def test_a_folder_with_foreign_rows_or_on_an_object_store_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InvalidRequest, match=r"x\.parquet"):
        create_table(str(tmp_path), pipeline=PIPELINE, mode=Append())
    for uri in ("s3://bucket/table", "relative/table"):
        with pytest.raises(InvalidRequest, match="POSIX"):
            create_table(uri, pipeline=PIPELINE, mode=Append())


def test_merging_keeps_the_last_row_of_each_key_also_of_null_and_of_several_columns() -> None:
    rows = pa.table({"a": [1, 1, None, None, 2], "b": ["x", "x", "y", "y", None], "v": [1, 2, 3, 4, 5]})
    assert latest_rows(rows, ["a", "b"])["v"].to_pylist() == [2, 4, 5]
    assert latest_rows(rows, ["a"])["v"].to_pylist() == [2, 4, 5]


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (["a"], [1, 2, 3, 4, 5, None]),
        (["a"], ["", "x", "y", "z", None]),
        (["a"], [b"", b"x", b"y", None]),
        (["a"], [datetime.date(2024, 1, day) for day in range(1, 6)]),
        (["a"], [0.0, -0.0, float("nan"), 1.5, None]),
        (["a", "b"], [1, 2, None]),
    ],
    ids=["integer", "text", "binary", "date", "float", "two"],
)
def test_a_bucket_gets_the_rows_that_grouping_all_of_them_would_leave(
    keys: list[str], values: list[Any]
) -> None:
    chance = random.Random(7)
    schema = pa.table({"a": values}).schema.field("a").type
    for _ in range(200):
        parts = []
        for part in range(2):
            size = chance.randrange(8)
            columns = {
                "a": pa.array([chance.choice(values) for _ in range(size)], schema),
                "b": pa.array([chance.choice([1, None]) for _ in range(size)], pa.int64()),
                "v": pa.array([part * 100 + row for row in range(size)], pa.int64()),
            }
            parts.append(latest_rows(pa.table(columns), keys))
        expected = latest_rows(pa.concat_tables(parts), keys)
        assert replaced(*parts, keys)["v"].to_pylist() == expected["v"].to_pylist()


def test_a_publish_that_fails_half_way_leaves_no_files_of_its_own_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk would get fuller with every try."""
    attempt = new_attempt(tmp_path, Upsert(keys=("k",), buckets=4))
    attempt.batch([(k, 1) for k in range(8)])
    cut = attempt.cut(1)
    written: list[Path] = []

    def full(rows: pa.Table, path: Path, **how: Any) -> None:
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        pq.write_table(rows, path, **how)

    with monkeypatch.context() as patched:
        patched.setattr(buckets, "pq", SimpleNamespace(**{**vars(pq), "write_table": full}))
        with pytest.raises(Unavailable, match="Make room"):
            attempt.publish(cut)
    assert not [path for path in (tmp_path / "table").rglob("*") if path.name.startswith(".tmp-")]
    attempt.publish(cut)
    assert rows_of(tmp_path / "table") == cut.rows


def test_a_column_that_cannot_be_a_key_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="cannot be a key"):
        latest_rows(pa.table({"a": [[1], [2]]}), ["a"])


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    attempt = new_attempt(tmp_path, Append())
    (tmp_path / "table" / "_dagster_ckpt" / "state.json").write_text('{"format_version": 9}')
    with pytest.raises(Corrupt, match=r"state\.json"):
        attempt.cut(1)


def test_a_column_that_was_never_null_may_be_dropped_again(tmp_path: Path) -> None:
    old = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("new", pa.string(), nullable=False)])
    pq.write_table(pa.table({"k": [1], "new": ["x"]}, schema=old), tmp_path / "base.parquet")
    pq.write_table(pa.table({"k": [2], BUCKET_COLUMN: [0]}), tmp_path / "staged.parquet")
    write_versions(
        tmp_path,
        Upsert(keys=("k",), buckets=1),
        files=[TableFile(name="a", staged="staged.parquet", rows=1, bytes=1)],
        bases={0: tmp_path / "base.parquet"},
        targets={0: tmp_path / "next.parquet"},
    )
    assert pq.read_table(tmp_path / "next.parquet").to_pylist() == [
        {"k": 1, "new": "x"},
        {"k": 2, "new": None},
    ]
