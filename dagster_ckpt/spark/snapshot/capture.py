"""Plans a capture: exactly the files of Spark's checkpoint directory that a restart at batch N needs.

A pure reader of files: no Spark, no pyspark, and the query is never paused. Spark writes each file once and
keeps about a hundred batches, so any recent batch can be captured while later ones run. The truth about
commits is the ``commits/`` directory. What was found necessary, by leaving out one file after the other:
``metadata``, ``offsets/N`` and ``offsets/N-1``, ``commits/N``, the source logs up to N, and per state store
partition the newest snapshot at or below version N + 1 with the changes after it. State schemas
are needed by some operators and by the state reader; checksum side files by none.

Spark deletes files of batches older than about a hundred; at ten triggers a second a slow upload would lose
them. A pin is a hard link in ``<stage working directory>/pins/<checkpoint>``: it costs some 20 µs, and Spark
never edits a file in place, so the content is fixed. File systems without hard links go unpinned: a file
that vanishes under the upload then declines the checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dagster_ckpt.core.ids import BatchId, CheckpointId
from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.core.model import FileEntry, FileKind
from dagster_ckpt.errors import Declined, NotFound
from dagster_ckpt.spark.directories import PLAN, StageDirectory
from dagster_ckpt.spark.files import has_no_links, replace_whole
from dagster_ckpt.spark.snapshot.checkpoint_files import (
    CommitRecord,
    OffsetRecord,
    Unreadable,
    read_commit,
    read_offset,
    read_query_id,
)
from dagster_ckpt.spark.snapshot.rewritten import refuse_own_paths
from dagster_ckpt.spark.snapshot.state_files import PlannedFile, Vanished, planned, state_files

__all__ = [
    "CapturePlan",
    "PlannedFile",
    "latest_committed_batch",
    "note_topic_ids",
    "noted_topic_ids",
    "latest_planned_batch",
    "log_up_to",
    "plan_beginning",
    "plan_capture",
    "read_offsets",
]

TRIES = 50
"""How often a plan is begun again when maintenance removed a file under it: a busy machine may lose this race often."""

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PARTITIONS = ("spark.sql.streaming.internal.stateStore.partitions", "spark.sql.shuffle.partitions")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """A pinned batch and the files a restart after it needs."""

    batch_id: BatchId | None
    """Last committed micro-batch in the cut; None: the query has committed none."""
    files: tuple[PlannedFile, ...]
    query_id: str | None = None
    """None: the query has never been started."""
    offsets: dict[str, str] = field(default_factory=dict)
    """End offset per source (name or index) as JSON text; sources without one are left out."""
    watermark_ms: int | None = None
    state_formats: dict[str, str] = field(default_factory=dict)
    """For people: provider, formats, partitions."""
    subtasks: int = 1
    """State partitions; 1 for a stateless query."""

    @property
    def bytes_full(self) -> int:
        """Bytes a restore reads."""
        return sum(file.size for file in self.files)


def latest_committed_batch(query_dir: Path) -> BatchId | None:
    """Return the newest batch in the commit log, or None when there is none."""
    return _newest(query_dir / "commits")


def latest_planned_batch(query_dir: Path) -> BatchId | None:
    """Return the newest batch in the offset log: what a sink may have rows of, committed or not."""
    return _newest(query_dir / "offsets")


def _newest(log: Path) -> BatchId | None:
    numbers = [int(name) for name in _names(log) if name.isdecimal()]
    return BatchId(max(numbers)) if numbers else None


def read_offsets(query_dir: Path, batch_id: BatchId) -> dict[str, str]:
    """Return the end offset of ``batch_id`` per source (name or index), as JSON text.

    Raises NotFound when Spark keeps that batch no longer, Declined when its entry is damaged.
    """
    try:
        return dict(read_offset(f"{query_dir}/offsets/{batch_id}").offsets)
    except FileNotFoundError as error:
        raise NotFound(f"batch {batch_id} has no entry in {query_dir}/offsets") from error
    except Unreadable as error:
        raise Declined(str(error)) from error


def plan_capture(query_dir: Path, batch_id: BatchId | None = None) -> CapturePlan:
    """Pin a committed batch and list what a restart after it needs; paths begin with ``query/``.

    ``query_dir`` is ``<stage working directory>/query``. Without ``batch_id`` the newest committed batch is
    taken, and a newer one when maintenance removes a file meanwhile; with it no other batch is ever taken.
    Raises Declined when the batch is not committed, no longer kept, or damaged.
    """
    trouble = ""
    for _ in range(TRIES):
        batch = latest_committed_batch(query_dir) if batch_id is None else batch_id
        try:
            return plan_beginning(query_dir) if batch is None else _plan(query_dir, batch)
        except (Vanished, FileNotFoundError) as error:
            trouble = str(error)
        except Unreadable as error:
            raise Declined(f"batch {batch} of {query_dir} cannot be captured: {error}") from error
    which = "no recent batch could" if batch_id is None else f"batch {batch_id} could not"
    raise Declined(
        f"{which} be captured from {query_dir} in {TRIES} tries: {trouble}. Spark keeps "
        "spark.sql.streaming.minBatchesToRetain batches: raise it when captures come later than that"
    )


def plan_beginning(query_dir: Path) -> CapturePlan:
    """Plan a cut before any batch: the query's id, and where sources such as Kafka begin.

    Right whatever the query has committed since. Raises Declined when a file is damaged.
    """
    root = query_dir.parent
    if not (query_dir / "metadata").exists():
        return CapturePlan(batch_id=None, files=())
    files = (planned(root, "query/metadata", FileKind.QUERY), *_source_files(root, {}))
    try:
        query_id = read_query_id(query_dir / "metadata")
    except Unreadable as error:
        raise Declined(f"{query_dir} cannot be captured: {error}") from error
    return CapturePlan(batch_id=None, files=files, query_id=query_id)


def _plan(query_dir: Path, batch: BatchId) -> CapturePlan:
    root = query_dir.parent
    commit = read_commit(f"{query_dir}/commits/{batch}")
    offset = read_offset(f"{query_dir}/offsets/{batch}")
    partitions = _partitions(offset)
    state = state_files(root, batch, commit, partitions)
    files = [
        *_log_files(root, batch),
        *_source_files(root, offset.offsets),
        *state,
    ]
    refuse_own_paths(root, files)
    owners = {f.partition for f in state if f.partition is not None}
    return CapturePlan(
        batch_id=batch,
        files=tuple(files),
        query_id=read_query_id(query_dir / "metadata"),
        offsets=offset.offsets,
        watermark_ms=commit.watermark_ms,
        state_formats=_formats(offset, commit, state, partitions),
        subtasks=max(len(owners), 1),
    )


def _partitions(offset: OffsetRecord) -> int:
    texts = (offset.conf.get(key) for key in _PARTITIONS)
    return next((int(text) for text in texts if text is not None), 1)


def _log_files(root: Path, batch: BatchId) -> Iterator[PlannedFile]:
    yield planned(root, "query/metadata", FileKind.QUERY)
    yield planned(root, f"query/offsets/{batch}", FileKind.QUERY)
    if batch > 0:
        yield planned(root, f"query/offsets/{batch - 1}", FileKind.QUERY)
    yield planned(root, f"query/commits/{batch}", FileKind.QUERY)
    if os.path.exists(f"{root}/{PLAN}"):
        yield planned(root, PLAN, FileKind.QUERY)


# --- source logs ----------------------------------------------------------------------------------


def _source_files(root: Path, offsets: dict[str, str]) -> Iterator[PlannedFile]:
    """Yield the files that each source keeps: the file source's log up to the batch, any other source's start
    position.
    """
    sources = root / "query/sources"
    shared = shared_logs(sources, offsets)
    for source in sorted(_names(sources)):
        folder = f"query/sources/{source}"
        names = [name for name in _names(f"{root}/{folder}") if not name.startswith(".")]
        offset = offsets.get(source)
        last = None if offset is None else _log_offset(offset)
        if len(shared) > 1 and source in shared:
            # Whole: what is beyond the batch is read by the next one. Of a single log the number is right.
            last = max(int(name.removesuffix(".compact")) for name in names)
        if last is not None:
            names = log_up_to(names, last)
        elif offset is None:
            names = [name for name in names if not _is_log_of_files(root / folder / name)]
        for name in sorted(names):
            yield planned(root, f"{folder}/{name}", FileKind.SOURCE_LOG)


def shared_logs(sources: Path, offsets: Mapping[str, str]) -> frozenset[str]:
    """Return the logs of a query's streams of files where one is read twice (a self-union); none: each is read once.

    Such a stream has two offsets and one log, so that the number of a log says nothing of its offset.
    """
    found = [_log_offset(text) for text in offsets.values()]
    read = [last for last in found if last is not None and last >= 0]
    if len(set(read)) == len(read):
        return frozenset()
    logs = frozenset(name for name in _names(sources) if _has_log_of_files(sources / name))
    return logs if len(read) > len(logs) else frozenset()


def _has_log_of_files(folder: Path) -> bool:
    return any(not name.startswith(".") and _is_log_of_files(folder / name) for name in _names(folder))


def _names(folder: Path | str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _log_offset(offset: str) -> int | None:
    """Return the last entry of the file source's log that the batch has read; None for any other source."""
    try:
        value = parse_json(offset)
    except ValueError:
        return None
    return int(value["logOffset"]) if isinstance(value, dict) and "logOffset" in value else None


def _is_log_of_files(path: Path) -> bool:
    """Tell an entry of the file source's log (files of a batch that was never committed) from a start
    position.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.read(64).split("\n", 2)
    return path.suffix == ".compact" or (len(head) > 1 and head[1].startswith('{"path":'))


def log_up_to(names: list[str], last: int) -> list[str]:
    """Return the entries that tell a log of files up to ``last``: two compactions and the single ones after them.

    Spark reads the newest one only, but takes the number of entries from one compaction to the next from the names of
    two. From one alone it guesses, and a wrong guess asks for compactions that were never written: the query cannot
    start. Source: CompactibleFileStreamLog.compactInterval. Raises Vanished on a gap.
    """
    compacted = sorted(int(n.removesuffix(".compact")) for n in names if n.endswith(".compact"))
    newest = [number for number in compacted if number <= last][-2:]
    base = newest[-1] if newest else -1
    single = {int(name) for name in names if name.isdecimal()}
    missing = [number for number in range(base + 1, last + 1) if number not in single]
    if missing:
        raise Vanished(f"entry {missing[0]} of a file source's log is gone")
    return [f"{number}.compact" for number in newest] + [str(number) for number in range(base + 1, last + 1)]


def _formats(
    offset: OffsetRecord, commit: CommitRecord, state: list[PlannedFile], partitions: int
) -> dict[str, str]:
    formats = {"offset_log": offset.version, "commit_log": commit.version}
    if state:
        provider = offset.conf.get(_PROVIDER, "")
        changes = any(f.path.endswith(".changelog") for f in state)
        formats |= {
            "provider": provider.rpartition(".")[2].removesuffix("StateStoreProvider").lower(),
            "state_checkpoint_format": "2" if commit.unique_ids else "1",
            "changelog": str(changes).lower(),
            "shuffle_partitions": str(partitions),
        }
    return formats


def note_topic_ids(directory: StageDirectory, ids: Mapping[str, str]) -> None:
    """Write down the topics' ids, for the snapshots of this stage."""
    if ids and ids != noted_topic_ids(directory):
        replace_whole(directory.topics, json.dumps(dict(sorted(ids.items()))).encode())


def noted_topic_ids(directory: StageDirectory) -> dict[str, str]:
    """Return the topic ids that were noted; empty: none were."""
    try:
        found = parse_json(directory.topics.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return {str(topic): str(number) for topic, number in found.items()} if isinstance(found, dict) else {}


def uploaded_already(previous: Sequence[FileEntry]) -> frozenset[tuple[str, int]]:
    """Return (path, size) of the files an earlier checkpoint holds: content-named ones need no pin."""
    return frozenset((entry.path, entry.size) for entry in previous)


def pin_files(
    files: Sequence[PlannedFile],
    *,
    stage_dir: Path,
    checkpoint_id: CheckpointId,
    uploaded: Container[tuple[str, int]] = frozenset(),
) -> tuple[PlannedFile, ...]:
    """Hard-link the files that will have to be read; returns the same files with ``source`` at their pins.

    Raises Declined when one has vanished since it was planned: plan again. End with ``release_pins``.
    """
    folder = StageDirectory(stage_dir).pins(checkpoint_id)
    try:
        os.makedirs(folder)
    except FileExistsError:  # of a try before this one
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
    pinned = []
    try:
        for number, file in enumerate(files):
            if (file.content_named and (file.path, file.size) in uploaded) or file.source is not None:
                pinned.append(file)
                continue
            target = f"{folder}/{number}"
            os.link(f"{stage_dir}/{file.path}", target)
            pinned.append(replace(file, source=target))
    except FileNotFoundError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise Declined(
            f"{error.filename} was removed by Spark before it could be captured: plan again"
        ) from error
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not has_no_links(error):
            raise
        return tuple(files)
    return tuple(pinned)


def release_pins(stage_dir: Path, checkpoint_id: CheckpointId) -> None:
    """Let go of the pins of one checkpoint; none is no error."""
    folder = str(StageDirectory(stage_dir).pins(checkpoint_id))
    try:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_pins(stage_dir: Path) -> None:
    """Remove all pins: what an attempt that was killed left in the directory it hands on."""
    shutil.rmtree(StageDirectory(stage_dir).all_pins, ignore_errors=True)
