"""Everything that is read from storage: a reader and a whole file of each kind, and files that are changed at random.

The author of a savepoint computes its checksums: what is compared with one is given the one that fits.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord, parse_record
from dagster_ckpt.core.ids import BatchId, CheckpointId
from dagster_ckpt.core.messages import BarrierOptions
from dagster_ckpt.core.metadata_text import decode_metadata
from dagster_ckpt.core.model import FileEntry, FileKind, StageSnapshot
from dagster_ckpt.core.restore.horizon import topic_positions
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.ext.spark_pipelines.published import Computed
from dagster_ckpt.operations.snapshots.contents import batch_conf, readers_of, verify_snapshot
from dagster_ckpt.operations.snapshots.inspect import state_tables
from dagster_ckpt.runtime.files import SUBTASK_HANDLES_FILE, handles_of_subtasks, write_subtask_handles
from dagster_ckpt.spark.channel.entries import (
    BarrierEntry,
    DataEntry,
    Release,
    decode,
    encode,
    encode_options,
)
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.channel.schema import parsed_schema
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import DataFile
from dagster_ckpt.spark.plan.facts import PlanFacts
from dagster_ckpt.spark.sink.committables import (
    PreparedBatch,
    TableFile,
    prepared_folder,
    read_committables,
    read_record,
)
from dagster_ckpt.spark.snapshot.capture import noted_topic_ids
from dagster_ckpt.spark.snapshot.checkpoint_files import (
    Unreadable,
    lineage_of,
    read_commit,
    read_offset,
    read_query_id,
    referenced_files,
)
from dagster_ckpt.spark.snapshot.manifest import decode_manifest, encode_manifest
from dagster_ckpt.spark.snapshot.restore import build_stage_directory
from dagster_ckpt.spark.snapshot.stored import open_snapshot
from dagster_ckpt.testing.memory import MemoryCheckpointStorage


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    def written(folder: Path, content: bytes) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return read(path)

    return written


def list_of_subtasks(_: Path, content: bytes) -> object:
    storage = MemoryCheckpointStorage()
    listed = write_subtask_handles(storage, "sales/chk-1", "totals", {})
    assert listed.key.endswith(SUBTASK_HANDLES_FILE)
    storage.contents[listed.key] = content
    reference = listed.model_copy(update={"size": len(content), "checksum": ""})
    return handles_of_subtasks(storage, StageSnapshot(uid="totals", parallelism=1, subtask_handles=reference))


def archived(folder: Path, content: bytes) -> object:
    with zipfile.ZipFile(folder / "1.zip", "w") as file:
        file.writestr("metadata", b"v1\n" + content)
    return referenced_files(folder / "1.zip", 0, 0)


READERS: dict[str, Callable[[Path, bytes], object]] = {
    "metadata": lambda _, content: decode_metadata(content, name="m"),
    "record": lambda _, content: parse_record(content.decode("utf-8", "surrogateescape")),
    "manifest": lambda _, content: decode_manifest(content, name="m"),
    "list of subtasks": list_of_subtasks,
    "channel entry": lambda _, content: decode(content, "e"),
    "release": in_file("released", lambda path: Release(path.parent).read()),
    "schema of a channel": lambda _, content: parsed_schema(content.decode("utf-8", "replace")),
    "committable": in_file("3.json", lambda path: read_committables(_moved(path), [3])),
    "note of a computed table": in_file("1.json", lambda path: read_record(Computed, path)),
    "offset": in_file("7", read_offset),
    "offset line": in_file("7", lambda path: read_offset(_behind(path, b"v1\n"))),
    "commit line": in_file("7", lambda path: read_commit(_behind(path, b"v1\n"))),
    "query id": in_file("metadata", read_query_id),
    "RocksDB snapshot": archived,
}


def _moved(path: Path) -> Path:
    stage_dir = path.parent / "stage"
    prepared_folder(stage_dir).mkdir(parents=True)
    path.rename(prepared_folder(stage_dir) / path.name)
    return StageDirectory(stage_dir).root


def _behind(path: Path, head: bytes) -> Path:
    path.write_bytes(head + path.read_bytes())
    return path


# --- whole files, of each kind ------------------------------------------------------------------------------------

Reader = Callable[[Path, bytes], object]
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "price", "type": "decimal(18,2)", "nullable": True, "metadata": {}},
        {
            "name": "tags",
            "type": {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
            "nullable": True,
            "metadata": {"note": "x"},
        },
    ],
}
OPERATOR = {
    "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateExec"},
    "stateStoreInfo": [
        {
            "storeName": "default",
            "numColsPrefixKey": 0,
            "numPartitions": 2,
            "stateSchemaFilePaths": ["file:/w/query/state/0/_stateSchema/default/0_a"],
        }
    ],
    "operatorPropertiesJson": json.dumps({"stateVariables": [{"stateName": "total"}]}),
}
PLAN_FACTS = {"grouping": ["id"], "output_mode": "update", "stages": ["orders"]}
QUERY = {
    "query/metadata": '{"id":"6b0b6a8e-4f0f-4c38-9c29-3a4f6b8f5a10"}',
    "query/offsets/1": 'v1\n{"batchWatermarkMs":7,"conf":{"a":"b"}}\n{"orders":{"0":12,"1":3}}',
    "query/commits/1": 'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"0":[["u"],["w"]]}}',
    "query/state/0/_metadata/v2/0": f"v2\n{json.dumps(OPERATOR)}",
    "query/state/0/_stateSchema/default/0_a": "v3\nschema",
    "query/sources/0/1": 'v1\n{"path":"file:///in/a.csv","timestamp":17,"batchId":1}',
    "plan.json": json.dumps(PLAN_FACTS),
    "sink/prepared/1.json": '{"format_version":1,"batch_id":1,"epoch":1,"files":[],"row_schema":""}',
}


def _changelog() -> bytes:
    head = json.dumps([{"version": 1, "checkpointUniqueId": "a"}]).encode()
    record = b"\x00\x02v3" + len(head).to_bytes(2, "big") + head + b"rest"
    lengths = len(record).to_bytes(4, "little") * 2
    return b"LZ4Block\x10" + lengths + bytes(4) + record + b"LZ4Block\x10" + bytes(12)


def _archive() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "1.zip"
        files = {"sstFiles": [{"dfsSstFileName": "1.sst", "sizeBytes": 7}], "logFiles": []}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("metadata", "v1\n" + json.dumps(files))
            file.writestr("OPTIONS", "x" * 200)
        return path.read_bytes()


def _entries() -> list[FileEntry]:
    content = {path: text.encode() for path, text in QUERY.items()}
    kinds = {
        "query/sources": FileKind.SOURCE_LOG,
        "query/state": FileKind.STATE_SCHEMA,
        "sink": FileKind.COMMITTABLE,
    }
    return [
        FileEntry(
            path=path,
            size=len(inline),
            checksum=digest_bytes(inline).checksum,
            kind=next((kind for begin, kind in kinds.items() if path.startswith(begin)), FileKind.QUERY),
            operator="0" if "/state/" in path else None,
            partition=None,
            first_checkpoint=1,
            key=None,
            inline=inline,
        )
        for path, inline in content.items()
    ]


def _metadata(manifest: bytes) -> dict[str, Any]:
    digest = digest_bytes(manifest)
    stage = {
        "uid": "totals",
        "parallelism": 2,
        "manifest": {"key": "totals/manifest.parquet", "size": digest.size, "checksum": digest.checksum},
        "batch_id": 1,
        "offsets": {"0": '{"orders":{"0":12}}'},
        "input_positions": {"orders": 3},
        "state_formats": {"provider": "rocksdb"},
        "table": {
            "uri": "/t",
            "head": 4,
            "prepared": [1],
            "set_aside": [{"batch_id": 0, "rows": 1, "file": "f"}],
        },
    }
    return {
        "format_version": 1,
        "pipeline": "sales",
        "lineage": "ab",
        "checkpoint_id": 7,
        "kind": "savepoint",
        "epoch": 2,
        "triggered_at": 1.5,
        "completed_at": 2.5,
        "stages": [stage],
        "edges": [["orders", "totals"]],
        "chains": [{"uid": "totals", "stages": ["clean", "totals"]}],
        "labels": {"team": "a"},
        "name": "n",
        "note": "text",
    }


def _opened(folder: Path, metadata: bytes, manifest: bytes) -> object:
    """Do with a savepoint what commands and a restore do before Spark sees it."""
    storage = MemoryCheckpointStorage("memory://sp")
    storage.contents |= {"sp/_metadata": metadata, "sp/totals/manifest.parquet": manifest}
    found = open_snapshot(storage, "sp")
    verify_snapshot(found, parallelism=1)
    for number, stage in enumerate(found.metadata.stages):
        for text in stage.offsets.values():
            topic_positions(text)
        state_tables(found, stage.uid)
        readers_of(found, stage)
        batch_conf(found, stage)
        target = folder / f"stage-{number}"
        build_stage_directory(found, stage, target_dir=target, parallelism=1)
        directory = StageDirectory(target)
        noted_topic_ids(directory)
        PlanFacts.written(directory, {})
        if stage.table is not None:
            read_committables(target, stage.table.prepared)
    return found


def _with_metadata(folder: Path, content: bytes) -> object:
    return _opened(folder, content, encode_manifest(_entries()))


def _with_manifest(folder: Path, content: bytes) -> object:
    return _opened(folder, json.dumps(_metadata(content)).encode(), content)


def _with_file(path: str) -> Reader:
    def read(folder: Path, content: bytes) -> object:
        digest = digest_bytes(content)
        entries = [
            replace(entry, size=digest.size, checksum=digest.checksum, inline=content)
            if entry.path == path
            else entry
            for entry in _entries()
        ]
        return _with_manifest(folder, encode_manifest(entries))

    return read


def _log(name: str) -> Reader:
    def read(folder: Path, content: bytes) -> object:
        log = ChannelLog(folder)
        (folder / "log.json").write_text('{"format_version":1,"start":0}')
        (folder / name).write_bytes(content)
        return log.start, log.end, log.read(log.start)

    return read


@cache
def stored_files() -> dict[str, tuple[Reader, bytes]]:
    """Return a reader and a whole file of each kind."""
    manifest = encode_manifest(_entries())
    metadata = json.dumps(_metadata(manifest)).encode()
    batch = PreparedBatch(
        batch_id=3,
        epoch=1,
        files=(TableFile(name="p.parquet", staged="staged/1/p.parquet", rows=1, bytes=1),),
        row_schema=json.dumps(SCHEMA),
    )
    barrier = BarrierEntry(
        checkpoint_id=CheckpointId(3),
        batch_id=BatchId(2),
        timestamp=1.5,
        options_json=encode_options(BarrierOptions()),
    )
    data = DataEntry(batch_id=BatchId(2), files=(DataFile("a.parquet", 1, 2),))
    record = CoordinatorRecord(pipeline="sales", epoch=2, next_id=8)
    files = {
        "metadata": (_with_metadata, metadata),
        "manifest": (_with_manifest, manifest),
        "record": (READERS["record"], record.model_dump_json().encode()),
        "list of subtasks": (list_of_subtasks, b'{"0":[["sales/shared/a/1/f",1,"shared"]],"1":[]}'),
        "channel entry": (READERS["channel entry"], encode(data)),
        "channel barrier": (_barrier, encode(barrier)),
        "channel log": (_log("log.json"), b'{"format_version":1,"start":0}'),
        "channel log entry": (_log(f"{0:020d}.json"), encode(data)),
        "release": (READERS["release"], b'{"through": 7}'),
        "schema of a channel": (READERS["schema of a channel"], json.dumps(SCHEMA).encode()),
        "committable": (READERS["committable"], batch.model_dump_json().encode()),
        "note of a computed table": (
            READERS["note of a computed table"],
            Computed(token="a", shown="b").model_dump_json().encode(),
        ),
        "RocksDB snapshot": (in_file("1.zip", lambda path: referenced_files(path, 0, 0)), _archive()),
        "changelog": (in_file("1.changelog", lineage_of), _changelog()),
    }
    return files | {f"restored {path}": (_with_file(path), text.encode()) for path, text in QUERY.items()}


def _barrier(_: Path, content: bytes) -> object:
    found = decode(content, "e")
    return found.options if isinstance(found, BarrierEntry) else found


# --- changed at random ----------------------------------------------------------------------------------------------

EXTREMES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 10**30, 1e308, float("inf"), float("nan"), "", "x" * 5000, "../../x",
    "/etc/passwd", "\0", "\x1b[2J", "a\nb", "9" * 400, [], {}, [[]], {"a": {}}, [1, None, "x"],
    {"type": "udt", "pyClass": "this.X"},
)  # fmt: skip


def changed(rng: random.Random, content: bytes, other: bytes) -> bytes:
    """Return a file with some changes: of values where it is JSON, or lines of it, and of bytes."""
    if rng.random() < 0.5:
        lines = content.split(b"\n")
        at = rng.randrange(len(lines))
        try:
            document = json.loads(lines[at])
        except ValueError:
            pass
        else:
            lines[at] = json.dumps(_other_value(rng, document)).encode()
            return b"\n".join(lines)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        content = _other_bytes(rng, content, other)
    return content


def _other_value(rng: random.Random, document: Any) -> Any:
    if isinstance(document, (dict, list)) and document and rng.random() < 0.85:
        copy = document.copy()
        key = rng.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
        if isinstance(copy, dict) and rng.random() < 0.1:
            copy[rng.choice(["new", "format_version", "", key + key])] = copy.pop(key)
        else:
            copy[key] = _other_value(rng, copy[key])
        return copy
    if isinstance(document, str) and document[:1] in "{[" and document and rng.random() < 0.7:
        return json.dumps(_other_value(rng, json.loads(document)))
    return rng.choice(EXTREMES)


def _other_bytes(rng: random.Random, content: bytes, other: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    to = min(len(content), at + rng.choice((1, 1, 4, 30, 300)))
    piece = rng.choice(
        (
            bytes([rng.randrange(256)]),
            b"\xff\xff\xff\x7f",
            b"\x80" * 4,
            bytes(rng.choice((1, 4, 100))),
            content[at:to] * rng.choice((0, 2, 50)),
            other[at:to],
            rng.randbytes(8),
            b"[" * 300,
        )
    )
    return content[:at] + piece + content[to:]


def tried(kind: str, seed: str, folder: Path) -> str:
    """Have one changed file read; return what is wrong with how it ended, empty: it was read, or is damage."""
    rng = random.Random(f"{kind} {seed}")
    read, whole = stored_files()[kind]
    other = rng.choice([content for _, content in stored_files().values()])
    content = changed(rng, whole, other)
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        read(place, content)
    except (Corrupt, Unreadable) as error:
        told = str(error)
        if "\n" in told or len(told) > 1500 or not told.isprintable():
            return f"it is no sentence: {told[:3000]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return ""
