"""The contract of sinks on Delta tables in an object store: staged locally, uploaded when flushed."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable as Reader
from deltalake.exceptions import TableNotFoundError

from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ext.delta.sink import DeltaSink
from dagster_ckpt.ext.delta.target import DeltaTable
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.spark.sink.table_files import STAGED
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

    @pytest.mark.parametrize("key", [("k",)])
    def test_a_checkpoint_asks_for_the_log_as_often_however_many_were_before(
        self, tmp_path: Path, key: tuple[str, ...]
    ) -> None:
        with s3_proxy_process() as server:
            self.reach(server)
            run = self.begun(tmp_path, key=key)
            for number in range(1, 200):
                run.batch([(1, number)])
                before = len(seen_by(server))
                run.sink.position()  # of the cut
                run.publish(number)
                asked = [path for _, path in seen_by(server)[before:] if "_delta_log" in path]
                snaps = globals().setdefault("SN", []); snaps.append(run.cut(number).cut.snapshot)
                mid = len(seen_by(server))
                run.sink.collect_garbage(snaps[-3:], [])
                new = seen_by(server)[mid:]
                log = globals().setdefault("LG", [])
                log.append(len(asked) + len([p for _, p in new if "_delta_log" in p]))
                if len(new) > 3: print("REQ", key, number, len(asked), len(new), log[-1], "sum since 3", sum(log[2:]), "mean", sum(log[2:])/max(1,number-2), flush=True)


for _name in [name for name in dir(Local) if name.startswith("test_") and name not in ON_THE_WIRE]:
    setattr(TestDeltaSinkInAnObjectStore, _name, None)
del Local
