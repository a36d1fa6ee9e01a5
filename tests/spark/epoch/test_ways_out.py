"""Rows that only their target can refuse: every run says the way out, and the way out leads on."""

from __future__ import annotations

import json
import runpy
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from dagster_ckpt import CheckpointError, run_epoch
from dagster_ckpt.cli.app import main
from tests.lab.lab import failure_text

CODE = """
from pathlib import Path

from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource, build_pipeline_definitions
from dagster_ckpt import checkpointed_pipeline, spark_sink, spark_source
from dagster_ckpt.sinks import SqlTable

HERE = Path(__file__).parent


@spark_source
def read(spark):
    return spark.readStream.schema("id INT, amount INT").json(f"file://{HERE}/feed")


@spark_sink(to=SqlTable(f"sqlite:///{HERE}/shop.db", "orders", keep_before_images=True))
def orders(read):
    return read


@checkpointed_pipeline(name="till")
def till():
    orders(read())


coordinator = CheckpointCoordinatorResource(base_dir=str(HERE / "lab"))
defs = build_pipeline_definitions(till, coordinator=coordinator, spark=SparkSessionResource())
"""


class Till:
    """A shop whose own table refuses amounts of 100 and more."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder, self.spark = folder, spark
        self.code = folder / "till_code.py"
        self.code.write_text(CODE)
        (folder / "feed").mkdir()
        self.execute("CREATE TABLE orders (id INTEGER, amount INTEGER CHECK (amount < 100))")
        self._names = runpy.run_path(str(self.code))

    def reload(self) -> None:
        """Run the code of the last command from now on."""
        self._names = runpy.run_path(str(self.code))

    def execute(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            return connection.execute(statement).fetchall()

    def shown(self) -> list[Any]:
        return self.execute("SELECT id, amount FROM orders ORDER BY id")

    def feed(self, *rows: tuple[int, int]) -> None:
        text = "\n".join(json.dumps({"id": number, "amount": amount}) for number, amount in rows)
        (self.folder / "feed" / f"{rows[0][0]}.json").write_text(text)

    def run(self, **restore: Any) -> str:
        """Run an epoch and return why it failed; empty: it did not."""
        try:
            run_epoch(
                self._names["till"],
                coordinator=self._names["coordinator"],
                spark=self.spark,
                restore=restore or None,
            )
        except CheckpointError as error:
            return str(error)
        return ""

    def job(self, name: str, **config: Any) -> str:
        """Run a job of the pipeline in Dagster and return why it failed; empty: it did not."""
        job = self._names["defs"].resolve_job_def(name)
        ops = {op: {"config": given} for op, given in config.items()}
        with dg.DagsterInstance.ephemeral() as instance:
            done = job.execute_in_process(run_config={"ops": ops}, instance=instance, raise_on_error=False)
        return "" if done.success else failure_text(done)

    def command(
        self, *words: str, code: int = 0, with_code: bool = True, named: str = "orders", uid: str = "orders"
    ) -> Any:
        """Return the JSON that a command of ``dagster-ckpt`` answers with; its code names table and sink so."""
        source = CODE.replace('"orders",', f'"{named}",')
        if uid != "orders":
            source = source.replace("orders(read", f"{uid}(read")
            source = source.replace("spark_sink(to", 'spark_sink(previous_uids=["orders"], to')
        self.code.write_text(source)
        sys.modules.pop(self.code.stem, None)  # it is loaded once a process
        where = ["-f", str(self.code)] if with_code else []
        given = [*words, *where, "--base", str(self.folder / "lab"), "--json"]
        result = CliRunner().invoke(main, given)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)


@pytest.fixture
def till(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Till:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Till(tmp_path, spark)


def test_rows_that_a_check_of_the_database_refuses_are_shown_set_aside_and_gone_on_without(
    till: Till,
) -> None:
    """A constraint of the user's own refused a complete checkpoint's rows at every run, also with mended code."""
    till.feed((1, 10), (2, 20))
    assert till.run() == ""
    assert till.command("set-aside", "till")["waiting"] == []
    till.feed((3, 30), (4, 400))
    way_out = "dagster-ckpt set-aside till --sink orders"
    for _ in range(2):
        assert way_out in till.run()
    [waits] = till.command("set-aside", "till")["waiting"]
    assert (waits["sink"], waits["rows"], waits["checkpoint_id"]) == ("orders", 2, 3)
    assert "CHECK" in waits["why"]
    assert waits["examples"] == [["3", "30"], ["4", "400"]]
    elsewhere = "has none of the rows that were published: they are in"
    for act in ("set-aside", "publish"):
        assert elsewhere in till.command(act, "till", code=2, named="elsewhere")["error"]["message"]
    still = till.command("publish", "till", code=1)
    assert [one["sink"] for one in still["waiting"]] == ["orders"]
    assert till.shown() == [(1, 10), (2, 20)]

    till.command("set-aside", "till", "--yes")
    till.feed((5, 50))
    assert till.run() == ""
    assert till.shown() == [(1, 10), (2, 20), (5, 50)]
    files = list(
        (till.folder / "lab" / "tables" / "till" / ".set_aside" / "till" / "orders").glob("*.parquet")
    )
    kept = [(row["id"], row["amount"]) for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(kept) == [(3, 30), (4, 400)]
    [noted] = [
        row for row in till.command("audit", "-p", "till", with_code=False) if row["what"] == "set aside"
    ]
    assert noted["uri"].endswith(".set_aside/till")
    shown = CliRunner().invoke(main, ["show", "chk-5", "--base", str(till.folder / "lab")]).output
    assert "2 rows of sink orders are set aside" in " ".join(shown.split())

    assert way_out in till.run(restore_from="chk-4"), "the rows are that checkpoint's"
    [waits] = till.command("set-aside", "till")["waiting"]
    assert waits["examples"] == [["3", "30"], ["4", "400"]], (
        "of the checkpoint: there is no directory any more"
    )
    assert elsewhere in till.command("set-aside", "till", code=2, named="elsewhere")["error"]["message"]
    unknown = till.job("till_savepoint", savepoint={"action": "checkpoint", "set_aside": ["order"]})
    assert "has no sink 'order' to set rows aside of: it has orders" in unknown
    assert till.job("till_savepoint", savepoint={"action": "checkpoint", "set_aside": ["orders"]}) == ""
    till.feed((6, 60))
    assert till.run() == ""
    assert till.shown() == [(1, 10), (2, 20), (5, 50), (6, 60)]


@pytest.mark.parametrize("uid", ["orders", "sales"])
def test_rows_that_wait_are_published_once_what_refused_them_is_mended(till: Till, uid: str) -> None:
    """Those of a sink that was renamed meanwhile were looked for by its new name, and said not to wait."""
    till.feed((1, 400))
    assert "CHECK" in till.run()
    till.execute("DROP TABLE orders")
    till.execute("CREATE TABLE orders (id INTEGER, amount INTEGER)")
    [waits] = till.command("set-aside", "till", uid=uid)["waiting"]
    assert (waits["sink"], waits["examples"]) == (uid, [["1", "400"]])
    done = till.command("publish", "till", uid=uid)
    assert (len(done["waited"]), done["waiting"]) == (1, [])
    assert till.shown() == [(1, 400)]
    till.feed((2, 20))
    till.reload()
    assert till.run() == ""
    assert till.shown() == [(1, 400), (2, 20)]
