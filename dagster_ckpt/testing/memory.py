"""In-memory stand-ins for the two ports that keep things; both pass the contract suites of the real ones.

They are public: tests of pipelines may use them. State survives a simulated crash of the coordinator, because
it lives in the object, not in its user; two coordinators that race share one object.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.paths import AlreadyExists, Digest, StoredObject, checked_relative
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound
from dagster_ckpt.ports import AuditRow, Committed, Conflict, HistoryRow, StoredRecord


class MemoryCoordinatorStore:
    """A CoordinatorStore in a dict; linearizable among the threads of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[PipelineId, StoredRecord] = {}
        self._audit: list[AuditRow] = []
        self._history: dict[PipelineId, dict[CheckpointId, HistoryRow]] = {}

    def load(self, pipeline: PipelineId) -> StoredRecord | None:
        """Return the latest record, or None."""
        with self._lock:
            return self._records.get(pipeline)

    def compare_and_set(
        self,
        pipeline: PipelineId,
        expected: int,
        body: str,
        history: Sequence[HistoryRow] = (),
        audit: Sequence[AuditRow] = (),
        *,
        forgotten: Collection[CheckpointId] = (),
    ) -> Committed | Conflict:
        """Write ``body`` as version ``expected + 1`` if the stored version is ``expected`` (0: no record)."""
        foreign = [row.pipeline for row in history if row.pipeline != pipeline]
        if foreign:
            raise InvalidRequest(
                f"a history row of {foreign[0]!r} was written with the record of {pipeline!r}"
            )
        with self._lock:
            current = self._records.get(pipeline)
            if (current.version if current else 0) != expected:
                return Conflict(current)
            self._records[pipeline] = StoredRecord(expected + 1, body)
            rows = self._history.setdefault(pipeline, {})
            rows.update((row.checkpoint_id, row) for row in history)
            for number in forgotten:
                rows.pop(number, None)
            self._audit += audit
            return Committed(expected + 1)

    def history(
        self, pipeline: PipelineId, *, limit: int, before: CheckpointId | None = None
    ) -> list[HistoryRow]:
        """Return at most ``limit`` rows, newest id first, with ids below ``before`` when it is given."""
        with self._lock:
            rows = self._history.get(pipeline, {})
            ids = sorted((n for n in rows if before is None or n < before), reverse=True)
            return [rows[n] for n in ids[: max(limit, 0)]]

    def audited(self, pipeline: PipelineId, *, limit: int) -> list[AuditRow]:
        """Return at most ``limit`` rows, newest first."""
        with self._lock:
            return [row for row in reversed(self._audit) if row.pipeline == pipeline][: max(limit, 0)]

    def pipelines(self) -> list[PipelineId]:
        """Return the pipelines that have a record, sorted."""
        with self._lock:
            return sorted(self._records)


class MemoryCheckpointStorage:
    """A CheckpointStorage in a dict; ``contents`` and ``deleted`` are there for assertions."""

    def __init__(self, base_uri: str = "memory://checkpoints") -> None:
        self.base_uri = base_uri.rstrip("/")
        self.contents: dict[str, bytes] = {}
        """Every visible key and its bytes. A test may damage or remove entries."""
        self.deleted: list[str] = []
        """Keys removed so far, in order."""
        self._lock = threading.Lock()

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        """Store bytes, or a local file's content, under a new key."""
        checked_relative(key)
        content = source.read_bytes() if isinstance(source, Path) else bytes(source)
        with self._lock:
            if key in self.contents:
                return AlreadyExists(key)
            self.contents[key] = content
        return digest_bytes(content)

    def read(self, key: str) -> bytes:
        """Return the whole content. Raises NotFound."""
        with self._lock:
            try:
                return self.contents[checked_relative(key)]
            except KeyError:
                raise NotFound(f"{key!r} does not exist in checkpoint storage {self.base_uri}") from None

    def fetch(self, key: str, target: Path, expected: Digest) -> None:
        """Write the content to a new local file, verified; raises NotFound or Corrupt and leaves no file."""
        content = self.read(key)
        found = digest_bytes(content)
        if found != expected:
            raise Corrupt(
                f"{key!r} in checkpoint storage {self.base_uri} is damaged: expected {expected}, "
                f"found {found}; restore from another checkpoint"
            )
        partial = target.with_name(f".{target.name}.part-{threading.get_ident()}")
        partial.write_bytes(content)
        os.replace(partial, target)

    def list(self, prefix: str) -> Iterable[StoredObject]:
        """Yield every object whose key begins with ``prefix + '/'``."""
        start = f"{checked_relative(prefix)}/" if prefix else ""
        with self._lock:
            return iter([StoredObject(k, len(v)) for k, v in self.contents.items() if k.startswith(start)])

    def delete(self, keys: Sequence[str]) -> None:
        """Remove exactly these keys; missing ones are no error."""
        with self._lock:
            for key in keys:
                if self.contents.pop(checked_relative(key), None) is not None:
                    self.deleted.append(key)
