"""Thirty-two faults of this project, each put back in a copy: the tests find every one (ARGS: those of a test)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.root import ROOT

NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", ".*cache*", ".hypothesis", ".demo", "build", "dist")


WORLDS = "tests/sim/test_sim.py -k whatever_happens"
"""Simulated worlds; as many as it takes."""


class Fault(NamedTuple):
    """A text of the library that mended something, what stood there before, and the tests that find that."""

    what: str
    file: str
    mended: str
    before: str
    test: str


FAULTS = (
    Fault(
        "a barrier was late at the moment its timer switches",
        "core/alignment/phases.py",
        "due < now",
        "due <= now",
        "tests/core/alignment/test_alignment_alternating.py",
    ),
    Fault(
        "hooks behind one that fails were not asked",
        "runtime/effects.py",
        "            failures.append(error)",
        "            raise error",
        "tests/coordinator/test_hooks.py",
    ),
    Fault(
        "a restore point that the end of a run deleted was begun from",
        "core/coordinator/lifecycle.py",
        ", line=line))",
        "))",
        "tests/coordinator/test_restoring.py",
    ),
    Fault(
        "a checkpoint built on one of a history that was left",
        "core/coordinator/triggering.py",
        "        and on_line(c, state.record.line)\n",
        "",
        "tests/coordinator/test_restoring.py",
    ),
    Fault(
        "the savepoint of a stop was disposed of before its run had ended",
        "core/coordinator/lifecycle.py",
        "if is_ending_the_run(record, found):",
        "if False:",
        "tests/coordinator/test_flinks_restores_and_stops.py",
    ),
    Fault(
        "a run that began without state showed what an earlier one was restored from",
        "runtime/claim.py",
        ', "restored_id": None, "restored_at": None',
        "",
        "tests/coordinator/test_flinks_restores_and_stops.py",
    ),
    Fault(
        "who waited for a stop never heard where its savepoint is",
        "core/coordinator/lifecycle.py",
        ".then(with_run_ended, input.status)",
        "",
        "tests/coordinator/test_stop_with_savepoint.py",
    ),
    Fault(
        "another process waited for subtasks that had finished",
        "core/coordinator/triggering.py",
        "finished_subtasks=_partly_finished(plan, stage.uid)",
        "finished_subtasks=()",
        "tests/coordinator/test_flinks_restores_and_stops.py",
    ),
    Fault(
        "a restore left no savepoint behind",
        "runtime/claim.py",
        ', "savepoints": after[retained:]',
        "",
        "tests/coordinator/test_older_hours_and_days.py",
    ),
    Fault(
        "shared files of a checkpoint went that only the stored pointer of readers kept",
        "runtime/loop.py",
        "with_stored(self.engine.state, self.engine.stored)",
        "self.engine.state",
        "tests/coordinator/test_tables_shown.py",
    ),
    Fault(
        "list state without items lost its name",
        "testing/flink/assignment.py",
        "if items or _is_empty_there(old, subtask, name, mode, parallelism):",
        "if items:",
        "tests/testing/flink/test_assignment.py",
    ),
    Fault(
        "data that ended while a stage was suspended finished its operators",
        "core/subtask/checkpoints.py",
        "done = self.at_end_of_data or self.synchronous is not None",
        "done = self.at_end_of_data or self._drains(self.last_seen)",
        "tests/core/subtask/test_subtask.py",
    ),
    Fault(
        "a run under an earlier one's name went on from the latest instead of what it named",
        "core/restore/choice.py",
        "return point is None or _names(point, line.base)",
        "return True",
        "tests/core/restore/test_restore_choice.py",
    ),
    Fault(
        "an imported snapshot of another history passed for one of our own",
        "core/restore/start_refusals.py",
        "    if not is_asked or history is None or not history.lineage",
        "    if of.load.known is not None or not is_asked or history is None or not history.lineage",
        "tests/core/restore/test_restore_choice.py",
    ),
    Fault(
        "a self-join was taken back by the slower side's position",
        "spark/channel/in_flight.py",
        "channel_positions(offsets, names, max)",
        "channel_positions(offsets, names)",
        "tests/spark/streaming/test_stream_parts.py",
    ),
    Fault(
        "a replay began with a snapshot that was not complete by the moment",
        "operations/readers/replay.py",
        "entry.completed_at <= at",
        "entry.triggered_at <= at",
        "tests/operations/readers/test_replay.py",
    ),
    Fault(
        "a schedule removed savepoints of the deployment it was copied from",
        "dagster/jobs/dispose.py",
        "if newest and same_place(s.location.base_uri, newest.location.base_uri)]",
        "if newest]",
        "tests/dagster/jobs/test_savepoint_schedule.py",
    ),
    Fault(
        "a launched program that was interrupted was a run that succeeded",
        "dagster/launched/run.py",
        "if ended is not None and ended.interrupted:",
        "if False:",
        "tests/dagster/launched/test_messages.py",
    ),
    Fault(
        "a second run under one name did nothing and succeeded",
        "spark/epoch/run.py",
        'self.attempt.progress(f"{self.run_id}-{self.coordinator.epoch}")',
        "self.attempt.progress(self.run_id)",
        "tests/spark/epoch/test_programs.py -k second_run",
    ),
    Fault(
        "a query that somebody stopped had read everything",
        "spark/epoch/drains.py",
        "if not has_read_everything(query):",
        "if False:",
        "tests/spark/epoch/test_stopped_query.py",
    ),
    Fault(
        "fields of structs in state were told apart by their places alone",
        "spark/plan/rules.py",
        "return why_other_fields(before.state_fields, now.state_fields)",
        'return ""',
        "tests/spark/plan/test_rules.py",
    ),
    Fault(
        "a checkpoint was complete with one stage missing",
        "core/checkpoint/pending.py",
        "return not self.outstanding(pending)",
        "return len(self.outstanding(pending)) < 2",
        WORLDS,
    ),
    Fault(
        "a checkpoint's number was given again after a restart",
        "runtime/claim.py",
        '"next_id": restored.next_checkpoint_id,',
        '"next_id": max(1, restored.next_checkpoint_id - 1),',
        WORLDS,
    ),
    Fault(
        "a fenced attempt went on with its successor's record",
        "runtime/engine.py",
        "if record.epoch != self._state.epoch:",
        "if False:",
        WORLDS,
    ),
    Fault(
        "two attempts had one number",
        "runtime/claim.py",
        "max(record.epoch, world.epoch) + 1)",
        "max(record.epoch, world.epoch, 1))",
        WORLDS,
    ),
    Fault(
        "a second savepoint was kept in place of the first",
        "core/coordinator/completion.py",
        "savepoints=(*record.savepoints, entry)))",
        "savepoints=(entry,)))",
        WORLDS,
    ),
    Fault(
        "a restore kept rows that came after it",
        "spark/sink/versioned/roll_back.py",
        "if is_shown and version.is_untouched(found):",
        "if True:",
        WORLDS,
    ),
    Fault(
        "a restore left out what its checkpoint had staged",
        "spark/sink/versioned/roll_back.py",
        "return RollBackPath(found.mark, batches=batches)",
        "return RollBackPath(found.mark)",
        WORLDS,
    ),
    Fault(
        "batches were published twice",
        "spark/sink/versioned/engine.py",
        '"through_batch": max(',
        '"through_batch": min(',
        WORLDS,
    ),
    Fault(
        "a cut named batches that came after it",
        "spark/sink/phases.py",
        "numbers = batches_between(stage_dir, shown, through)",
        "numbers = batches_between(stage_dir, shown, None)",
        WORLDS,
    ),
    Fault(
        "rows behind a barrier were published with its checkpoint",
        "spark/sink/phases.py",
        "batches_between(part.stage_dir, shown, part.through))",
        "batches_between(part.stage_dir, shown, BatchId(10**6)))",
        WORLDS,
    ),
    Fault(
        "state of one batch before was captured",
        "spark/snapshot/state_files.py",
        "for version in range(target, 0, -1):",
        "for version in range(target - 1, 0, -1):",
        WORLDS,
    ),
)


def is_found(copy: Path, fault: Fault) -> bool:
    """Put one fault back into the copy, run its tests, mend it again; tell whether one failed."""
    path = copy / "dagster_ckpt" / fault.file
    text = path.read_text()
    told = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "SIM_SEEDS": "12"}
    path.write_text(text.replace(fault.mended, fault.before))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *fault.test.split()]
    said = subprocess.run(command, cwd=copy, env=told, check=False, stdout=subprocess.PIPE, text=True).stdout
    path.write_text(text)
    failed = [line[:200] for line in said.splitlines() if line.startswith("FAILED ")]
    print("found " if failed else "MISSED", fault.what, "-", *failed or [said[-2000:]], flush=True)
    return bool(failed)


def main(arguments: Sequence[str]) -> str:
    """Try the faults that are asked for. Returns what is to be said where one is not found."""
    chosen = [f for f in FAULTS if all(text in f"{f.file} {f.test}" for text in arguments)]
    with tempfile.TemporaryDirectory(prefix="dagster-ckpt-mutants-") as folder:
        copy = shutil.copytree(ROOT, Path(folder) / "copy", symlinks=True, ignore=NOT_COPIED)
        missed = [fault for fault in chosen if not is_found(copy, fault)]
    return f"{len(missed)} of {len(chosen)} faults were not found" if missed or not chosen else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or None)
