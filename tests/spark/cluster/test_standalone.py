"""Epochs on a standalone cluster: its executors are proven, sent this package, and their rows are counted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dagster_ckpt.version import __version__
from tests.spark.cluster.driver_process import Driver
from tests.spark.cluster.standalone import StandaloneCluster
from tests.spark.epoch.small_pipeline import Feed, read_lines, read_totals
from tests.sweeps import third
from tests.tables import rows_in

ALONE = {"spark.cores.max": "1"}
"""One executor: each is a JVM to start, and what this one finds a second one would find too."""


@pytest.mark.nightly
def test_an_epoch_on_executors_without_this_package_goes_on_from_the_one_before(
    driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    lab = tmp_path / "lab"
    first = driver.run(feed, lab)
    assert first["said"].endswith("shop/chk-1"), first
    assert first["probed"] == 2
    assert read_lines(lab / "tables" / "shop") == feed.expected_lines()

    feed.order(("ann", 3), ("bob", 4))
    none_at_first = {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.minExecutors": "0"}
    second = driver.run(feed, lab, conf=none_at_first)
    assert second["said"].endswith("shop/chk-2"), second
    assert second["probed"] >= 1
    assert read_lines(lab / "tables" / "shop") == feed.expected_lines()
    assert read_totals(lab / "tables" / "shop") == feed.expected_totals()


def test_without_the_package_executors_are_refused_before_the_first_query(
    driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    answer = driver.run(feed, tmp_path / "lab", ship=False, conf=ALONE)
    assert answer["failed"] == "InvalidRequest"
    assert "cannot import dagster_ckpt with " in answer["said"]
    assert "set ship_package on the Spark resource" in answer["said"]
    assert not list((tmp_path / "lab" / "work").glob("shop/attempt-*/*/query"))
    assert not list((tmp_path / "lab").rglob(".probe-*"))


@pytest.mark.nightly
def test_another_version_on_executors_is_refused_and_what_is_sent_comes_before_it(
    driver: Driver, cluster: StandaloneCluster, feed: Feed, tmp_path: Path
) -> None:
    old = cluster.site_packages / "dagster_ckpt"
    old.mkdir()
    (old / "__init__.py").write_text('__version__ = "0.0.1"\n')
    try:
        answer = driver.run(feed, tmp_path / "lab", ship=False, conf=ALONE)
        assert f"has dagster_ckpt 0.0.1 and the driver {__version__}" in answer["said"]
        assert driver.run(feed, tmp_path / "lab", conf=ALONE)["said"].endswith("shop/chk-1")
    finally:
        shutil.rmtree(old)
    assert read_lines(tmp_path / "lab" / "tables" / "shop") == feed.expected_lines()


@pytest.mark.nightly
def test_executors_without_pyarrow_are_refused(
    driver: Driver, cluster: StandaloneCluster, feed: Feed, tmp_path: Path
) -> None:
    arrow = cluster.site_packages / "pyarrow"
    behind = arrow.readlink()
    arrow.unlink()
    try:
        answer = driver.run(feed, tmp_path / "lab", conf=ALONE)
    finally:
        arrow.symlink_to(behind)
    assert answer["failed"] == "InvalidRequest"
    assert "has no pyarrow that PySpark can use with " in answer["said"]


@pytest.mark.nightly
def test_a_python_that_executors_do_not_have_is_told(driver: Driver, feed: Feed, tmp_path: Path) -> None:
    answer = driver.run(feed, tmp_path / "lab", conf={**ALONE, "spark.pyspark.python": "python9"})
    assert answer["failed"] == "InvalidRequest"
    assert answer["said"].startswith(
        "Spark starts 'python9' on this machine too, to plan what stages read, and it "
    )


@pytest.mark.parametrize("place", third(["work_dir", "table_dir"]))
def test_a_folder_that_is_another_disk_to_executors_is_refused(
    driver: Driver, cluster: StandaloneCluster, feed: Feed, tmp_path: Path, place: str
) -> None:
    elsewhere = {place: str(cluster.private / tmp_path.name)}
    answer = driver.run(feed, tmp_path / "lab", coordinator=elsewhere, conf=ALONE)
    assert answer["failed"] == "InvalidRequest"
    assert f"does not see what the driver has written to {place} (" in answer["said"]
    assert f"give {place} a folder that every machine mounts under the same path" in answer["said"]


CHANNELS = {"pipeline": "shop", "place": "work_dir"}


@pytest.mark.parametrize(
    "how",
    third(
        [
            CHANNELS,
            {**CHANNELS, "stream": True},
            *({"pipeline": kind, "place": "table_dir"} for kind in ("delta", "iceberg")),
            {"pipeline": "parquet", "place": "table_dir", "stream": True},
        ],
        history=1,
    ),
    ids=lambda how: "-".join(map(str, how.values())),
)
def test_rows_on_another_disk_fail_the_run_without_a_probe_too(
    driver: Driver, cluster: StandaloneCluster, feed: Feed, tmp_path: Path, how: dict[str, Any]
) -> None:
    elsewhere = cluster.private / tmp_path.name
    place, how = how["place"], {name: value for name, value in how.items() if name != "place"}
    where = {place: str(elsewhere)}
    answer = driver.run(feed, tmp_path / "lab", probe=False, coordinator=where, conf=ALONE, **how)
    assert answer["failed"] == ("Declined" if "stream" in how else "Unavailable"), answer
    assert (
        "and the driver finds 0 of them there: to an executor that folder is another disk" in answer["said"]
    )
    assert not list(elsewhere.rglob("*.parquet"))


def test_state_on_another_disk_is_in_no_checkpoint_without_a_probe_too(
    driver: Driver, cluster: StandaloneCluster, feed: Feed, tmp_path: Path
) -> None:
    elsewhere = {"work_dir": str(cluster.private / tmp_path.name)}
    answer = driver.run(
        feed, tmp_path / "lab", pipeline="summed", probe=False, coordinator=elsewhere, conf=ALONE
    )
    assert not answer["said"].endswith("/chk-1"), answer
    assert not rows_in(tmp_path / "lab" / "tables" / "summed" / "sums")


@pytest.mark.nightly
def test_bare_paths_of_another_default_file_system_are_not_taken_for_ours(
    driver: Driver, feed: Feed, tmp_path: Path
) -> None:
    answer = driver.run(
        feed,
        tmp_path / "lab",
        pipeline="summed",
        conf={
            **ALONE,
            "spark.hadoop.fs.defaultFS": "hdfs://nowhere.invalid:8020",
            "spark.sql.warehouse.dir": f"file://{tmp_path}",
        },
    )
    assert answer["said"].endswith("/chk-1"), answer
    tables = tmp_path / "lab" / "tables" / "summed"
    assert {row["customer"]: row["amount"] for row in rows_in(tables / "sums")} == {"ann": 5, "bob": 7}
    assert rows_in(tables / "counted") == [{"n": 2}]
