"""Fifty-nine faults of this project, each put back in a copy: the tests find every one (ARGS: those of a test)."""

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
        "a fork's sink that cannot begin with such rows was not asked before others had changed",
        "spark/attempt/sink_refusals.py",
        "        sinks.of(uid).refuse_fork(cut)\n",
        "",
        "tests/spark/sink/test_waiting_rows.py",
    ),
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
        "extras of each list went to the first subtasks",
        "authoring/own_objects.py",
        "return dealt, (first + extras) % parallelism",
        "return dealt, first",
        "tests/core/restore/test_list_state.py",
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
        "dagster/jobs/snapshots.py",
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
        "tests/spark/epoch/test_programs.py -k second_run -m nightly",
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
        "ext/tables/roll_back.py",
        "if is_shown and version.is_untouched(found):",
        "if True:",
        WORLDS,
    ),
    Fault(
        "a restore left out what its checkpoint had staged",
        "ext/tables/roll_back.py",
        "return RollBackPath(found.mark, batches=batches)",
        "return RollBackPath(found.mark)",
        WORLDS,
    ),
    Fault(
        "batches were published twice",
        "ext/tables/engine.py",
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
        "a stage that was tried again read on behind its barrier",
        "spark/epoch/run.py",
        "if checkpoint is not None and query.log.find_barrier(checkpoint) is not None:",
        "if False:",
        WORLDS,
    ),
    Fault(
        "rows of a staged sink stayed that came after a restore",
        "spark/sink/staged_sink.py",
        "            before = outside.go_to(before, head)\n",
        "",
        WORLDS,
    ),
    Fault(
        "state of one batch before was captured",
        "spark/snapshot/state_files.py",
        "for version in range(target, 0, -1):",
        "for version in range(target - 1, 0, -1):",
        WORLDS,
    ),
    Fault(
        "an order stayed whose stage had no quarantine any more",
        "core/checkpoint/tables.py",
        " and order.stage in names)",
        ")",
        "tests/coordinator/test_attempts.py",
    ),
    Fault(
        "a source that was parted from another began where that one stood",
        "core/chains.py",
        " and self.feeds.keys() == set(self.inputs)",
        "",
        "tests/core/test_chains.py",
    ),
    Fault(
        "a renamed sink that lagged was not found under its former name",
        "operations/readers/load_table.py",
        "names = (uid,) if stage is None else stage.names",
        "names = (uid,)",
        "tests/operations/readers/test_load_tables.py",
    ),
    Fault(
        "tables of a renamed pipeline that lagged were not found",
        "operations/readers/load_table.py",
        "names = (pipeline.name, *pipeline.previous_names)",
        "names = (pipeline.name,)",
        "tests/operations/readers/test_load_tables.py",
    ),
    Fault(
        "a fork took rows of a SQL table that another key had written",
        "ext/sql/fork.py",
        "            self._refuse_other_key(shown_publishes(tree, wanted), key)\n            return",
        "            return",
        "tests/ext/sql/test_sql_table.py",
    ),
    Fault(
        "a publish of a SQL table was undone by a key that it had not gone by",
        "ext/sql/positions.py",
        "return self.key is None or sorted(self.key) == sorted(key)",
        "return True",
        "tests/ext/sql/test_sql_table.py",
    ),
    Fault(
        "a killed run was called alive as long as its lease lasted",
        "runtime/turn.py",
        " and is_certain:",
        ":",
        "tests/dagster/runs/test_turn.py",
    ),
    Fault(
        "nobody knew whose stages were restored in a directory",
        "core/coordinator/lifecycle.py",
        "        started_epoch=record.epoch,\n",
        "        started_epoch=record.started_epoch,\n",
        "tests/coordinator/test_attempts.py",
    ),
    Fault(
        "a run after a refused start took its restore for made",
        "runtime/claim.py",
        "if record.started_epoch != record.epoch:",
        "if False:",
        "tests/attack/test_attack.py",
    ),
    Fault(
        "a torn note of a killed upgrade had every savepoint deleted",
        "ext/upgrade_plan/rebuild.py",
        'if folder.startswith(CheckpointPaths(branch).savepoint("")) and folder not in known:',
        "if folder not in known and note.exists():",
        "tests/spark/test_hostile_files.py",
    ),
    Fault(
        "the log of a stranger's snapshot had files moved that were not of its table",
        "ext/attach/sinks.py",
        '_in_table(unquote(urlsplit(entry["path"]).path), table, log)',
        'Path(unquote(urlsplit(entry["path"]).path))',
        "tests/spark/test_hostile_files.py",
    ),
    Fault(
        "a stored schema had a module of its author's imported",
        "spark/channel/schema.py",
        'if type_json.get("type") == "udt" and',
        "if False and",
        "tests/spark/test_hostile_files.py",
    ),
    Fault(
        "what a symbolic link in checkpoint storage leads to was deleted",
        "adapters/local_keys.py",
        "            if is_link:",
        "            if False:",
        "tests/adapters/test_fsspec_storage.py",
    ),
    Fault(
        "the page answered to any host's name",
        "page/html.py",
        "self._asked_for() not in self.server.names",
        "False",
        "tests/page/test_page.py",
    ),
    Fault(
        "names in snapshots steered the terminal",
        "errors.py",
        "    if text.isprintable():\n        return text",
        "    return text",
        "tests/cli/test_output.py",
    ),
    Fault(
        "a table with rows of another history was gone on with",
        "spark/sink/positions.py",
        "    others = set(shown_by)\n",
        "    others: set[str] = set()\n",
        "tests/attack/test_attack.py",
    ),
    Fault(
        "what a cut had prepared was taken for rows of another line",
        "spark/sink/positions.py",
        "is_past = is_exact or shown",
        "is_past = shown",
        "tests/contract/test_sql_sink.py",
    ),
    Fault(
        "a row of which a condition says NULL was a good one",
        "ext/quarantine/verdicts.py",
        ") IS TRUE, 0L",
        ") IS NOT FALSE, 0L",
        "tests/ext/quarantine/test_bad_rows.py -k bad_rows_go_to_the_quarantine",
    ),
    Fault(
        "an attached program's restore that was refused passed for made",
        "ext/attach/restore.py",
        'f"{self.root}-restore" if self.root else owner.name',
        "self.root or owner.name",
        "tests/ext/attach/test_attach.py -k may_remember",
    ),
    Fault(
        "the number of a savepoint had no limit",
        "core/model.py",
        "Number = Annotated[int, Field(ge=1, le=LARGEST_NUMBER)]",
        "Number = Annotated[int, Field(ge=1)]",
        "tests/spark/test_hostile_files.py",
    ),
    Fault(
        "a requeued row that now breaks what must hold went on",
        "ext/quarantine/requeued_rows.py",
        "        case Action.QUARANTINE | Action.FAIL:",
        '        case Action.FAIL:\n            return "requeued"\n        case Action.QUARANTINE:',
        "tests/ext/quarantine/test_requeued_rows.py",
    ),
    Fault(
        "rows that were ordered through their stage twice went through it twice",
        "operations/care/maintain.py",
        "if (one.stage, one.where) not in known)",
        ")",
        "tests/ext/quarantine/test_requeued_rows.py",
    ),
    Fault(
        "an order took rows while the table showed those that the one before had taken",
        "ext/quarantine/requeued_rows.py",
        "shown >= before.requeued_in else []",
        "True else []",
        "tests/ext/quarantine/test_requeued_rows.py",
    ),
    Fault(
        "a list made on the way lent its id to the next one, whose values passed for seen",
        "spark/plan/functions.py",
        "for given in (thing.__defaults__, thing.__kwdefaults__):",
        "for given in ([thing.__defaults__, thing.__kwdefaults__],):",
        "tests/spark/plan/test_functions.py",
    ),
)


def is_found(copy: Path, fault: Fault) -> bool:
    """Put one fault back into the copy, run its tests, mend it again; tell whether one failed."""
    path = copy / "dagster_ckpt" / fault.file
    text = path.read_text()
    told = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "SIM_SEEDS": "30"}
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
