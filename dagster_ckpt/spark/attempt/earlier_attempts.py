"""Earlier attempts: whose a working directory is, whether its last one ended cleanly, and tables that are left.

A directory is worked on in again only as its last attempt left it: an older copy of it, put back from a backup, has
an older mark.

Tables that are left stay as they are whatever is restored, so what they show may not belong to it. Each checkpoint
says what does.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_never

from dagster_ckpt.core.checkpoint.record import CoordinatorRecord
from dagster_ckpt.core.checkpoint.tables import rows_at
from dagster_ckpt.core.ids import CheckpointId, PipelineId, StageUid
from dagster_ckpt.core.model import Record, TableSnapshot
from dagster_ckpt.core.paths import same_place
from dagster_ckpt.core.request import Completed
from dagster_ckpt.core.restore.choice import Adopt, Fresh, Restore, RestoreDecision
from dagster_ckpt.core.restore.facts import RestorePurpose, Seen
from dagster_ckpt.errors import Corrupt
from dagster_ckpt.runtime.coordinator import CheckpointCoordinator
from dagster_ckpt.spark.attempt.sinks import PipelineSinks
from dagster_ckpt.spark.directories import AttemptDirectory, StageDirectory
from dagster_ckpt.spark.files import replace_whole
from dagster_ckpt.spark.sink.committables import encoded, read_record
from dagster_ckpt.spark.sink.published import place_of_rows, shown_as_noted
from dagster_ckpt.spark.stage_report import Reporter

if TYPE_CHECKING:
    from dagster_ckpt.core.model import CheckpointMetadata


def digest_of(directory: AttemptDirectory) -> str:
    """Return a digest over names and contents, in order. Raises OSError where one cannot be read."""
    found = hashlib.blake2b(digest_size=16)
    for stage in sorted(
        path for path in directory.root.iterdir() if path.is_dir() and path.name[0] not in "._"
    ):
        for path in _files(StageDirectory(stage)):
            content = path.read_bytes()
            found.update(f"{path.relative_to(directory.root)} {len(content)}\n".encode())
            found.update(content)
    return found.hexdigest()


def _files(stage: StageDirectory) -> Iterator[Path]:
    """Yield positions of the query, entries of the channel log, committables, and the note of what was published."""
    for folder in (stage.query / "offsets", stage.query / "commits", stage.log, stage.prepared):
        with suppress(FileNotFoundError):
            yield from sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
    yield from (path for path in (stage.query / "metadata", stage.published) if path.exists())


class AttemptMark(Record):
    """``attempt.json``: replaced whole when an attempt begins to work in the directory, and when it ends."""

    format_version: Literal[1] = 1
    lineage: str
    epoch: int
    """Attempt that works there, or did last."""
    ended: bool = False
    """All its queries were stopped at batch boundaries, and nothing was written since."""
    left: str = ""
    """Digest of what it left (``digest_of``); empty: it has not ended, or a version without it has written this."""


def mark(directory: AttemptDirectory, lineage: str, epoch: int, *, ended: bool = False) -> None:
    """Write the mark, durably."""
    directory.root.mkdir(parents=True, exist_ok=True)
    left = digest_of(directory) if ended else ""
    replace_whole(directory.mark, encoded(AttemptMark(lineage=lineage, epoch=epoch, ended=ended, left=left)))


def mark_ended(coordinator: CheckpointCoordinator) -> None:
    """Write that the attempt ended cleanly; before its coordinator is closed, which says the same in the store."""
    if coordinator.working_directory:
        directory = AttemptDirectory(Path(coordinator.working_directory))
        mark(directory, coordinator.lineage, coordinator.epoch, ended=True)


def is_as_left(directory: AttemptDirectory, record: CoordinatorRecord) -> bool:
    """Tell whether the directory is as the record's last attempt left it; before there were marks, it is believed."""
    if not record.lineage:
        return True
    try:
        found = read_record(AttemptMark, directory.mark)
        return (
            found is not None
            and found.ended
            and found.epoch == record.status_epoch
            and found.lineage in (record.lineage, *record.lineages)
            and found.left in ("", digest_of(directory))
        )
    except (Corrupt, OSError):
        return False


def seen_in_directory(work_dir: Path, pipeline: PipelineId) -> list[Seen]:
    """Return the newest attempt that worked below ``work_dir``; nothing where none did."""
    found: list[Seen] = []
    for number, directory in AttemptDirectory.all_of(work_dir, pipeline).items():
        try:
            left = read_record(AttemptMark, directory.mark)
        except Corrupt:
            left = None
        found.append(
            Seen(
                where=f"the working directory {directory.root}",
                lineage=left.lineage if left is not None else "",
                epoch=max(number, left.epoch if left is not None else 0),
                holds=False,
            )
        )
    return sorted(found, key=lambda seen: seen.epoch)[-1:]


def left_tables(
    sinks: PipelineSinks, record: CoordinatorRecord, directory: AttemptDirectory, decision: RestoreDecision
) -> dict[str, TableSnapshot]:
    """Return the tables of stages that have none now, with the rows that belong to what is begun from.

    ``record``: as the attempt before has left it.
    """
    known = {} if record.shown is None else {uid: one.as_cut() for uid, one in record.shown.tables.items()}
    known |= record.left_tables
    match decision:
        case Restore(purpose=RestorePurpose.FORK):
            return {}
        case Adopt():
            noted = {uid: directory.stage(uid).root for uid in sinks.pipeline.stages}
            places = {uid: place_of_rows(root) for uid, root in noted.items()}
            found = {
                str(uid): shown_as_noted(noted[uid], place).as_cut() for uid, place in places.items() if place
            }
            found = record.left_tables | found
        case Restore():
            found = _without_rows(known) | rows_at(decision.metadata)
        case Fresh():
            found = _without_rows(known)
        case _:
            assert_never(decision)
    has = {str(table.uid) for table in sinks.pipeline.derived}
    has |= {str(name) for uid, _, _ in sinks.opened() for name in sinks.names_of(uid)}
    return {uid: table for uid, table in found.items() if uid not in has}


def _without_rows(tables: dict[str, TableSnapshot]) -> dict[str, TableSnapshot]:
    return {uid: table.model_copy(update={"head": None}) for uid, table in tables.items()}


def table_of(uid: StageUid, decision: Restore) -> TableSnapshot | None:
    """Return a sink's table in the restore point."""
    match = next((m for m in decision.stages.matches if m.uid == uid), None)
    return None if match is None else match.snapshot.table


def left_table(uid: StageUid, sinks: PipelineSinks, decision: Restore) -> TableSnapshot | None:
    """Return the table that a stage had before it had none for a while; None too for one whose query is new: its
    batches begin with numbers that the table has seen.
    """
    left = decision.metadata.left_tables
    found = next((left[name] for name in sinks.names_of(uid) if name in left), None)
    if found is None or uid in decision.stages.new or decision.purpose is RestorePurpose.FORK:
        return None
    return found if same_place(found.uri, sinks.of(uid).place) else None


def had_rows(sinks: PipelineSinks, decision: Restore) -> list[StageUid]:
    """Return the sinks of which a checkpoint knows that they had rows before they were away."""
    had = {name for name, one in decision.metadata.left_tables.items() if one.head is not None}
    return [uid for uid, _, _ in sinks.opened() if not had.isdisjoint(sinks.names_of(uid))]


def tell_left(sinks: PipelineSinks, record: CoordinatorRecord, reporter: Reporter) -> None:
    """Tell of tables that the pipeline has no more: a restore takes no rows back there."""
    if record.shown is None:
        return
    has = {name for uid in sinks.pipeline.stages for name in sinks.names_of(uid)}
    has |= {table.uid for table in sinks.pipeline.derived}
    places = {sink.place for _, _, sink in sinks.opened()}
    for uid, table in record.shown.tables.items():
        if uid not in has and table.uri not in places and table.head is not None:
            reporter.warn(
                f"{table.uri} stays as it is, whatever was restored: the pipeline has no {uid!r} any more. It "
                f"shows checkpoint {table.head}, and rows that were kept there may now go elsewhere too"
            )


def tell_orders(sinks: PipelineSinks, record: CoordinatorRecord, reporter: Reporter) -> None:
    """Tell of orders for rows of a quarantine that no stage has any more: the next checkpoint forgets them."""
    has = {name for uid, _, _ in sinks.opened() for name in sinks.names_of(uid)}
    for order in record.requeue:
        if order.stage not in has:
            reporter.warn(
                f"rows of the quarantine of {order.stage!r} were to go through again, and no stage has that quarantine "
                "any more: they stay there. Give the stage a condition that quarantines, and order them once more"
            )


class TableCleanUp:
    """Collects when it is told to; a snapshot's metadata is read once."""

    def __init__(
        self,
        *,
        coordinator: CheckpointCoordinator,
        tables: PipelineSinks,
        attempt: AttemptDirectory,
        publishing: threading.Lock,
    ) -> None:
        """``publishing`` is held while tables are published."""
        self._coordinator = coordinator
        self._tables = tables
        self._attempt = attempt
        self._publishing = publishing
        self._read: dict[CheckpointId, CheckpointMetadata] = {}

    def collect(self) -> int | None:
        """Remove what nothing needs; return how many files went, None when this is not the moment.

        A pending checkpoint may hold rows that were prepared before the latest publish: nobody else knows of them, so
        none may be pending. A cut taken later holds later rows only, and no publish can come in between.
        """
        self._read_missing()
        former = self._coordinator.retained_under_former_names()
        with self._publishing:
            record = self._coordinator.record
            restorable = [CheckpointId(k.checkpoint_id) for k in (*record.completed, *record.savepoints)]
            if record.pending or any(number not in self._read for number in restorable):
                return None
            self._read = {number: self._read[number] for number in restorable}
            shown = self._coordinator.stored_record.shown
            return self._tables.collect_garbage(self._attempt, [*self._read.values(), *former], shown)

    def _read_missing(self) -> None:
        """Read snapshots not read yet; each once, because none changes. Raises what keeps one from being read."""
        record = self._coordinator.record
        for known in (*record.completed, *record.savepoints):
            number = CheckpointId(known.checkpoint_id)
            if number not in self._read:
                outcome = self._coordinator.status_of(number)
                if isinstance(outcome, Completed):
                    self._read[number] = outcome.metadata
