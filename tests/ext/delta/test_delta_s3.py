"""The contract of sinks on Delta tables in an object store: staged locally, uploaded when flushed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Reader
from deltalake import write_deltalake
from deltalake.exceptions import TableNotFoundError

from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ext.delta import lake
from dagster_ckpt.ext.delta.remote import open_store
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.ext.tables.staged_files import STAGED
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import Staging
from dagster_ckpt.testing.sinks.run import Row
from tests.adapters.s3_proxy import s3_proxy_process, seen_by
from tests.adapters.servers import S3Server
from tests.ext.delta.test_delta_contract import TestDeltaSink as Local

ON_THE_WIRE = {
    "test_a_checkpoint_makes_all_its_batches_visible",
    "test_nothing_of_an_older_attempt_appears_after_a_newer_one_took_over",
    "test_staged_rows_that_are_gone_are_named_and_nothing_is_published",
    "test_rows_leave_down_to_a_cut_and_come_back_with_a_later_one",
    "test_a_fork_begins_with_the_rows_of_a_cut_and_the_origin_keeps_its_own",
    "test_what_an_aborted_attempt_staged_is_removed",
    "test_the_last_row_of_a_key_wins",
}
"""The whole contract passes there too, in two minutes; these are what another store can change."""

MOST_REQUESTS = 10
"""For a table's log, in a checkpoint without a clean-up."""


class TestDeltaSinkInAnObjectStore(Local):
    @pytest.fixture(autouse=True)
    def bucket(self, s3_apart: S3Server) -> None:
        self.reach(s3_apart)

    def reach(self, server: S3Server) -> None:
        self.base = f"s3://{server.new_bucket()}"
        self.options = {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "max_retries": "1",
        }

    def open(self, context: SinkContext) -> Sink:
        folder = context.table_dir.as_posix().strip("/").replace("/", "-")  # a table for each test's folder
        target = DeltaTable(f"{self.base}/{folder}/{context.name}", storage_options=self.options)
        return DeltaSink(target, context)

    def rows(self, place: str) -> list[Row]:
        try:
            found = Reader(place, storage_options=self.options).to_pyarrow_table(columns=["k", "v"])
        except TableNotFoundError:
            return []
        return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))

    def staging(self, sink: Sink, context: SinkContext) -> Staging:
        area = context.work_dir / STAGED / context.pipeline / context.uid
        return Staging(context.work_dir, area / str(context.attempt().epoch))

    def test_staged_rows_that_are_gone_are_named_and_nothing_is_published(self, tmp_path: Path) -> None:
        run = self.begun(tmp_path)
        run.batch([(1, 1)])
        run.publish(1)
        gone = run.batch([(2, 2)])
        sink = run.sink
        assert isinstance(sink, DeltaSink)
        assert not (run.context.work_dir / gone.files[0].staged).parent.exists()
        assert [folder.batch_id for folder in sink.staged.folders()] == [0, 1]
        assert sink.collect_garbage([], [gone]) == 0
        store, path = sink.staged.remote(gone.files[0].staged)
        store.delete_file(path)
        with pytest.raises(Corrupt, match=Path(gone.files[0].staged).name):
            run.publish(2)
        assert self.shown(run) == [(1, 1)]

    @pytest.mark.parametrize(("key", "is_slow"), [((), False), (("k",), True)])
    def test_a_checkpoint_asks_for_the_log_as_often_however_many_were_before(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...], is_slow: bool
    ) -> None:
        monkeypatch.setattr(lake, "_FRESH", 0.0 if is_slow else 3600.0)
        with s3_proxy_process() as server:
            self.reach(server)
            run = self.begun(tmp_path, key=key)
            for number in range(1, 10):
                run.batch([(1, number)])
                before = len(seen_by(server))
                run.sink.position()  # of the cut
                run.publish(number)
                asked = seen_by(server)[before:]
                of_log = [path for _, path in asked if "_delta_log" in path]
                assert number < 3 or len(of_log) <= (MOST_REQUESTS if is_slow else 8), of_log
                assert number < 3 or len(asked) - len(of_log) <= (3 if key else 1), asked
                run.sink.collect_garbage([run.cut(number).cut.snapshot], [])

    @pytest.mark.parametrize("since", ["its commit", "its cut"])
    def test_a_log_that_was_put_back_and_grown_to_its_number_is_not_gone_on_from(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: str
    ) -> None:
        monkeypatch.setattr(lake, "_FRESH", 0.0)
        run = self.published(tmp_path, *([(number, 10 * number)] for number in range(1, 5)))
        place = run.sink.place
        newest = Reader(place, storage_options=self.options).version()
        run.batch([(5, 50)])
        if since == "its cut":
            run.sink.position()
        store, folder = open_store(place, self.options)
        for number in (newest - 1, newest):
            store.delete_file(f"{folder}/_delta_log/{number:020d}.json")
        for value in (-1, -2):
            theirs = pa.table({"k": [value], "v": [value]})
            write_deltalake(place, theirs, mode="append", storage_options=self.options)
        assert Reader(place, storage_options=self.options).version() == newest
        run.publish(5)
        assert sorted(self.rows(place)) == [(-2, -2), (-1, -1), *((n, 10 * n) for n in range(1, 6))]


for _name in [name for name in dir(Local) if name.startswith("test_") and name not in ON_THE_WIRE]:
    setattr(TestDeltaSinkInAnObjectStore, _name, None)
del Local
