"""Spark's operator metadata names schema files by full path: restored elsewhere, those of its own directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dagster_ckpt.adapters.fsspec_storage import FsspecCheckpointStorage
from dagster_ckpt.errors import Corrupt, Declined
from dagster_ckpt.spark.snapshot.capture import plan_capture
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from tests.removal import remove_tree
from tests.spark.snapshot.fake_checkpoint import FakeQuery
from tests.spark.snapshot.snapshot_help import take

SCHEMAS = ("default/0_aaaa", "default/2_bbbb")


def metadata_file(query: FakeQuery, batch: int, *schemas: str, folder: str = "") -> None:
    """Write operator metadata as transformWithState does, and the schema files it names."""
    base = folder or f"file:{query.query}"
    paths = [f"{base}/state/0/_stateSchema/{schema}" for schema in schemas]
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2, "stateSchemaFilePaths": paths}
    content = {"operatorInfo": {"operatorId": 0, "operatorName": "x"}, "stateStoreInfo": [store]}
    query.write(f"state/0/_metadata/v2/{batch}", f"v2\n{json.dumps(content)}")
    for schema in schemas:
        query.write(f"state/0/_stateSchema/{schema}", f"schema {schema}")


def named(root: Path, batch: int) -> list[str]:
    text = (root / f"query/state/0/_metadata/v2/{batch}").read_text()
    return list(json.loads(text.removeprefix("v2\n"))["stateStoreInfo"][0]["stateSchemaFilePaths"])


def expected(root: Path, *schemas: str) -> list[str]:
    return [f"file:{root}/query/state/0/_stateSchema/{schema}" for schema in schemas]


@pytest.fixture
def query(tmp_path: Path) -> FakeQuery:
    query = FakeQuery(tmp_path / "stage").commit(5).snapshot(3)
    metadata_file(query, 0, *SCHEMAS[:1])
    metadata_file(query, 2, *SCHEMAS)
    return query


@pytest.mark.parametrize("threshold", [0, 20_000], ids=["linked", "inline"])
def test_every_restored_generation_names_its_own_directory(
    query: FakeQuery, tmp_path: Path, threshold: int
) -> None:
    """Also one that is restored, captured again on top of the checkpoint before, and restored once more."""
    storage = FsspecCheckpointStorage((tmp_path / "storage").as_uri())
    one = take(storage, query.root, 1, inline_threshold=threshold)
    first = tmp_path / 'näher "daran" 50%'
    build_stage_directory(one.stored, one.snapshot, target_dir=first)
    remove_tree(query.root)
    assert named(first, 0) == expected(first, *SCHEMAS[:1])
    assert named(first, 2) == expected(first, *SCHEMAS)

    two = take(storage, first, 2, previous=one.upload.entries, inline_threshold=threshold)
    build_stage_directory(two.stored, two.snapshot, target_dir=tmp_path / "second")
    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "again")
    assert named(tmp_path / "second", 2) == expected(tmp_path / "second", *SCHEMAS)
    assert named(tmp_path / "again", 2) == expected(tmp_path / "again", *SCHEMAS)


def test_metadata_that_was_written_on_another_file_system_is_understood(
    query: FakeQuery, tmp_path: Path
) -> None:
    metadata_file(query, 2, *SCHEMAS, folder="s3://bucket/stream-checkpoint")
    one = take(FsspecCheckpointStorage((tmp_path / "storage").as_uri()), query.root, 1)
    build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    assert named(tmp_path / "restored", 2) == expected(tmp_path / "restored", *SCHEMAS)


@pytest.mark.parametrize(
    "damage", ["v2\n{", 'v2\n{"stateStoreInfo":[{"stateSchemaFilePaths":["file:/a/b"]}]}']
)
def test_metadata_that_cannot_be_understood_is_refused_before_anything_is_visible(
    query: FakeQuery, tmp_path: Path, damage: str
) -> None:
    query.write("state/0/_metadata/v2/2", damage)
    one = take(FsspecCheckpointStorage((tmp_path / "storage").as_uri()), query.root, 1)
    with pytest.raises(Corrupt, match="v2/2 is no operator metadata of Spark"):
        build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_schema_that_the_snapshot_does_not_have_is_named(query: FakeQuery, tmp_path: Path) -> None:
    query.remove("state/0/_stateSchema/default/2_bbbb")
    one = take(FsspecCheckpointStorage((tmp_path / "storage").as_uri()), query.root, 1)
    with pytest.raises(Corrupt, match="needs the state schema state/0/_stateSchema/default/2_bbbb"):
        build_stage_directory(one.stored, one.snapshot, target_dir=tmp_path / "restored")


@pytest.mark.parametrize("file", ["sources/0/0", "state/0/_metadata/metadata", "offsets/4", "commits/4"])
def test_a_capture_of_a_text_that_names_the_directory_and_cannot_be_rewritten_is_declined(
    query: FakeQuery, file: str
) -> None:
    path = query.query / file
    text = path.read_text() if path.exists() else "v1\n{}"
    query.write(file, text.replace("{", f'{{"made":"file:{query.query}/x",', 1))
    with pytest.raises(Declined, match=f"query/{file} names the directory it lies in"):
        plan_capture(query.query)
