"""A reader that sums over two tables while processes are killed: it never finds them at two checkpoints."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from dagster_ckpt.errors import InvalidRequest
from dagster_ckpt.ext.sql.sink import SqlSink
from dagster_ckpt.ext.sql.target import SqlTable
from dagster_ckpt.spark.sink.port import in_one_step
from dagster_ckpt.testing.sinks.run import context_in
from tests.ext.sql.tables import FIRST, LONGS, permit, staged
from tests.progress import wait_until
from tests.root import ROOT

WRITER = """
import sys
from dataclasses import replace
from pathlib import Path

from dagster_ckpt.ext.sql.target import SqlTable
from dagster_ckpt.core.ids import CheckpointId, CoordinatorEpoch, PipelineId
from dagster_ckpt.core.messages import CommitPermit
from dagster_ckpt.ext.sql.sink import SqlSink
from dagster_ckpt.spark.sink.port import AttemptId, in_one_step
from dagster_ckpt.testing.sinks.run import context_in
from tests.ext.sql.tables import LONGS, staged

folder, attempt = Path(sys.argv[1]), AttemptId("first", CoordinatorEpoch(int(sys.argv[2])))
contexts = [context_in(folder / str(attempt.epoch), attempt, name=name, key=("k",)) for name in ("debits", "credits")]
sinks = [SqlSink(SqlTable(f"sqlite:///{folder}/bank.db", keep_before_images=True), context) for context in contexts]
for sink in sinks:
    sink.take_over()
shown = sinks[0].position().through_batch
for number in range(0 if shown is None else shown + 1, 1_000_000):
    permit = CommitPermit(PipelineId("shop"), attempt.epoch, CheckpointId(number + 1), object(), lineage="first")
    batches = [
        staged(context.work_dir, number, LONGS, [(key, sign * number * key) for key in range(number % 7 + 1)])
        for context, sign in zip(contexts, (1, -1), strict=True)
    ]
    in_one_step(sinks, lambda: [sink.publish([batch], permit) for sink, batch in zip(sinks, batches, strict=True)])
"""
SUM = "SELECT (SELECT count(*) FROM debits), (SELECT sum(v) FROM debits) + (SELECT sum(v) FROM credits)"
SEEN = "SELECT max(head), min(head) FROM dagster_ckpt_positions"


@pytest.mark.slow
def test_sums_over_two_tables_are_of_one_checkpoint_through_kills(tmp_path: Path) -> None:
    database = tmp_path / "bank.db"
    looks = 0

    def looked(until: int) -> bool:
        """Read once; True when that many checkpoints are shown."""
        nonlocal looks
        if not database.exists():
            return False
        # Not mode=ro: who comes after a killed writer rolls its transaction back first.
        with closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True, timeout=60)) as connection:
            connection.execute("BEGIN")
            try:
                newest, oldest = connection.execute(SEEN).fetchone()
                assert newest == oldest
                rows, difference = connection.execute(SUM).fetchone()
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    raise
                return False
        looks += bool(rows)
        assert difference in (0, None)
        return (newest or 0) >= until

    for epoch in range(1, 6):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(epoch)], cwd=ROOT)
        wait_until(lambda until=epoch * 10: looked(until), f"checkpoint {epoch * 10} is shown")
        process.send_signal(signal.SIGKILL)
        process.wait()
        looked(0)
    assert looks


def test_a_foreign_key_between_two_tables_is_compared_when_both_are_written(
    postgres_url: str, tmp_path: Path
) -> None:
    contexts = [context_in(tmp_path, FIRST, name=name, key=("k",)) for name in ("orders", "customers")]
    orders, customers = [SqlSink(SqlTable(postgres_url), context) for context in contexts]
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE customers (k BIGINT PRIMARY KEY, v BIGINT)")
        of_customer = "v BIGINT CONSTRAINT known REFERENCES customers DEFERRABLE"
        connection.exec_driver_sql(f"CREATE TABLE orders (k BIGINT PRIMARY KEY, {of_customer})")
    engine.dispose()
    batches = [staged(context.work_dir, 0, LONGS, [(7, 7)]) for context in contexts]
    with pytest.raises(InvalidRequest, match="FOREIGN KEY known"):
        orders.publish(batches[:1], permit(1))
    both = list(zip((orders, customers), batches, strict=True))
    in_one_step([orders, customers], lambda: [sink.publish([batch], permit(1)) for sink, batch in both])
    assert (
        orders.rows().to_arrow().to_pylist() == customers.rows().to_arrow().to_pylist() == [{"k": 7, "v": 7}]
    )
