"""Stand-ins in memory: of the two ports that keep things, of topics, and of time and deletions, as the test says.

They are public: tests of pipelines may use them. State survives a simulated crash of the coordinator, because
it lives in the object, not in its user; two coordinators that race share one object.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from dagster_ckpt.authoring.targets import SourceOrigin
from dagster_ckpt.core.ids import CheckpointId, PipelineId
from dagster_ckpt.core.paths import AlreadyExists, Digest, StoredObject, checked_relative
from dagster_ckpt.core.restore.horizon import Bounds, Positions, TopicBounds, TopicClock
from dagster_ckpt.digests import digest_bytes
from dagster_ckpt.errors import Corrupt, InvalidRequest, NotFound, Unavailable
from dagster_ckpt.ports import AuditRow, CheckpointStorage, Committed, Conflict, HistoryRow, StoredRecord


class ManualClock:
    """A clock that stands still until ``advance``; both its times move together."""

    def __init__(self, *, now: float = 1_000_000.0, monotonic: float = 1_000.0) -> None:
        self._now = now
        self._monotonic = monotonic

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self._now

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        self._now += seconds
        self._monotonic += seconds


class ManualBackground:
    """Runs work at once, or keeps it back between ``block`` and ``release``."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        """Work kept back, in order."""
        self._is_blocked = False

    def submit(self, work: Callable[[], None]) -> None:
        """Run the work, or keep it back."""
        if self._is_blocked:
            self.waiting.append(work)
        else:
            work()

    def drain(self) -> None:
        """Do nothing more: work that is kept back stays so (a coordinator that closes must not hang a test)."""

    def block(self) -> None:
        """Keep everything back from now on."""
        self._is_blocked = True

    def release(self, count: int | None = None) -> None:
        """Run what was kept back, oldest first; with ``count`` only so many, and the rest stays blocked."""
        self._is_blocked = count is not None
        due, self.waiting = self.waiting[:count], self.waiting[len(self.waiting[:count]) :]
        for work in due:
            work()

    def forget(self) -> None:
        """Lose what was kept back, as a crash does."""
        self.waiting = []
        self._is_blocked = False


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


class NestedStorage:
    """The keys of ``inner`` below ``prefix``."""

    def __init__(self, inner: CheckpointStorage, prefix: str) -> None:
        self.base_uri = f"{inner.base_uri}/{prefix}"
        self._inner = inner
        self._prefix = prefix

    def create(self, key: str, source: bytes | Path) -> Digest | AlreadyExists:
        """Store under a new key."""
        made = self._inner.create(f"{self._prefix}/{key}", source)
        return AlreadyExists(key) if isinstance(made, AlreadyExists) else made

    def read(self, key: str) -> bytes:
        """Return the whole content. Raises NotFound."""
        return self._inner.read(f"{self._prefix}/{key}")

    def fetch(self, key: str, target: Path, expected: Digest) -> None:
        """Write the content to a new local file, verified."""
        self._inner.fetch(f"{self._prefix}/{key}", target, expected)

    def list(self, prefix: str) -> Iterable[StoredObject]:
        """Yield every object below ``prefix``."""
        whole = f"{self._prefix}/{prefix}" if prefix else self._prefix
        cut = len(self._prefix) + 1
        return iter([StoredObject(item.key[cut:], item.size) for item in self._inner.list(whole)])

    def delete(self, keys: Sequence[str]) -> None:
        """Remove exactly these keys."""
        self._inner.delete([f"{self._prefix}/{key}" for key in keys])


class MemoryTopics(SourceOrigin):
    """Topics whose records a test adds and expires; it passes the contract suite of the real ones."""

    def __init__(self) -> None:
        self.place = "memory://topics"
        self.groups: dict[str, Positions] = {}
        """What consumer groups were told."""
        self.is_down = False
        """True: nobody answers."""
        self._made: dict[str, int] = {}
        self._retention: dict[str, float | None] = {}
        self._times: dict[str, list[list[float]]] = {}
        self._earliest: dict[tuple[str, int], int] = {}

    def open(self) -> MemoryTopics:
        """Return itself."""
        return self

    def create(self, topic: str, partitions: int = 1, *, retention: float | None = None) -> None:
        """Make a topic, or make it again without its records."""
        self._made[topic] = self._made.get(topic, 0) + 1
        self._retention[topic] = retention
        self._times[topic] = [[] for _ in range(partitions)]
        for partition in range(partitions):
            self._earliest.pop((topic, partition), None)

    def delete(self, topic: str) -> None:
        """Remove a topic."""
        del self._times[topic], self._retention[topic]

    def append(self, topic: str, partition: int, records: int, *, at: float = 0.0) -> None:
        """Add records of one time."""
        self._times[topic][partition] += [at] * records

    def expire(self, topic: str, partition: int, before: int) -> None:
        """Remove the records with lower offsets."""
        self._earliest[topic, partition] = before

    def bounds(self, topics: Collection[str]) -> TopicBounds:
        """Return the ends of every partition of these topics."""
        self._answer()
        return {
            topic: {
                partition: Bounds(earliest=self._earliest.get((topic, partition), 0), latest=len(times))
                for partition, times in enumerate(self._times[topic])
            }
            for topic in topics
            if topic in self._times
        }

    def ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return which of the topics of its name each is."""
        self._answer()
        return {topic: f"{topic} {self._made[topic]}" for topic in topics if topic in self._times}

    def clocks(self, positions: Positions) -> Mapping[str, TopicClock]:
        """Return how long records are kept, and of when those are that would be read next."""
        self._answer()
        found = {}
        for topic, partitions in positions.items():
            retention = self._retention[topic]
            times = {
                partition: self._times[topic][partition][at]
                for partition, at in partitions.items()
                if retention is not None and at < len(self._times[topic][partition])
            }
            found[topic] = TopicClock(retention=retention, times=times)
        return found

    def commit(self, group: str, positions: Positions) -> None:
        """Note what a group was told."""
        self._answer()
        self.groups[group] = positions

    def _answer(self) -> None:
        if self.is_down:
            raise Unavailable(f"{self.place} did not answer: ask again")
