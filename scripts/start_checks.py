"""Writes the page of why a run refuses to start from the list of its checks: ``python -m scripts.start_checks``."""

from __future__ import annotations

from typing import NamedTuple

from dagster_ckpt.core.restore.start_checks import START_CHECKS
from tests.root import ROOT

PAGE = ROOT / "docs" / "reference" / "start-checks.md"
_HEAD = """# Why a run refuses to start

A run is refused before anything is changed, with one sentence that says what is the matter and what to do. The checks
in their order, each with what it compares and its sentence; the first that holds is told.
By `python -m scripts.start_checks`.

What a decorator can see is refused while the code is imported; there `dg launch` prints Dagster's trace, which no
library can shorten.

`dagster-ckpt check -f code.py` asks the first three parts of every pipeline, without Java and without a run;
`dg check defs` tells the first, and warns of the second.

Consoles print the sentence alone; with `--traceback`, or `DAGSTER_CKPT_TRACEBACK=1`, also where it comes from, and
Spark's pages of failed tasks.

Mistakes of the first day; `python -m tests.first_day` makes them (at most 15 lines each, Spark's among them):

| told | mistakes |
|---|---|
| without Java | key named twice, output mode, `return`, names, settings, store, password, extras, folder, no Java |
| before a row | missing key or column, aggregation, path, type, `spark.read`, restore point, uid, storage gone |
| with the row | failing function, JSON (`FAILFAST`) |
| as a warning | `rand()` in a key, JSON |
"""
_PARTS = {
    "code": (
        "The code",
        "Known once the code is imported; a code location that is refused does not load.",
    ),
    "machine": ("The machine", "Known on the machine of the run, before Java starts."),
    "store": ("The store", "The first call to it, before Java starts."),
    "request": ("The request", "What the run was launched with. `restore_from` is read here, once."),
    "history": (
        "The history",
        "What the store has recorded, beside all that was seen of the pipeline elsewhere.",
    ),
    "snapshot": ("The snapshot", "Its metadata, beside the pipeline as the code has it now."),
    "outside": (
        "Sources and sinks",
        "Asked last; the pipeline is claimed only once none of them refuses.",
    ),
}
_END = """
What comes after, before a row is read: files of the snapshot are compared with their digests, sinks are brought to the
restore point, and each query's plan is compared with the one its state was made by
([Change what a stage does](../how-to/change-a-stage.md)).
"""


class Told(NamedTuple):
    """Words about one check."""

    name: str
    compares: str
    sentence: str
    """As it is raised; ``…`` stands for names and numbers of the case."""
    ways_out: str


TEXTS = {
    "one_name": Told(
        "one name, one pipeline",
        "the names of the pipelines of a code location",
        "pipelines need different names, got …",
        "give one of them another name; or leave out the second definition of the same one",
    ),
    "pipeline_word": Told(
        "word of a pipeline",
        "a pipeline's name with what Dagster takes as the name of a job",
        "pipeline … cannot be carried by Dagster, which names its jobs after it: use letters, digits and '_', …",
        "the name that the sentence proposes",
    ),
    "name_length": Told(
        "length of a name",
        "a pipeline's name with the 63 characters of a tag in Dagster",
        "the name of pipeline … has … characters, and Dagster tags runs with it, by at most 63: give it a shorter name",
        "a shorter name",
    ),
    "stage_word": Told(
        "word of a stage",
        "a stage's uid with the words that Dagster and Python keep for themselves",
        "stage … of pipeline … cannot be carried by Dagster, which names its op after it: …",
        "another uid; `previous_uids` keeps its state",
    ),
    "job_names": Told(
        "name of a job",
        "a pipeline's name with the names of other pipelines' jobs",
        "pipeline … has the name of a job of pipeline …: give it another name",
        "another name",
    ),
    "own_assets": Told(
        "asset of a table",
        "the assets of all sinks with one another, and with those of checkpoints",
        "sink … of pipeline … has the asset …, and that is …: give the sink another uid, or an asset of its own …",
        "another uid, or `asset=`",
    ),
    "key_columns": Told(
        "key columns",
        "the names in `key=[…]` of a sink with one another",
        "sink … of pipeline … has key=…: give the names of its columns, each once",
        "correct the key",
    ),
    "settings": Told(
        "settings",
        "settings of the resource and the pipeline with what there is",
        "Checkpoint configuration is not valid: …",
        "the value, or the name, that the sentence proposes",
    ),
    "places": Told(
        "folders",
        "each local folder of the resource with what this process may make and write",
        "`…`: the folder … cannot be …, because …: name another one",
        "another folder, or the right to write it",
    ),
    "packages": Told(
        "packages",
        "what the store, the storage and the sinks need with what is installed",
        "… needs the package …, which is not installed: …",
        "install it with the command the sentence gives",
    ),
    "spark_version": Told(
        "version of Spark",
        "the installed PySpark with what the run needs",
        "PySpark … …: …install pyspark>=…",
        "the version that the sentence names; an epoch",
    ),
    "java": Told(
        "Java",
        "JAVA_HOME, else the PATH, with Java 17; not where a session runs already, or Java is started elsewhere",
        "Spark needs Java 17 or newer, and … …: install one … and set JAVA_HOME to its folder",
        "install Java 17 or newer, and set JAVA_HOME",
    ),
    "store_answers": Told(
        "the store answers",
        "`store_url` with a server that lets this user in",
        "the coordinator store at … …",
        "correct address, user or password; where it was only away, start again",
    ),
    "backfill": Told(
        "backfill",
        "the run's tags: a restore goes from one snapshot",
        "… takes one snapshot at a time and cannot be backfilled, nothing was done: choose one partition in its "
        "Launchpad",
        "launch it for one partition",
    ),
    "chosen": Told(
        "a snapshot is chosen",
        "`restore_from` of a job that restores",
        "… restores a snapshot that you choose, and none is chosen: …",
        "choose one; or the pipeline's own job, which goes on from the latest",
    ),
    "approved": Told(
        "approval",
        "the record with what the approved preview was of",
        "since the preview …: nothing was restored. Preview it again, and approve that",
        "preview again",
    ),
    "former_name": Told(
        "former name",
        "a pipeline that has not begun under its name with what it has left under those in `previous_names`",
        "pipeline …, which was called …, has no checkpoint under this name yet, and …. …",
        "`restore_from` a snapshot of the former name, by its URI, or `none`; stop what runs under that name",
    ),
    "lost_record": Told(
        "lost record",
        "a store without a record with what storage, working directory and sinks have seen of the pipeline",
        "the coordinator store has no record of pipeline …, but …: the store was lost, or is another one. …",
        "bring it back; `restore_from` a snapshot, or `none`; `dagster-ckpt doctor --repair`",
    ),
    "another_history": Told(
        "another history",
        "the history of the store with that of storage, working directory and sinks",
        "… belongs to another history (…) of a pipeline named … than the coordinator store (…): …",
        "places of its own for this deployment; or `adopt_history`",
    ),
    "older_store": Told(
        "older store",
        "the store's newest attempt and checkpoint with those seen elsewhere",
        "the coordinator store is behind: it knows pipeline … up to attempt … and checkpoint …, but …. …",
        "bring the newer store back; `restore_from` a snapshot, or `none`; `adopt_history`",
    ),
    "fork_of_itself": Told(
        "fork of itself",
        "the snapshot's pipeline with the fork",
        "… is a snapshot of … itself: a fork is another pipeline, declared with pipeline.fork(...). …",
        "restore it without `fork`",
    ),
    "recorded_id": Told(
        "recorded id",
        "the id in the folder with that in the store's record",
        "… should hold …, but its metadata is of snapshot …: restore from another one with restore_from",
        "another snapshot",
    ),
    "room_for_numbers": Told(
        "room for numbers",
        "the snapshot's number with the highest there can be",
        "… has the number …, too high to count on from: import it (dagster-ckpt import), …",
        "import it, and restore the copy",
    ),
    "own_pipeline": Told(
        "own pipeline",
        "the snapshot's pipeline with the one that starts",
        "… is a snapshot of pipeline …, not of …: check the path; start a fork if you mean to branch off from it; …",
        "the right path; a fork; `previous_names` of a renamed pipeline",
    ),
    "own_history": Told(
        "own history",
        "the snapshot's history with the store's",
        "… is a snapshot of another history (…) of a pipeline named … than this one (…), …",
        "a fork; or `adopt_history`",
    ),
    "forks_claim": Told(
        "claim of a fork",
        "`claim_mode` of a fork with who deletes the checkpoint",
        "… cannot restore checkpoint … of pipeline … with claim_mode …: …",
        "`no_claim`; or a savepoint",
    ),
    "saved_state": Told(
        "state that nothing takes",
        "the stages of the snapshot with those of the pipeline, by `uid` and `previous_uids`",
        "… … holds state of …, which the pipeline no longer has.… To drop that state, restore with "
        "allow_non_restored_state = true",
        "`previous_uids` of the renamed stage; or `allow_non_restored_state`",
    ),
    "same_inputs": Told(
        "inputs of a stage",
        "the inputs of each stage with those it had",
        "stage … had other inputs when the snapshot was taken (…): its saved state cannot be matched to them. …",
        "the old graph; or a new `uid` and `allow_non_restored_state`",
    ),
    "finished_stages": Told(
        "finished stages",
        "the finished stages of the snapshot with who feeds them",
        "stage … (…) feeds stage …, which is … in the snapshot and would not read what … still sends: …",
        "leave the edge out; or a new `uid`",
    ),
    "in_flight": Told(
        "rows in flight",
        "the channels that hold rows in flight with the edges there are",
        "checkpoint … holds in-flight data for stage … from …, which no longer feeds it: …",
        "an aligned checkpoint or a savepoint; or `without_channel_state_of`",
    ),
    "inputs": Told(
        "all of an input",
        "a new stage that must read its inputs from their first row with inputs that go on",
        "stage … …",
        "begin without state; or leave the stage out",
    ),
    "positions": Told(
        "positions of sources",
        "the positions that are gone on from with what the topics hold",
        "source … cannot read on: … is gone in …. …",
        "another snapshot; or what the sentence advises",
    ),
    "files": Told(
        "files of sources",
        "the files that would be read again with those that are there",
        "… cannot be restored: … is gone. …. To go on without their rows, say so (allow_missing_files)",
        "bring the files back; or `allow_missing_files`",
    ),
    "sinks": Told(
        "sinks without rows",
        "each sink, where a run begins without state, with what it shows",
        "sink …: …. Nothing was changed. Restore without taking back the rows of … (keep_rows_of: …), …",
        "`keep_rows_of`; `roll_back_tables: false`",
    ),
}
"""What is told of each check, by its function."""


def page() -> str:
    """Return the page with today's list."""
    text = _HEAD
    for part, (title, known) in _PARTS.items():
        text += f"\n## {title}\n\n{known}\n\n"
        for check in START_CHECKS[part]:
            told = TEXTS[check.__name__]
            text += f"* **{told.name}**: {told.compares}. “{told.sentence}” Ways out: {told.ways_out}.\n"
    return text + _END


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
