"""A deployment without a disk that lasts: PostgreSQL, an object store, and machines that come and go."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy
from deltalake import DeltaTable as Delta
from deltalake.exceptions import TableNotFoundError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    spark_sink,
)
from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.sinks import DeltaTable, IcebergTable, SqlTable
from tests.adapters.clouds import AzureServer, GoogleServer
from tests.adapters.servers import PostgresCluster, S3Server
from tests.lab.pipelines import reads, sink, stage, wired
from tests.records import stored_record
from tests.spark.epoch.small_pipeline import ORDERS, Feed
from tests.spark.lake.object_stores import STORES, ObjectStore, new_store

NAME = PipelineId("orders")


@dataclass(frozen=True)
class Places:
    """All that lasts, and the source: what a new machine is told."""

    feed: str
    database: str
    kind: str
    """Of object store."""
    bucket: str
    endpoint: str
    work_dir: str = ""
    """In the bucket; empty: on each machine's disk."""

    @classmethod
    def new(
        cls, feed: Path, postgres: PostgresCluster, server: S3Server | AzureServer | GoogleServer
    ) -> Places:
        return cls(str(feed), postgres.new_database(), *new_store(server))

    @property
    def objects(self) -> ObjectStore:
        return STORES[self.kind](self.bucket, self.endpoint)

    @property
    def all_in_the_bucket(self) -> Places:
        """The same with the working directory in the object store too."""
        return replace(self, work_dir=f"{self.objects.root}/work")

    @classmethod
    def read(cls, text: str) -> Places:
        return cls(**json.loads(text))

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))

    def coordinator(self, machine: Path, **settings: Any) -> CheckpointCoordinatorResource:
        """Return the settings on a machine whose only folder is ``machine``."""
        return CheckpointCoordinatorResource(
            store_url=self.database,
            checkpoint_dir=f"{self.objects.root}/checkpoints",
            savepoint_dir=f"{self.objects.root}/savepoints",
            storage_options=self.objects.options,
            work_dir=self.work_dir or str(machine / "work"),
            table_dir=str(machine / "tables"),
            snapshot_retry_delay=0.1,
            **{"concurrent_runs": "take_over", **settings},  # the lease of a killed run is not over
        )

    @property
    def connector(self) -> dict[str, str]:
        """Settings of Spark's own connector to the bucket, which writes state."""
        return self.objects.connector

    def record(self, machine: Path) -> CoordinatorRecord:
        with closing(self.coordinator(machine).store()) as store:
            return stored_record(store, NAME)

    # --- the pipeline -----------------------------------------------------------------------------------------

    @property
    def _catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": self.database.replace("postgresql://", "postgresql+psycopg://"),
            "warehouse": f"{self.objects.root}/warehouse",
            **self.objects.iceberg,
        }

    @property
    def _lines(self) -> DeltaTable | IcebergTable:
        delta = self.objects.delta
        if delta is None:
            return IcebergTable("db.lines", catalog=self._catalog)
        return DeltaTable(f"{self.objects.root}/lake/lines", storage_options=delta)

    def pipeline(self, **checkpointing: Any) -> CheckpointedPipeline:
        """orders → lines (Delta, where the store can), totals (Iceberg, one row a customer), bills (a database)."""
        folder = Path(self.feed) / "orders"

        @spark_sink(key=["customer"], to=IcebergTable("db.totals", catalog=self._catalog))
        def totals(orders):  # type: ignore[no-untyped-def]
            sums = orders.groupBy("customer").agg({"number": "count", "amount": "sum"})
            return sums.toDF("customer", "orders", "amount")

        return wired(
            NAME,
            reads("orders", ORDERS, folder, at_once=1),
            sink("lines", lambda orders: orders.select("number", "customer"), to=self._lines),
            totals,
            sink(
                "bills",
                lambda orders: orders.select("number", "amount"),
                to=SqlTable(self.database, "bills", keep_before_images=True),
            ),
            checkpointing=checkpointing,
        )

    def stateless(self) -> CheckpointedPipeline:
        """orders → checked (a channel) → lines (Delta), bills (a database)."""
        folder = Path(self.feed) / "orders"

        return wired(
            NAME,
            reads("orders", ORDERS, f"file://{folder}", at_once=1),
            stage("checked", lambda orders: orders.where("amount >= 0")),
            sink("lines", lambda checked: checked.select("number", "customer"), to=self._lines),
            sink(
                "bills",
                lambda checked: checked.select("number", "amount"),
                to=SqlTable(self.database, "bills", keep_before_images=True),
            ),
            checkpointing={"operator_chaining": False},
        )

    def keys(self, prefix: str) -> list[str]:
        """Return what is in the bucket below a prefix."""
        return [found.key for found in open_storage(self.objects.root, **self.objects.options).list(prefix)]

    # --- what readers find ------------------------------------------------------------------------------------

    def lines(self) -> Counter[tuple[Any, ...]]:
        if self.objects.delta is None:
            return Counter((row["number"], row["customer"]) for row in self._rows_of("db.lines"))
        try:
            table = Delta(
                f"{self.objects.root}/lake/lines", storage_options=self.objects.delta
            ).to_pyarrow_table()
        except TableNotFoundError:
            return Counter()
        return Counter((row["number"], row["customer"]) for row in table.to_pylist())

    def totals(self) -> Counter[tuple[Any, ...]]:
        rows = self._rows_of("db.totals")
        return Counter((row["customer"], row["orders"], row["amount"]) for row in rows)

    def _rows_of(self, name: str) -> list[dict[str, Any]]:
        catalog = SqlCatalog("default", **self._catalog)
        try:
            return list(catalog.load_table(name).scan().to_arrow().to_pylist())
        except (NoSuchTableError, NoSuchNamespaceError):
            return []
        finally:
            catalog.engine.dispose()

    def bills(self) -> Counter[tuple[Any, ...]]:
        engine = sqlalchemy.create_engine(
            self.database.replace("postgresql://", "postgresql+psycopg://"), poolclass=sqlalchemy.NullPool
        )
        with engine.connect() as connection:
            if not sqlalchemy.inspect(connection).has_table("bills"):
                return Counter()
            rows = connection.exec_driver_sql("SELECT number, amount FROM bills").all()
        return Counter((row.number, row.amount) for row in rows)

    def shown(self) -> dict[str, Counter[tuple[Any, ...]]]:
        return {"lines": self.lines(), "totals": self.totals(), "bills": self.bills()}

    def shows(self, wanted: Mapping[str, Counter[tuple[Any, ...]]]) -> bool:
        """Tell whether the tables named hold just that; those of the bucket are read once the database is as wanted."""
        readers = {"bills": self.bills, "lines": self.lines, "totals": self.totals}
        return all(read() == wanted[name] for name, read in readers.items() if name in wanted)


def truth(feed: Feed) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return what the tables hold once everything is published, computed without Spark."""
    orders = feed.orders
    customers = {order["customer"] for order in orders}
    amounts = {who: [order["amount"] for order in orders if order["customer"] == who] for who in customers}
    return {
        "lines": Counter((order["number"], order["customer"]) for order in orders),
        "totals": Counter((who, len(given), sum(given)) for who, given in amounts.items()),
        "bills": Counter((order["number"], order["amount"]) for order in orders),
    }
