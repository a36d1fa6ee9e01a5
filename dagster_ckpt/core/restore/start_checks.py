"""Checks of a start: one ordered list of why a run refuses to start, over one value of facts.

The page docs/reference/start-checks.md is made of this list (``python -m scripts.start_checks``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dagster_ckpt.core.restore import start_refusals as refuse
from dagster_ckpt.core.restore.start_facts import OutsideFacts, StartFacts


class Part(StrEnum):
    """Part of the facts that a check looks at; the value is its name in ``StartFacts``."""

    CODE = "code"
    """Known once the code is imported: told by ``dg check defs`` too."""
    MACHINE = "machine"
    """Known on the machine of the run, before Java starts."""
    STORE = "store"
    """Known once the coordinator store was asked, before Java starts."""
    REQUEST = "request"
    """Known from the run's config and tags, before Java starts."""
    HISTORY = "history"
    SNAPSHOT = "snapshot"
    """Known once the snapshot's metadata was read."""
    OUTSIDE = "outside"
    """Known once sources and sinks were asked; nothing was claimed until then."""


@dataclass(frozen=True, slots=True)
class StartCheck:
    """One reason not to start; the first of the list that holds is told."""

    part: Part
    name: str
    compares: str
    sentence: str
    """As it is raised; ``…`` stands for names and numbers of the case."""
    ways_out: str
    refuse: Callable[[Any], None]
    """Raises an error of the library; takes the part."""


def refuse_start(facts: StartFacts) -> None:
    """Raise the first reason not to start, among the checks whose part of the facts is known.

    Raises InvalidRequest, Corrupt, NotFound, Unavailable: nothing was changed.
    """
    for check in START_CHECKS:
        known = getattr(facts, check.part.value)
        if known is not None:
            check.refuse(known)


def _inputs(outside: OutsideFacts) -> None:
    outside.inputs()


def _positions(outside: OutsideFacts) -> None:
    outside.positions()


def _files(outside: OutsideFacts) -> None:
    outside.files()


def _sinks(outside: OutsideFacts) -> None:
    outside.sinks()


START_CHECKS = (
    StartCheck(
        Part.CODE,
        "one name, one pipeline",
        "the names of the pipelines of a code location",
        "pipelines need different names, got …",
        "give one of them another name; or leave out the second definition of the same one",
        refuse.one_name,
    ),
    StartCheck(
        Part.CODE,
        "word of a pipeline",
        "a pipeline's name with what Dagster takes as the name of a job",
        "pipeline … cannot be carried by Dagster, which names its jobs after it: use letters, digits and '_', …",
        "the name that the sentence proposes",
        refuse.pipeline_word,
    ),
    StartCheck(
        Part.CODE,
        "length of a name",
        "a pipeline's name with the 63 characters of a tag in Dagster",
        "the name of pipeline … has … characters, and Dagster tags runs with it, by at most 63: give it a shorter name",
        "a shorter name",
        refuse.name_length,
    ),
    StartCheck(
        Part.CODE,
        "word of a stage",
        "a stage's uid with the words that Dagster and Python keep for themselves",
        "stage … of pipeline … cannot be carried by Dagster, which names its op after it: …",
        "another uid; `previous_uids` keeps its state",
        refuse.stage_word,
    ),
    StartCheck(
        Part.CODE,
        "name of a job",
        "a pipeline's name with the names of other pipelines' jobs",
        "pipeline … has the name of a job of pipeline …: give it another name",
        "another name",
        refuse.job_names,
    ),
    StartCheck(
        Part.CODE,
        "asset of a table",
        "the assets of all sinks with one another, and with those of checkpoints",
        "sink … of pipeline … has the asset …, and that is …: give the sink another uid, or an asset of its own …",
        "another uid, or `asset=`",
        refuse.own_assets,
    ),
    StartCheck(
        Part.CODE,
        "key columns",
        "the names in `key=[…]` of a sink with one another",
        "sink … of pipeline … has key=…: give the names of its columns, each once",
        "correct the key",
        refuse.key_columns,
    ),
    StartCheck(
        Part.CODE,
        "settings",
        "settings of the resource and the pipeline with what there is",
        "Checkpoint configuration is not valid: …",
        "the value, or the name, that the sentence proposes",
        refuse.settings,
    ),
    StartCheck(
        Part.MACHINE,
        "folders",
        "each local folder of the resource with what this process may make and write",
        "`…`: the folder … cannot be …, because …: name another one",
        "another folder, or the right to write it",
        refuse.places,
    ),
    StartCheck(
        Part.MACHINE,
        "packages",
        "what the store, the storage and the sinks need with what is installed",
        "… needs the package …, which is not installed: …",
        "install it with the command the sentence gives",
        refuse.packages,
    ),
    StartCheck(
        Part.MACHINE,
        "version of Spark",
        "the installed PySpark with what the run needs",
        "PySpark … …: …install pyspark>=…",
        "the version that the sentence names; an epoch",
        refuse.spark_version,
    ),
    StartCheck(
        Part.MACHINE,
        "Java",
        "JAVA_HOME, else the PATH, with Java 17; not where a session runs already, or Java is started elsewhere",
        "Spark needs Java 17 or newer, and … …: install one … and set JAVA_HOME to its folder",
        "install Java 17 or newer, and set JAVA_HOME",
        refuse.java,
    ),
    StartCheck(
        Part.STORE,
        "the store answers",
        "`store_url` with a server that lets this user in",
        "the coordinator store at … …",
        "correct address, user or password; where it was only away, start again",
        lambda opens: opens(),
    ),
    StartCheck(
        Part.REQUEST,
        "backfill",
        "the run's tags: a restore goes from one snapshot",
        "… takes one snapshot at a time and cannot be backfilled, nothing was done: choose one partition in its "
        "Launchpad",
        "launch it for one partition",
        refuse.backfill,
    ),
    StartCheck(
        Part.REQUEST,
        "a snapshot is chosen",
        "`restore_from` of a job that restores",
        "… restores a snapshot that you choose, and none is chosen: …",
        "choose one; or the pipeline's own job, which goes on from the latest",
        refuse.chosen,
    ),
    StartCheck(
        Part.REQUEST,
        "approval",
        "the record with what the approved preview was of",
        "since the preview …: nothing was restored. Preview it again, and approve that",
        "preview again",
        refuse.approved,
    ),
    StartCheck(
        Part.HISTORY,
        "former name",
        "a pipeline that has not begun under its name with what it has left under those in `previous_names`",
        "pipeline …, which was called …, has no checkpoint under this name yet, and …. …",
        "`restore_from` a snapshot of the former name, by its URI, or `none`; stop what runs under that name",
        refuse.former_name,
    ),
    StartCheck(
        Part.HISTORY,
        "lost record",
        "a store without a record with what storage, working directory and sinks have seen of the pipeline",
        "the coordinator store has no record of pipeline …, but …: the store was lost, or is another one. …",
        "bring it back; `restore_from` a snapshot, or `none`; `dagster-ckpt doctor --repair`",
        refuse.lost_record,
    ),
    StartCheck(
        Part.HISTORY,
        "another history",
        "the history of the store with that of storage, working directory and sinks",
        "… belongs to another history (…) of a pipeline named … than the coordinator store (…): …",
        "places of its own for this deployment; or `adopt_history`",
        refuse.another_history,
    ),
    StartCheck(
        Part.HISTORY,
        "older store",
        "the store's newest attempt and checkpoint with those seen elsewhere",
        "the coordinator store is behind: it knows pipeline … up to attempt … and checkpoint …, but …. …",
        "bring the newer store back; `restore_from` a snapshot, or `none`; `adopt_history`",
        refuse.older_store,
    ),
    StartCheck(
        Part.SNAPSHOT,
        "fork of itself",
        "the snapshot's pipeline with the fork",
        "… is a snapshot of … itself: a fork is another pipeline, declared with pipeline.fork(...). …",
        "restore it without `fork`",
        refuse.fork_of_itself,
    ),
    StartCheck(
        Part.SNAPSHOT,
        "recorded id",
        "the id in the folder with that in the store's record",
        "… should hold …, but its metadata is of snapshot …: restore from another one with restore_from",
        "another snapshot",
        refuse.recorded_id,
    ),
    StartCheck(
        Part.SNAPSHOT,
        "room for numbers",
        "the snapshot's number with the highest there can be",
        "… has the number …, too high to count on from: import it (dagster-ckpt import), …",
        "import it, and restore the copy",
        refuse.room_for_numbers,
    ),
    StartCheck(
        Part.SNAPSHOT,
        "own pipeline",
        "the snapshot's pipeline with the one that starts",
        "… is a snapshot of pipeline …, not of …: check the path; start a fork if you mean to branch off from it; …",
        "the right path; a fork; `previous_names` of a renamed pipeline",
        refuse.own_pipeline,
    ),
    StartCheck(
        Part.SNAPSHOT,
        "own history",
        "the snapshot's history with the store's",
        "… is a snapshot of another history (…) of a pipeline named … than this one (…), …",
        "a fork; or `adopt_history`",
        refuse.own_history,
    ),
    StartCheck(
        Part.SNAPSHOT,
        "claim of a fork",
        "`claim_mode` of a fork with who deletes the checkpoint",
        "… cannot restore checkpoint … of pipeline … with claim_mode …: …",
        "`no_claim`; or a savepoint",
        refuse.forks_claim,
    ),
    StartCheck(
        Part.SNAPSHOT,
        "state that nothing takes",
        "the stages of the snapshot with those of the pipeline, by `uid` and `previous_uids`",
        "… … holds state of …, which the pipeline no longer has.… To drop that state, restore with "
        "allow_non_restored_state = true",
        "`previous_uids` of the renamed stage; or `allow_non_restored_state`",
        refuse.saved_state,
    ),
    StartCheck(
        Part.SNAPSHOT,
        "inputs of a stage",
        "the inputs of each stage with those it had",
        "stage … had other inputs when the snapshot was taken (…): its saved state cannot be matched to them. …",
        "the old graph; or a new `uid` and `allow_non_restored_state`",
        refuse.same_inputs,
    ),
    StartCheck(
        Part.SNAPSHOT,
        "finished stages",
        "the finished stages of the snapshot with who feeds them",
        "stage … (…) feeds stage …, which is … in the snapshot and would not read what … still sends: …",
        "leave the edge out; or a new `uid`",
        refuse.finished_stages,
    ),
    StartCheck(
        Part.SNAPSHOT,
        "rows in flight",
        "the channels that hold rows in flight with the edges there are",
        "checkpoint … holds in-flight data for stage … from …, which no longer feeds it: …",
        "an aligned checkpoint or a savepoint; or `without_channel_state_of`",
        refuse.in_flight,
    ),
    StartCheck(
        Part.OUTSIDE,
        "all of an input",
        "a new stage that must read its inputs from their first row with inputs that go on",
        "stage … …",
        "begin without state; or leave the stage out",
        _inputs,
    ),
    StartCheck(
        Part.OUTSIDE,
        "positions of sources",
        "the positions that are gone on from with what the topics hold",
        "source … cannot read on: … is gone in …. …",
        "another snapshot; or what the sentence advises",
        _positions,
    ),
    StartCheck(
        Part.OUTSIDE,
        "files of sources",
        "the files that would be read again with those that are there",
        "… cannot be restored: … is gone. …. To go on without their rows, say so (allow_missing_files)",
        "bring the files back; or `allow_missing_files`",
        _files,
    ),
    StartCheck(
        Part.OUTSIDE,
        "sinks without rows",
        "each sink, where a run begins without state, with what it shows",
        "sink …: …. Nothing was changed. Restore without taking back the rows of … (keep_rows_of: …), …",
        "`keep_rows_of`; `roll_back_tables: false`",
        _sinks,
    ),
)
"""All checks, in the order in which they are asked."""
