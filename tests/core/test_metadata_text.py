"""What stands in ``_metadata`` is what was written: an edit of any one value is refused, by the file's name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ckpt.core.metadata_text import decode_metadata, encode_metadata, read_metadata_text
from dagster_ckpt.core.model import (
    CheckpointKind,
    CheckpointMetadata,
    ObjectRef,
    SnapshotMetrics,
    StageSnapshot,
    TableSnapshot,
)
from dagster_ckpt.errors import Corrupt

NAME = "s3://bucket/sales/chk-7/_metadata"

SINK = StageSnapshot(
    uid="totals",
    parallelism=2,
    max_parallelism=128,
    manifest=ObjectRef(key="sales/chk-7/totals/manifest.parquet", size=900, checksum="xxh3_128:00ff"),
    batch_id=12,
    query_id="0d8c",
    offsets={"rates": '{"0": 12}'},
    topic_ids={"rates": "AAAAAAAAAAEAAAAAAAAABQ"},
    watermark_ms=1_700_000_000_000,
    input_positions={"source": 4},
    output_position=3,
    state_formats={"provider": "rocksdb"},
    table=TableSnapshot(uri="/data/totals", head=2, prepared=(3, 4)),
    finished_subtasks=(1,),
    subtask_handles=ObjectRef(key="sales/chk-7/totals/subtask_handles.json", size=9, checksum=""),
    coordinator_state="{}",
    metrics=SnapshotMetrics(sync_ms=1.5, bytes_full=99),
)
METADATA = CheckpointMetadata(
    pipeline="sales",
    checkpoint_id=7,
    kind=CheckpointKind.CHECKPOINT,
    epoch=3,
    triggered_at=1_700_000_000.25,
    completed_at=1_700_000_001.5,
    stages=(StageSnapshot(uid="source", parallelism=1, stateless=True), SINK),
    edges=(("source", "totals"),),
    master_states={"audit": "Grüße"},
    run_id="r-1",
    name="before the move",
    labels={"why": "move"},
    note="kept",
    library_version="0.2",
)
DOCUMENT = json.loads(encode_metadata(METADATA))

Path = tuple[str | int, ...]


def leaves(value: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every number, text, truth value and null, with the way to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*at, index))
    else:
        yield at, value


def edits(value: Any) -> list[Any]:
    match value:
        case bool():
            return [not value]
        case int() | float():
            return [value - 1, value + 1, -value - 1, 0 if value else 2]
        case str():
            return [value + "0", value[:-1] if value else "x", value.swapcase() + " "]
        case _:
            return [0, 1, "x"]


def changed(way: Path, value: Any) -> bytes:
    document = deepcopy(DOCUMENT)
    place = document
    for step in way[:-1]:
        place = place[step]
    place[way[-1]] = value
    return json.dumps(document, indent=2).encode()


LEAVES = list(leaves(DOCUMENT))


def test_topics_without_ids_are_left_out_so_that_versions_before_read_the_rest() -> None:
    assert [list(stage.get("topic_ids", {})) for stage in DOCUMENT["stages"]] == [[], ["rates"]]
    assert "topic_ids" not in DOCUMENT["stages"][0]
    assert decode_metadata(encode_metadata(METADATA), name=NAME) == METADATA


@pytest.mark.parametrize("way", [way for way, _ in LEAVES], ids=lambda way: ".".join(map(str, way)))
def test_an_edit_of_one_value_is_refused_by_the_name_of_the_file(way: Path) -> None:
    value = dict(LEAVES)[way]
    for edited in edits(value):
        if edited != value:
            with pytest.raises(Corrupt, match=f"^{NAME} (is not|has format)") as refused:
                decode_metadata(changed(way, edited), name=NAME)
            assert "\n" not in str(refused.value)


@given(st.data())
def test_one_flipped_byte_is_refused_or_changes_nothing(data: st.DataObject) -> None:
    content = bytearray(encode_metadata(METADATA))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = decode_metadata(bytes(content), name=NAME)
    except Corrupt as refused:
        found, told = METADATA, str(refused)
    else:
        told = NAME
    assert found == METADATA
    assert told.startswith(NAME)


@given(st.data())
def test_metadata_that_was_cut_off_is_refused(data: st.DataObject) -> None:
    content = encode_metadata(METADATA)
    with pytest.raises(Corrupt, match=NAME):
        decode_metadata(content[: data.draw(st.integers(0, len(content) - 3))], name=NAME)


def test_the_checksum_is_the_last_field_and_does_not_hang_on_how_the_text_is_laid_out() -> None:
    assert list(DOCUMENT)[-1] == "checksum"
    laid_out = json.dumps(dict(reversed(DOCUMENT.items())), ensure_ascii=False).encode()
    assert read_metadata_text(laid_out, name=NAME).metadata == METADATA


def test_metadata_of_before_has_no_checksum_and_is_read() -> None:
    before = METADATA.model_dump_json(indent=2).encode()
    found = read_metadata_text(before, name=NAME)
    assert (found.metadata, found.has_checksum) == (METADATA, False)
    assert read_metadata_text(encode_metadata(METADATA), name=NAME).has_checksum


@pytest.mark.parametrize("checksum", [None, 7, [], "", "sha256:", "md5:00"])
def test_a_checksum_that_is_none_is_refused_where_the_field_stands(checksum: object) -> None:
    with pytest.raises(Corrupt, match="checksum differs"):
        decode_metadata(json.dumps(DOCUMENT | {"checksum": checksum}).encode(), name=NAME)


DEEP = 200_000


@pytest.mark.parametrize(
    "nest",
    [
        lambda: b"[" * DEEP,
        lambda: b"[" * DEEP + b"]" * DEEP,
        lambda: b'{"format_version": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        lambda: b'{"format_version": 1, "note": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        lambda: b'{"format_version": 1, "note": ' + b'{"a":' * 700 + b"1" + b"}" * 700 + b"}",
        lambda: b'{"format_version": ' + b"1" * 5000 + b"}",
    ],
    ids=["open", "closed", "version", "field", "objects", "huge number"],
)
def test_text_that_is_nested_too_deeply_is_damage_and_no_error_of_the_program(
    nest: Callable[[], bytes],
) -> None:
    with pytest.raises(Corrupt, match=f"^{NAME} ") as refused:
        decode_metadata(nest(), name=NAME)
    assert len(str(refused.value)) < 1000
