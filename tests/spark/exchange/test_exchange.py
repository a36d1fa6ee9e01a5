"""Rows that go through a folder, S3 and an S3 that is slow and throttles: written, named, read, removed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_ckpt.core.ids import CheckpointId, LogPosition, StageUid
from dagster_ckpt.errors import Corrupt, Declined, InvalidRequest, NotFound
from dagster_ckpt.spark.channel.entries import DataEntry
from dagster_ckpt.spark.channel.in_flight import Span, plan_in_flight, put_back
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.cluster.sent import visit
from dagster_ckpt.spark.exchange.mounts import (
    PLACE,
    bring_here,
    exchange_of,
    is_reached,
    probe_objects,
    prove_reached,
    put_file,
    refuse_unreached,
    remove_rows,
    sweep_older,
)
from dagster_ckpt.spark.exchange.objects import RemoteFolder
from dagster_ckpt.spark.exchange.options import remote_folder
from dagster_ckpt.spark.exchange.task_files import write_part
from dagster_ckpt.spark.files import DataFile
from tests.adapters.s3_proxy import Wire, s3_proxy
from tests.adapters.servers import S3Server
from tests.spark.exchange.places import KINDS, KV, LINEAGE, Place, parts, place_of, values


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server) -> Iterator[Place]:
    with place_of(request.param, tmp_path, s3) as made:
        yield made


@pytest.fixture
def plain(tmp_path: Path, s3: S3Server) -> Iterator[Place]:
    with place_of("folder", tmp_path, s3) as made:
        yield made


# --- one task -----------------------------------------------------------------------------------------------------


def test_a_task_names_what_it_has_written_and_nothing_without_rows(place: Place) -> None:
    remote = place.exchange.below(place.attempt().root / "orders" / "log")
    [file] = parts(remote, [1, 2], [], [3])
    assert file.rows == 3
    assert file.bytes == len(remote.read(file.name))
    assert values(remote, [file.name]) == [1, 2, 3]
    assert parts(remote) == parts(remote, []) == []


def test_a_task_writes_the_rows_of_each_value_to_an_object_of_their_own(place: Place) -> None:
    remote = place.exchange.below(place.attempt().root / "orders" / "log")
    rows = [
        pa.RecordBatch.from_pydict({"k": k, "by": by, "v": k})
        for k, by in (([1, 2, 3], [0, 4, 0]), ([], []), ([4, 5], [4, 0]))
    ]
    said = [one for batch in write_part(iter(rows), remote, KV, 1) for one in batch.to_pylist()]
    assert {one["value"]: values(remote, [one["name"]]) for one in said} == {0: [1, 3, 5], 4: [2, 4]}
    assert [(one["rows"], one["bytes"]) for one in said] == [
        (rows, len(remote.read(one["name"]))) for one, rows in zip(said, (3, 2), strict=True)
    ]


def test_two_tries_of_a_task_have_two_names(place: Place) -> None:
    remote = place.exchange.below(place.attempt().root / "orders" / "log")
    names = [parts(remote, [number])[0].name for number in (1, 2)]
    assert len(set(names)) == 2
    assert values(remote, names) == [1, 2]


def test_files_are_read_in_their_order_though_several_are_on_their_way(place: Place) -> None:
    remote = place.exchange.below(place.attempt().root / "orders" / "log")
    names = [parts(remote, [number])[0].name for number in range(11)]
    assert values(remote, names[::-1]) == list(range(11))[::-1]


# --- a channel log --------------------------------------------------------------------------------------------------


def test_only_rows_of_a_log_go_there_and_entries_stay(place: Place) -> None:
    attempt = place.attempt()
    log = place.log(attempt)
    place.append(log, 0, 1, 2)
    place.append(log, 1, 3)
    [entry, other] = [entry for _, entry in ChannelLog(log.directory).entries(LogPosition(0))]
    assert isinstance(entry, DataEntry)
    assert isinstance(other, DataEntry)
    remote = place.exchange.below(log.directory)
    assert values(remote, [file.name for e in (entry, other) for file in e.files]) == [1, 2, 3]
    assert not log.data_folder.exists()
    assert all(
        re.fullmatch(rf"shop/{LINEAGE}/attempt-1-\w{{16}}/orders/log/data/.+\.parquet", k)
        for k in place.stored()
    )


def test_a_truncated_log_takes_exactly_its_files_with_it(place: Place) -> None:
    attempt = place.attempt()
    log, other = place.log(attempt), place.log(attempt, "customers")
    for number in range(4):
        place.append(log, number, number)
        place.append(other, number, number)
    log.truncate_before(LogPosition(3))
    left = place.stored()
    assert len([key for key in left if "/orders/" in key]) == 1
    assert len([key for key in left if "/customers/" in key]) == 4
    [(_, entry)] = log.entries(LogPosition(3))
    assert isinstance(entry, DataEntry)
    assert values(place.exchange.below(log.directory), [file.name for file in entry.files]) == [3]


def test_rows_in_flight_are_brought_here_and_put_back_into_another_attempt(
    place: Place, tmp_path: Path
) -> None:
    first = place.attempt()
    log = place.log(first)
    for number in range(3):
        place.append(log, number, number)
    log.append_barrier(CheckpointId(7), timestamp=0.0)
    span = Span(upstream=StageUid("orders"), log=log, start=LogPosition(1), stop=LogPosition(3))
    reader = tmp_path / "restored"
    for file in plan_in_flight([span]):
        assert file.source is not None
        target = reader / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(file.source).read_bytes())

    second = place.attempt(2)
    log_dir = second.root / "orders" / "log"
    beginning = put_back(StageUid("orders"), log_dir=log_dir, barrier_at=LogPosition(3), readers=[reader])
    assert beginning.base == 1
    remote = place.exchange.below(log_dir)
    names = [f.name for entry in beginning.entries if isinstance(entry, DataEntry) for f in entry.files]
    assert values(remote, names) == [1, 2]


def test_rows_in_flight_that_are_gone_decline_the_checkpoint(place: Place) -> None:
    log = place.log(place.attempt())
    place.append(log, 0, 1)
    place.append(log, 1, 2)
    place.exchange.storage.delete(sorted(place.stored()))
    span = Span(upstream=StageUid("orders"), log=log, start=LogPosition(0), stop=LogPosition(1))
    with pytest.raises(Declined, match="removed before it could be stored"):
        plan_in_flight([span])


# --- files ----------------------------------------------------------------------------------------------------------


def test_files_come_here_whole_or_not_at_all(place: Place) -> None:
    root = place.attempt().root / "orders" / "log"
    [file] = parts(place.exchange.below(root), [1, 2])
    wrong = DataFile(file.name, file.rows, file.bytes + 1)
    with pytest.raises(Corrupt, match=f"has {file.bytes} bytes, and {wrong.bytes} were written"):
        bring_here(root, [wrong])
    assert not [path for path in root.iterdir() if path.is_file()]
    bring_here(root, [file])
    assert (root / file.name).stat().st_size == file.bytes
    remove_rows(root, [file.name])
    assert not place.stored()
    bring_here(root, [file])  # it is here, whatever is there
    with pytest.raises(Corrupt, match="it is gone"):
        bring_here(root, [DataFile("lost.parquet", 1, 1)])
    with pytest.raises(Corrupt, match="it is gone"):
        values(place.exchange.below(root), ["lost.parquet"])


def test_a_local_file_is_put_where_its_readers_look(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"rows")
    target = place.attempt().root / "orders" / "log" / "data" / "x.parquet"
    put_file(source, target)
    assert not target.exists()
    assert place.exchange.below(target.parent).read("x.parquet") == b"rows"
    outside = tmp_path / "elsewhere" / "y"
    put_file(source, outside)
    assert outside.read_bytes() == b"rows"


# --- attempts -------------------------------------------------------------------------------------------------------


def test_a_new_attempt_removes_what_older_ones_have_left_and_nothing_else(place: Place) -> None:
    for number in (1, 2, 3):
        place.append(place.log(place.attempt(number)), 0, number)
    place.append(place.log(place.attempt(4, lineage="history-2")), 0, 4)
    again = place.attempt(2)  # a try that failed half-way, and this one
    place.append(place.log(again, "customers"), 0, 5)
    sweep_older(again.root)
    left = {key.split("/")[1] + " " + key.split("/")[2][:9] for key in place.stored()}
    assert left == {f"{LINEAGE} attempt-2", f"{LINEAGE} attempt-3", "history-2 attempt-4"}
    assert len([key for key in place.stored() if "attempt-2" in key]) == 1


def test_two_directories_of_one_number_never_share_a_name(plain: Place) -> None:
    first = plain.exchange.below(plain.attempt(1).root)
    assert first != plain.exchange.below(plain.attempt(1).root)


def test_rows_of_sinks_go_below_the_attempt_that_works(plain: Place) -> None:
    attempt = plain.attempt(5)
    key = plain.exchange.key_of(plain.work_dir / "shop" / "staged" / "totals" / "staged" / "5")
    assert key.startswith(f"shop/{LINEAGE}/attempt-5-")
    assert key.endswith("/shop/staged/totals/staged/5")
    assert plain.exchange.key_of(attempt.root).startswith(f"shop/{LINEAGE}/attempt-5-")


def test_a_directory_is_reached_only_where_its_rows_are(plain: Place, tmp_path: Path) -> None:
    attempt = plain.attempt()
    assert is_reached(attempt.root)
    (attempt.root / PLACE).rename(attempt.root / "kept")
    assert not is_reached(attempt.root)
    with pytest.raises(NotFound, match="does not say where its rows are"):
        plain.exchange.key_of(attempt.root / "orders")
    (attempt.root / PLACE).write_text("{")
    with pytest.raises(Corrupt, match="damaged"):
        plain.exchange.key_of(attempt.root / "orders")
    elsewhere = tmp_path / "elsewhere" / "attempt-1"
    elsewhere.mkdir(parents=True)
    assert exchange_of(elsewhere) is None
    assert is_reached(elsewhere)
    (elsewhere / PLACE).write_text("{}")
    assert not is_reached(elsewhere)


# --- requests and refusals ------------------------------------------------------------------------------------------


def test_a_file_costs_one_request_to_write_and_two_to_read(tmp_path: Path, s3: S3Server) -> None:
    with s3_proxy(s3) as (proxy, reached):
        remote = remote_folder(
            f"s3://{s3.new_bucket()}/work",
            {"endpoint_url": reached.endpoint, "key": "test", "secret": "test"},
        )
        names = [parts(remote, [number])[0].name for number in range(3)]
        assert proxy.requests() == {"PUT": 3}
        assert values(remote, names) == [0, 1, 2]
        assert proxy.requests() == {"PUT": 3, "HEAD": 3, "GET": 3}


def test_a_store_that_does_not_show_what_was_written_is_refused(tmp_path: Path, s3: S3Server) -> None:
    with place_of("s3", tmp_path, s3) as place, place_of("s3", tmp_path / "other", s3) as other:
        prove_reached(place.exchange, "work_dir")
        assert not place.stored()
        mixed = type(place.exchange)(
            place.work_dir, other.exchange.remote, place.exchange.storage, place.exchange.deletions
        )
        with pytest.raises(InvalidRequest, match="does not show at once what was written"):
            prove_reached(mixed, "work_dir")


def test_an_executor_that_does_not_reach_the_store_is_refused(place: Place) -> None:
    with probe_objects({"work_dir": place.work_dir, "table_dir": Path("/nowhere")}, "token") as stores:
        assert list(stores) == ["work_dir"]
        given = {"places": {}, "token": "token", "number": 0}
        there = visit({**given, "stores": {"work_dir": stores["work_dir"].text}})
        refuse_unreached(
            "work_dir", stores["work_dir"], "executor 0 on h", there["stores"]["work_dir"], "token"
        )
        elsewhere = visit({**given, "stores": {"work_dir": stores["work_dir"].below("other").text}})
        with pytest.raises(
            InvalidRequest, match=r"executor 0 on h cannot use work_dir \(\w+://.*give executors access"
        ):
            refuse_unreached(
                "work_dir", stores["work_dir"], "executor 0 on h", elsewhere["stores"]["work_dir"], "token"
            )
        with pytest.raises(InvalidRequest, match="the driver does not find what it has written"):
            refuse_unreached("work_dir", stores["work_dir"], "executor 0 on h", {"wrote": "lost"}, "token")
    assert not place.stored()


def test_a_bucket_that_is_not_there_is_told(tmp_path: Path, s3: S3Server) -> None:
    with place_of("s3", tmp_path, s3) as place:
        lost = RemoteFolder("s3://nobody/work", place.exchange.remote.settings)
        nowhere = type(place.exchange)(place.work_dir, lost, place.exchange.storage, place.exchange.deletions)
        with pytest.raises(
            InvalidRequest, match=r"work_dir \(s3://nobody/work\) cannot be used: .*Check the bucket"
        ):
            prove_reached(nowhere, "work_dir")


def test_what_cannot_be_deleted_now_stops_nothing(tmp_path: Path, s3: S3Server) -> None:
    with s3_proxy(s3) as (proxy, reached), place_of("s3", tmp_path, s3, endpoint=reached.endpoint) as place:
        log = place.log(place.attempt())
        for number in range(3):
            place.append(log, number, number)
        proxy.treat = lambda request: (
            Wire.NOT_IMPLEMENTED if request.verb in ("DELETE", "POST") else Wire.FINE
        )
        log.truncate_before(LogPosition(2))
        assert len(place.stored()) == 3
        proxy.treat = lambda request: Wire.FINE
        sweep_older(place.attempt(2).root)
        assert not place.stored()


def test_options_that_executors_cannot_use_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="storage_options has 'profile', which executors cannot use"):
        remote_folder("s3://bucket/work", {"profile": "mine"})
    with pytest.raises(InvalidRequest, match="names no bucket"):
        remote_folder("s3:///work", {})


def test_secrets_are_in_no_text_that_people_see() -> None:
    remote = remote_folder("s3://bucket/work/", {"key": "me", "secret": "hidden", "region": "eu-central-1"})
    assert remote.uri == "s3://bucket/work"
    assert "hidden" not in repr(remote)
    assert RemoteFolder.parse(remote.text) == remote
