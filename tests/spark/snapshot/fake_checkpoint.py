"""Writes checkpoint directories in Spark's formats, without Spark: for the cases that are hard to provoke."""

from __future__ import annotations

import json
import struct
import uuid
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

QUERY_ID = "4f0e8916-1c78-404d-8f6a-000000000000"


def _lz4_block(content: bytes) -> bytes:
    """One stored block of net.jpountz' LZ4BlockOutputStream."""
    return b"LZ4Block" + bytes([0x15]) + struct.pack("<iii", len(content), len(content), 0) + content


@dataclass
class FakeQuery:
    """A query with one stateful operator; ``commit`` runs its next batch."""

    root: Path
    partitions: int = 2
    unique_ids: bool = True
    """State checkpoint format 2."""
    batches: int = 0
    lineage: dict[int, dict[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.write("metadata", json.dumps({"id": QUERY_ID}))
        self.write("state/0/_metadata/metadata", 'v1\n{"operatorInfo":{"operatorId":0}}')
        for partition in range(self.partitions):
            self.write(f"state/0/{partition}/_metadata/schema", f"schema of {partition}")

    @property
    def query(self) -> Path:
        return self.root / "query"

    def write(self, path: str, content: str | bytes) -> Path:
        target = self.query / path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.tmp")
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.rename(target)
        return target

    def commit(self, times: int = 1) -> FakeQuery:
        for _ in range(times):
            batch = self.batches
            header = {"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": str(self.partitions)}}
            self.write(f"offsets/{batch}", f'v1\n{json.dumps(header)}\n{{"pos":{batch}}}')
            ids = [self.change(partition, batch + 1) for partition in range(self.partitions)]
            self.lineage[batch + 1] = dict(enumerate(ids))
            done: dict[str, object] = {"nextBatchWatermarkMs": 1000 * batch}
            if self.unique_ids:
                done["stateUniqueIds"] = {"0": [[uid] for uid in ids]}
            self.write(f"commits/{batch}", f"v{2 if self.unique_ids else 1}\n{json.dumps(done)}")
            self.batches += 1
        return self

    def name(self, partition: int, version: int, uid: str | None = None) -> str:
        known = uid or self.lineage.get(version, {}).get(partition, "")
        return (
            f"state/0/{partition}/{version}_{known}" if self.unique_ids else f"state/0/{partition}/{version}"
        )

    def change(self, partition: int, version: int) -> str:
        """Write a change file, with the lineage Spark gives it; return its unique id."""
        uid = str(uuid.uuid4())
        before = [
            {"version": v, "checkpointUniqueId": ids[partition]}
            for v, ids in sorted(self.lineage.items())
            if v < version and partition in ids
        ]
        head = json.dumps(before).encode()
        record = struct.pack(">H", 2) + b"v3" + struct.pack(">H", len(head)) + head + uid.encode()
        self.write(f"{self.name(partition, version, uid)}.changelog", _lz4_block(record))
        return uid

    def snapshot(self, version: int, *, uid: str | None = None) -> FakeQuery:
        """Write the snapshot of every partition at ``version``, each with one immutable file."""
        for partition in range(self.partitions):
            content = f"table {partition} at {version}".encode() * 50
            table = f"{version:06d}-{uuid.uuid4()}.sst"
            self.write(f"state/0/{partition}/SSTs/{table}", content)
            tables = [{"dfsSstFileName": table, "sizeBytes": len(content)}]
            archive = self.query / f"{self.name(partition, version, uid)}.zip"
            partial = archive.with_name(".zip.tmp")
            with zipfile.ZipFile(partial, "w") as file:
                file.writestr("metadata", "v1\n" + json.dumps({"sstFiles": tables}))
            partial.rename(archive)
        return self

    def remove(self, pattern: str) -> list[str]:
        """Remove what matches below ``query``; returns the names, so that a test can insist on some."""
        found = sorted(self.query.glob(pattern))
        for path in found:
            path.unlink()
        assert found, f"nothing matches {pattern}"
        return [path.name for path in found]
