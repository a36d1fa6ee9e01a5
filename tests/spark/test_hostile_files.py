"""A path in a file that somebody else has written stays below its folder, or the file is damage, told by name."""

from __future__ import annotations

import io
import json
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_ckpt.core.checkpoint.record import parse_record
from dagster_ckpt.core.ids import PipelineId, file_name, relative_path
from dagster_ckpt.core.json_text import DEEPEST, parse_json
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import FileEntry, FileKind, StageSnapshot
from dagster_ckpt.core.paths import folder_of
from dagster_ckpt.errors import CheckpointError, Corrupt, InvalidRequest
from dagster_ckpt.ext.attach.sinks import named_files
from dagster_ckpt.ext.upgrade_plan.rebuild import forget_savepoint
from dagster_ckpt.runtime.files import handles_of_subtasks, write_subtask_handles
from dagster_ckpt.spark.channel.entries import decode
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    TableFile,
    prepared_folder,
    read_committables,
    write_committable,
)
from dagster_ckpt.spark.snapshot.checkpoint_files import (
    Unreadable,
    lineage_of,
    referenced_files,
)
from dagster_ckpt.spark.snapshot.manifest import decode_manifest, encode_manifest
from dagster_ckpt.testing.memory import MemoryCheckpointStorage
from tests.spark.stored_files import READERS, stored_files, tried

HOSTILE = (
    "../outside",
    "a/../../outside",
    "/etc/passwd",
    "..",
    ".",
    "",
    "a//b",
    "a/",
    "a\0b",
    "a\\b",
    "..\\outside",
    "C:/outside",
    "c:outside",
    "file:///../x",
)

FILE_LOGS = {
    "elsewhere": '{{"path": "file://{outside}/key", "action": "add"}}',
    "above": '{{"path": "file://{table}/../key", "action": "add"}}',
    "by a link": '{{"path": "file://{table}/linked/key", "action": "add"}}',
    "without a path": '{{"action": "add"}}',
    "no JSON": "add",
}
"""What a stranger's snapshot may hold as the log of a table of files."""

# --- one place decides --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_a_path_that_does_not_stay_below_its_folder_is_refused(text: str) -> None:
    for check in (relative_path, file_name):
        with pytest.raises(ValueError, match="is no path below its folder"):
            check(text)


@pytest.mark.parametrize("text", ["a", "a/b.c", "..a", "a..", "query/state/0/1/2.delta", "ab:c", "a b/ü"])
def test_other_paths_are_taken_as_they_are(text: str) -> None:
    assert relative_path(text) == text
    assert relative_path(f"{text}/below") == f"{text}/below"
    with pytest.raises(ValueError, match="is no plain name"):
        file_name(f"{text}/below")


# --- every kind of record -----------------------------------------------------------------------------------

METADATA = {
    "format_version": 1,
    "pipeline": "sales",
    "checkpoint_id": 1,
    "kind": "savepoint",
    "epoch": 1,
    "triggered_at": 1.0,
    "completed_at": 1.0,
    "stages": [{"uid": "totals", "parallelism": 1}],
}
OBJECT = {"size": 1, "checksum": ""}


def metadata(**changes: object) -> Callable[[Path], object]:
    return lambda _: decode_metadata(json.dumps(METADATA | changes).encode(), name="here")


def stage(**changes: object) -> Callable[[Path], object]:
    return metadata(stages=[{"uid": "totals", "parallelism": 1} | changes])


def manifest(**changes: object) -> Callable[[Path], object]:
    entry = FileEntry(
        path="query/metadata", size=1, checksum="", kind=FileKind.QUERY, first_checkpoint=1, key="k"
    )
    return lambda _: decode_manifest(encode_manifest([replace(entry, **changes)]), name="here")  # type: ignore[arg-type]


def subtask_handle(key: str) -> Callable[[Path], object]:
    def read(_: Path) -> object:
        storage = MemoryCheckpointStorage()
        listed = write_subtask_handles(storage, "sales/chk-1", "here", {})
        storage.contents[listed.key] = json.dumps({"0": [[key, 1, "shared"]]}).encode()
        size = len(storage.contents[listed.key])
        reference = listed.model_copy(update={"size": size, "checksum": ""})
        return handles_of_subtasks(
            storage, StageSnapshot(uid="here", parallelism=1, subtask_handles=reference)
        )

    return read


def committable(**changes: object) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        file = TableFile(name="part-1.parquet", staged="staged/1/part-1.parquet", rows=1, bytes=1)
        hostile = file.model_copy(update=changes)
        write_committable(
            folder / "here", PreparedBatch(batch_id=3, epoch=1, files=(hostile,), row_schema="")
        )
        return read_committables(folder / "here", [3])

    return read


def location(folder: str) -> Callable[[Path], object]:
    cleanup = {"checkpoint_id": 1, "location": {"base_uri": "/here", "folder": folder}, "complete": True}
    return lambda _: parse_record(json.dumps({"pipeline": "here", "cleanup": [cleanup]}))


def channel_entry(name: str) -> Callable[[Path], object]:
    document = {"kind": "data", "batch_id": 1, "files": [[name, 1, 1]]}
    return lambda _: decode(json.dumps(document).encode(), "here")


def archive(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        path = folder / "here.zip"
        document = {"sstFiles": [{"dfsSstFileName": name, "sizeBytes": 1}]}
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("metadata", f"v1\n{json.dumps(document)}")
        return referenced_files(path, 0, 0)

    return read


KINDS: dict[str, Callable[[str], Callable[[Path], object]]] = {
    "pipeline": lambda text: metadata(pipeline=text),
    "stage": lambda text: stage(uid=text),
    "input of a stage": lambda text: stage(input_positions={text: 1}),
    "manifest": lambda text: stage(manifest=OBJECT | {"key": text}),
    "list of subtasks": lambda text: stage(subtask_handles=OBJECT | {"key": text}),
    "path in a manifest": lambda text: manifest(path=text),
    "key in a manifest": lambda text: manifest(key=text),
    "operator in a manifest": lambda text: manifest(operator=text),
    "file of a subtask": subtask_handle,
    "file of a channel entry": channel_entry,
    "name in a committable": lambda text: committable(name=text),
    "place in a committable": lambda text: committable(staged=text),
    "location in the record": location,
    "pipeline of the record": lambda text: lambda _: parse_record(json.dumps({"pipeline": text})),
    "file of a RocksDB snapshot": archive,
}


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_hostile_path_makes_the_file_that_names_it_damaged(tmp_path: Path, kind: str, text: str) -> None:
    assert KINDS[kind]("plain")(_made(tmp_path / "plain"))
    with pytest.raises((Corrupt, Unreadable)) as refused:
        KINDS[kind](text)(_made(tmp_path / "hostile"))
    told = str(refused.value)
    assert "here" in told or "the coordinator's record" in told
    assert "\n" not in told


NAMES = (
    "a\nb",
    "x\x1b]0;t\x07y",
    "<img src=x onerror=alert(1)>",
    "a <b>&",
    "n" * 180,
    "[a](https://b.example)",
)
"""Names that no pipeline and no stage can have: they would steer a terminal, a page, or a database."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("of", [lambda name: metadata(pipeline=name), lambda name: stage(uid=name)])
def test_a_name_that_no_pipeline_and_no_stage_can_have_is_damage(
    tmp_path: Path, of: Callable[[str], Callable[[Path], object]], name: str
) -> None:
    assert of("plain")(tmp_path)
    with pytest.raises(Corrupt):
        of(name)(tmp_path)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("uri", ["s3://bucket/..", "s3://bucket/.", "memory://x/a\0b"])
def test_a_uri_that_ends_in_no_name_is_refused_as_a_request(uri: str) -> None:
    with pytest.raises(InvalidRequest, match="ends in no name"):
        folder_of(uri)


# --- text of any shape --------------------------------------------------------------------------------------

DEEP = b"[" * 200_000 + b"]" * 200_000


CONTENTS = {
    "nested": DEEP,
    "nested and open": DEEP[: len(DEEP) // 2],
    "nested objects": b'{"a":' * 300 + b"1" + b"}" * 300,
    "nested in a field": b'{"kind": "data", "through": ' + DEEP + b"}",
    "empty": b"",
    "zeros": b"\0" * 4096,
    "binary": bytes(range(256)),
    "a list": b"[1, 2]",
    "a list of lists": b"[[1], [2]]",
    "a number": b"7",
    "null": b"null",
    "text": b'"text"',
    "other fields": b'{"a": {"b": [1, null, "x"]}}',
    "huge number": b"9" * 5000,
    "not finite": b'{"through": Infinity, "fields": NaN}',
}
READ_AS_EMPTY = {
    ("offset line", "other fields"),
    ("commit line", "other fields"),
    ("offset line", "empty"),
} | {
    ("commit line", "empty"),
    ("offset line", "not finite"),
    ("commit line", "not finite"),
    ("RocksDB snapshot", "other fields"),
    ("RocksDB snapshot", "not finite"),
}
"""Spark's own files may have fields of a newer version, and lines without anything."""


@pytest.mark.parametrize("content", list(CONTENTS))
@pytest.mark.parametrize("reader", list(READERS))
def test_content_of_any_shape_is_damage_and_never_an_error_of_the_program(
    tmp_path: Path, reader: str, content: str
) -> None:
    try:
        READERS[reader](tmp_path, CONTENTS[content])
    except (CheckpointError, Unreadable) as error:
        told = str(error)
    else:
        told = "read"
    assert (told == "read") == ((reader, content) in READ_AS_EMPTY), told
    assert len(told) < 1500


FOUND = {"metadata": ("130",), "manifest": ("5375",)}
"""Seeds that ``make fuzz-files`` has found."""


@pytest.mark.parametrize("kind", list(stored_files()))
def test_a_file_that_was_changed_anyhow_is_read_or_is_damage(tmp_path: Path, kind: str) -> None:
    """``make fuzz-files`` has thousands of each."""
    read, whole = stored_files()[kind]
    assert read(_made(tmp_path / "whole"), whole) is not None
    seeds = [*map(str, range(60)), *FOUND.get(kind, ())]
    found = {seed: said for seed in seeds if (said := tried(kind, seed, tmp_path))}
    assert found == {}


def test_nesting_is_limited_and_what_is_wide_is_not() -> None:
    assert parse_json("[" * DEEPEST + "]" * DEEPEST)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * (DEEPEST + 2) + "]" * (DEEPEST + 2))
    assert len(parse_json(json.dumps([[index] for index in range(5000)]))) == 5000


# --- small files that stand for much ----------------------------------------------------------------------------


def parquet(columns: dict[str, object], **options: object) -> Callable[[Path], object]:
    """A manifest that somebody else's program wrote."""

    def read(_: Path) -> object:
        schema = pq.read_schema(io.BytesIO(encode_manifest([])))
        rows = len(next(iter(columns.values())))  # type: ignore[arg-type]
        ours = {"path": "p", "size": 1, "checksum": "", "kind": "query", "first_checkpoint": 1, "key": "k"}
        arrays = [
            columns.get(field.name, pa.repeat(pa.scalar(ours.get(field.name), field.type), rows))
            for field in schema
        ]
        written = io.BytesIO()
        pq.write_table(pa.table(arrays, schema=schema), written, **options)  # type: ignore[arg-type]
        assert len(written.getvalue()) < 300_000
        return decode_manifest(written.getvalue(), name="here")

    return read


def changelog(packed: int, unpacked: int, method: int = 0x20) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        path = folder / "here.changelog"
        path.write_bytes(b"LZ4Block" + bytes([method]) + struct.pack("<iii", packed, unpacked, 0) + bytes(50))
        return lineage_of(path)

    return read


def packed_list(size: int) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        path = folder / "here.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("metadata", b"v1\n" + bytes(size))
        return referenced_files(path, 0, 0)

    return read


LONG = "x" * 30_000
BOMBS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a value repeated by number": (
        parquet({"path": pa.repeat(LONG, 10_000)}),
        "unpacks to more than",
    ),
    "values that begin like the one before": (
        parquet(
            {"path": pa.repeat(LONG, 1_000)},
            use_dictionary=False,
            column_encoding={"path": "DELTA_BYTE_ARRAY"},
        ),
        "not written as manifests are",
    ),
    "many rows": (parquet({"size": pa.repeat(1, 1_000_000)}), "rows, and 250,000 are the most"),
    "a page that unpacks to much": (
        parquet({"inline": pa.array([bytes(110_000_000)])}, use_dictionary=False, compression="zstd"),
        "unpacks to more than",
    ),
    "a changelog's block of negative length": (changelog(-21, 100), "names no lineage"),
    "a changelog's block of two gigabytes": (changelog(10, 2**31 - 1), "names no lineage"),
    "a changelog's block that is no lz4": (changelog(10, 1000), "names no lineage"),
    "an archive's list of files": (packed_list(30_000_000), "its list of files has more than"),
    "the highest number": (
        metadata(checkpoint_id=2**63),
        "here is not valid checkpoint metadata .checkpoint_id",
    ),
    "the highest attempt": (metadata(epoch=2**63), "here is not valid checkpoint metadata .epoch"),
    "subtasks": (stage(parallelism=10**12), "here is not valid checkpoint metadata .stages.0.parallelism"),
}


@pytest.mark.parametrize("bomb", list(BOMBS))
def test_a_small_file_that_stands_for_much_is_damage_before_it_is_unpacked(tmp_path: Path, bomb: str) -> None:
    read, told = BOMBS[bomb]
    with pytest.raises((Corrupt, Unreadable), match=told) as refused:
        read(tmp_path)
    assert "here" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_manifest_that_another_program_has_written_is_read(tmp_path: Path) -> None:
    """Programs write dictionaries of every column, unless they are told not to."""
    assert parquet({"path": pa.array(["a", "b", "a"])})(tmp_path)


UDT = {"type": "udt", "pyClass": "this.Zen", "sqlType": "long"}


@pytest.mark.parametrize(
    "kind",
    [
        UDT,
        {"type": "array", "elementType": UDT, "containsNull": True},
        {"type": "map", "keyType": "long", "valueType": UDT, "valueContainsNull": True},
        {"type": "struct", "fields": [{"name": "b", "type": UDT, "nullable": True, "metadata": {}}]},
    ],
)
def test_a_schema_has_no_module_of_its_authors_imported(kind: object) -> None:
    fields = [{"name": "a", "type": kind, "nullable": True, "metadata": {"type": "udt"}}]
    with pytest.raises(Corrupt, match="a user-defined type, which names a module to import"):
        parsed_schema(json.dumps({"type": "struct", "fields": fields}))
    assert "this" not in sys.modules
    fields[0]["type"] = "long"
    assert parsed_schema(json.dumps({"type": "struct", "fields": fields})).names == ["a"]


# --- files that are not where they were written -----------------------------------------------------------------


def test_committables_that_were_swapped_are_refused(tmp_path: Path) -> None:
    for number in (3, 4):
        write_committable(tmp_path, PreparedBatch(batch_id=number, epoch=1, files=(), row_schema=""))
    (prepared_folder(tmp_path) / "3.json").rename(prepared_folder(tmp_path) / "4.json")
    with pytest.raises(Corrupt, match=r"4.json is the committable of batch 3"):
        read_committables(tmp_path, [4])


@pytest.mark.parametrize("time", [-1.0, 1e300, float("inf"), float("nan")])
@pytest.mark.parametrize("field", ["triggered_at", "completed_at"])
def test_a_time_that_no_calendar_has_is_damage(field: str, time: float) -> None:
    with pytest.raises(Corrupt, match=f"here is not valid checkpoint metadata .{field}"):
        metadata(**{field: time})(Path())


@pytest.mark.parametrize("line", FILE_LOGS.values(), ids=FILE_LOGS)
def test_the_log_of_a_table_of_files_names_files_of_that_table_alone(tmp_path: Path, line: str) -> None:
    table, outside, log = tmp_path / "table", tmp_path / "outside", tmp_path / "log"
    for folder in (table, outside, log):
        folder.mkdir()
    (table / "linked").symlink_to(outside)
    (log / "0").write_text(f'v1\n{{"path": "file://{table}/day%3D1/part", "action": "add"}}')
    assert named_files(log, table) == [table / "day=1" / "part"]
    (log / "1").write_text(f"v1\n{line.format(table=table, outside=outside)}")
    with pytest.raises(Corrupt, match=r"[rR]estore from another"):
        named_files(log, table)


@pytest.mark.parametrize("noted", ["", "savepoint-another-aaaaaa", "savepoint-shop_rebuilds_totals-aaaaaa"])
def test_the_note_of_a_killed_rebuilding_has_no_savepoint_deleted_but_its_own(
    tmp_path: Path, noted: str
) -> None:
    own = "savepoint-shop_rebuilds_totals-aaaaaa"
    storage, note = MemoryCheckpointStorage(), tmp_path / "note"
    for folder in (own, "savepoint-another-aaaaaa"):
        storage.create(f"{folder}/_metadata", b"{}")
    note.write_text(noted)
    forget_savepoint(note, storage, PipelineId("shop_rebuilds_totals"), known=set())
    left = {found.key.partition("/")[0] for found in storage.list("")}
    assert left == {own, "savepoint-another-aaaaaa"} - ({noted} & {own})
