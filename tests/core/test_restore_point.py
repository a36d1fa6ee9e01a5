"""What may be written in restore_from."""

from __future__ import annotations

import pytest

from dagster_ckpt.core.config import RestoreOptions
from dagster_ckpt.core.paths import folder_of, same_place
from dagster_ckpt.core.restore_point import (
    At,
    Key,
    Latest,
    Nothing,
    RestorePoint,
    Wanted,
    restore_point,
)
from dagster_ckpt.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("latest", Latest()),
        (" Latest ", Latest()),
        ("none", Nothing()),
        ("chk-31", Key(Wanted.CHECKPOINT, 31)),
        ("chk-000031", Key(Wanted.CHECKPOINT, 31)),
        ("savepoint-7", Key(Wanted.SAVEPOINT, 7)),
        ("savepoint-000007", Key(Wanted.SAVEPOINT, 7)),
        ("31", Key(Wanted.EITHER, 31)),
        ("savepoint-flights-a1b2c3", At("savepoint-flights-a1b2c3")),
        ("/data/sp/savepoint-p-a1b2c3", At("/data/sp/savepoint-p-a1b2c3")),
        ("/data/sp/savepoint-p-a1b2c3/", At("/data/sp/savepoint-p-a1b2c3")),
        ("/data/sp/savepoint-p-a1b2c3/_metadata", At("/data/sp/savepoint-p-a1b2c3")),
        ("s3://bucket/p/chk-31/_metadata", At("s3://bucket/p/chk-31")),
        ("./sp/x", At("./sp/x")),
    ],
)
def test_every_accepted_form_names_one_thing(text: str, point: RestorePoint) -> None:
    """FSA#testPointerPathResolution: a folder or its _metadata file."""
    assert restore_point(text) == point == restore_point(str(point))


@pytest.mark.parametrize(
    "text", ["", "  ", "newest", "chk-", "chk-x", "chk-31a", "-1", "/", "s3://", "/_metadata", "_metadata"]
)
def test_anything_else_is_refused_with_the_accepted_forms(text: str) -> None:
    """FSA#testFailingPointerPathResolution: a clear error."""
    with pytest.raises(InvalidRequest, match=r"use 'latest', 'none', a key such as 'chk-31'"):
        restore_point(text)


@pytest.mark.parametrize("text", ["0", "chk-0", "savepoint-000"])
def test_there_is_no_snapshot_zero(text: str) -> None:
    with pytest.raises(InvalidRequest, match="ids start at 1"):
        restore_point(text)


def test_a_folder_splits_into_base_and_name() -> None:
    location = folder_of("s3://bucket/sp/savepoint-p-a1b2c3")
    assert (location.base_uri, location.folder) == ("s3://bucket/sp", "savepoint-p-a1b2c3")
    assert location.uri == "s3://bucket/sp/savepoint-p-a1b2c3"


def test_a_local_path_and_its_file_uri_are_the_same_place() -> None:
    assert same_place("file:///data/p/chk-1", "/data/p/chk-1/")
    assert not same_place("s3://data/p/chk-1", "/data/p/chk-1")


@pytest.mark.parametrize(
    "spelt",
    [
        "file:/data/p/chk-1",
        "FILE://localhost/data/p/chk-1",
        "local:///data/p/chk-1",
        "/data/q/../p/chk-1/",
        "file:///data//p/./chk-1",
        "//data/p/chk-1",
    ],
)
def test_a_local_place_is_the_same_however_it_is_spelt(spelt: str) -> None:
    assert same_place("file:///data/p/chk-1", spelt)
    assert not same_place("file:///data/p/chk-2", spelt)


def test_keys_of_an_object_store_are_no_paths() -> None:
    assert same_place("s3://bucket/p/chk-1", "s3://bucket/p/chk-1/")
    assert same_place("s3://bucket/p/chk-1", "S3A://bucket/p/chk-1")
    assert not same_place("s3://bucket/p/chk-1", "s3://bucket/q/../p/chk-1")
    assert same_place("postgresql://Shop/db#T", "postgresql://shop/db#T")
    assert not same_place("postgresql://shop/db#T", "postgresql://shop/db#t")


@pytest.mark.parametrize("text", ["latst", "newest", 7])
def test_options_refuse_a_restore_point_where_it_is_written(text: object) -> None:
    with pytest.raises(InvalidRequest, match=f"restore_from {text!r}"):
        RestoreOptions.of(restore_from=text)
    assert RestoreOptions.of(restore_from="CHK-7").model_dump(mode="json")["restore_from"] == "chk-7"
