"""Tables of one REST catalog change at one moment, where the catalog carries out all of a request or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from dagster_ckpt.ext.iceberg.lake import Outside
from dagster_ckpt.ext.iceberg.sink import IcebergSink
from dagster_ckpt.ext.iceberg.target import IcebergTable
from dagster_ckpt.spark.sink.port import Sink, SinkContext
from dagster_ckpt.testing import Staging
from dagster_ckpt.testing.sinks.run import AtStep, Row, SinkRun, Step
from dagster_ckpt.testing.sinks.together import TogetherContract, publish
from tests.ext.iceberg.rest_catalog import RestCatalog, Together, rest_catalog


class OfARestCatalog(TogetherContract):
    """Each test's folder is a namespace."""

    changes_together = True

    @pytest.fixture(autouse=True)
    def catalog(self, tmp_path: Path) -> Iterator[None]:
        with rest_catalog(tmp_path, f"file://{tmp_path}/lake") as (address, behind):
            self.behind: RestCatalog = behind
            self.settings = {"type": "rest", "uri": address}
            behind.together = Together.WHOLE
            yield

    def open(self, context: SinkContext) -> Sink:
        space = context.table_dir.parents[1].name
        return IcebergSink(IcebergTable(f"s{space}.{context.name}", catalog=self.settings), context)

    def rows(self, place: str) -> list[Row]:
        try:
            table = load_catalog("default", **self.settings).load_table(place.partition("#")[2])
        except NoSuchTableError:
            return []
        found = table.scan(selected_fields=("k", "v")).to_arrow()
        return list(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))

    def staging(self, sink: Sink, context: SinkContext) -> Staging:
        assert isinstance(sink, IcebergSink)
        return Staging(sink.staged.root, sink.staged.folder(context.attempt().epoch))


class TestTablesOfOneRestCatalog(OfARestCatalog):
    def steps(self) -> Sequence[Step]:
        return [(Outside, "commit"), (Outside, "commit_together")]

    def test_tables_that_others_change_meanwhile_are_read_again(self, tmp_path: Path) -> None:
        pair = self._pair(tmp_path / "0")
        self._published(pair, 1)
        commits = self.behind.commits

        def somebody() -> None:
            table = load_catalog("default", **self.settings).load_table(pair[1].sink.place.partition("#")[2])
            table.append(table.scan().to_arrow())

        pair[0].batch([(2, 2)])
        pair[1].batch([(2, -2)])
        with AtStep(1, somebody).among([(Outside, "commit_together")]):
            publish(pair, 2)
        assert self.behind.commits == commits + 2, "theirs, and one request of ours"
        assert self._both(pair) == [[(1, 1), (2, 2)], [(1, -1), (1, -1), (2, -2)]]

    def _published(self, pair: tuple[SinkRun, SinkRun], number: int) -> None:
        pair[0].batch([(number, number)])
        pair[1].batch([(number, -number)])
        publish(pair, number)


class TestACatalogThatOnlySaysSo(OfARestCatalog):
    @pytest.mark.parametrize(
        ("serves", "told"),
        [
            (Together.IN_PART, "carries out a part of a request: its tables are changed one after the other"),
            (Together.NOT_SERVED, "does not serve it"),
        ],
    )
    def test_it_is_told_and_its_tables_change_one_after_the_other(
        self, tmp_path: Path, serves: Together, told: str
    ) -> None:
        self.behind.together = serves
        pair = self._pair(tmp_path / "0")
        for number in (1, 2):
            pair[0].batch([(number, number)])
            pair[1].batch([(number, -number)])
            publish(pair, number)
        joint = pair[0].sink.joint
        assert joint is not None
        assert told in joint.why_apart
        assert self._both(pair) == [[(1, 1), (2, 2)], [(1, -1), (2, -2)]]
        for run in pair:
            table = load_catalog("default", **self.settings).load_table(run.sink.place.partition("#")[2])
            assert "dagster_ckpt.probe" not in table.properties

    def test_a_catalog_that_does_not_name_it_is_not_asked(self, tmp_path: Path) -> None:
        self.behind.together = Together.NOT_NAMED
        assert self.begun(tmp_path / "0").sink.joint is None


def _without(of: type, kept: Callable[[str], bool]) -> None:
    for name in [name for name in dir(of) if name.startswith("test_") and not kept(name)]:
        setattr(of, name, None)


_without(TestACatalogThatOnlySaysSo, lambda name: name in vars(TestACatalogThatOnlySaysSo))
