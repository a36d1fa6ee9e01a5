"""Flink's options and where each is found here: settings are accepted under Flink's keys by this table.

``docs/reference/configuration.md`` is made from it. Source: Flink 2.3, CheckpointingOptions,
StateRecoveryOptions, WebOptions.
"""

from __future__ import annotations

from dataclasses import dataclass

CHECKPOINTING = "execution.checkpointing."
RECOVERY = "execution.state-recovery."


@dataclass(frozen=True, slots=True)
class FlinkOption:
    """One of Flink's options."""

    name: str
    default: str
    """Flink's, as its documentation writes it."""
    here: str | None
    """Field of ``CheckpointConfig`` or ``RestoreOptions``, a setting of the coordinator resource, or None."""
    note: str = ""
    """Remark; of an option that is not here: why not."""


def _c(name: str, default: str, here: str | None, note: str = "") -> FlinkOption:
    return FlinkOption(CHECKPOINTING + name, default, here, note)


def _r(name: str, default: str, here: str | None, note: str = "") -> FlinkOption:
    return FlinkOption(RECOVERY + name, default, here, note)


FLINK_OPTIONS = (
    _c(
        "interval", "none", "interval", "streams, 10 s where nobody says; an epoch run ends with a checkpoint"
    ),
    _c(
        "interval-during-backlog",
        "none",
        "interval_during_backlog",
        "streams; a source says so (`is_backlog`), or Spark reports it behind its latest offset",
    ),
    _c("mode", "EXACTLY_ONCE", "mode"),
    _c("timeout", "10 min", "timeout"),
    _c("min-pause", "0", "min_pause"),
    _c("max-concurrent-checkpoints", "1", "max_concurrent_checkpoints"),
    _c(
        "tolerable-failed-checkpoints",
        "0",
        "tolerable_failed_checkpoints",
        "not set: 3 for a stream, none for an epoch, whose only checkpoint it is",
    ),
    _c(
        "externalized-checkpoint-retention",
        "NO_EXTERNALIZED_CHECKPOINTS",
        "externalized_checkpoint_retention",
        "the resource's default is retain_on_cancellation: terminating a run is how Dagster stops one",
    ),
    _c("num-retained", "1", "num_retained", "the resource's default is 3"),
    _c(
        "storage",
        "none",
        "checkpoint_storage",
        "filesystem (the default) or store; jobmanager is read as store",
    ),
    _c("dir", "none", "checkpoint_dir"),
    _c("savepoint-dir", "none", "savepoint_dir"),
    _c("create-subdir", "true", None, "every pipeline has a folder of its own"),
    _c(
        "data-inline-threshold",
        "20 kb",
        None,
        "files of up to 20 kb are kept in the stage's manifest, always",
    ),
    _c("write-buffer-size", "4096", None, "files are uploaded whole"),
    _c("incremental", "false", "incremental", "the resource's default is true"),
    _c(
        "cleaner.parallel-mode",
        "true",
        None,
        "a checkpoint's files are deleted in one call, always; an object store takes several threads for it",
    ),
    _c(
        "checkpoints-after-tasks-finish",
        "true",
        "checkpoints_after_tasks_finish",
        "streams with bounded sources; off: none after the first has ended, and no final one",
    ),
    _c("aligned-checkpoint-timeout", "0", "aligned_checkpoint_timeout", "streams, with `unaligned`"),
    _c("unaligned.enabled", "false", "unaligned", "streams; an epoch run has nothing in flight"),
    _c(
        "unaligned.forced",
        "false",
        None,
        "for loops in the graph, and a pipeline has none: `unaligned` suffices",
    ),
    _c("unaligned.interruptible-timers.enabled", "false", None, "a barrier falls between two micro-batches"),
    _c("unaligned.max-subtasks-per-channel-state-file", "5", None, "in-flight data is a list of log entries"),
    _c(
        "unaligned.recover-output-on-downstream.enabled",
        "false",
        None,
        "channels are logs, read from either end",
    ),
    _c("unaligned.during-recovery.enabled", "false", None, "a restore ends before the first batch"),
    _c("file-merging.enabled", "false", None, "small files are inlined in the manifest instead"),
    _c(
        "file-merging.across-checkpoint-boundary",
        "false",
        None,
        "small files are inlined in the manifest instead",
    ),
    _c("file-merging.max-file-size", "32 MB", None, "small files are inlined in the manifest instead"),
    _c(
        "file-merging.max-space-amplification", "2.0", None, "small files are inlined in the manifest instead"
    ),
    _c("file-merging.pool-blocking", "false", None, "small files are inlined in the manifest instead"),
    _c("local-backup.enabled", "false", "local_backup"),
    _c("local-backup.dirs", "none", None, "copies lie below work_dir, where hard links cost no space"),
    FlinkOption(
        "pipeline.sources.pause-until-first-checkpoint",
        "false",
        "pause_sources_until_first_checkpoint",
        "streams",
    ),
    FlinkOption(
        "pipeline.operator-chaining.enabled",
        "true",
        "operator_chaining",
        "counts where a pipeline begins, a restore keeps the chains of its snapshot",
    ),
    _r("path", "none", "restore_from", "default here: latest, the pipeline's own newest checkpoint"),
    _r("claim-mode", "NO_CLAIM", "claim_mode"),
    _r("ignore-unclaimed-state", "false", "allow_non_restored_state"),
    _r("from-local", "false", "local_backup", "an intact local copy is preferred wherever there is one"),
    _r("without-channel-state.checkpoint-id", "-1", "without_channel_state_of", "of an unaligned checkpoint"),
    FlinkOption(
        "web.checkpoints.history",
        "10",
        None,
        "runs show the latest 10 checkpoints, always; `checkpoint_statistics(history_size=...)` returns more",
    ),
    FlinkOption(
        "state.backend.type", "hashmap", None, "Spark's stateStore.providerClass; RocksDB by default"
    ),
    FlinkOption(
        "state.changelog.enabled", "false", None, "Spark's rocksdb.changelogCheckpointing, on by default"
    ),
)
"""Every option of Flink's checkpointing and recovery, in the order of its documentation."""

FORMER = {
    "state.backend": "state.backend.type",
    "state.backend.changelog.enabled": "state.changelog.enabled",
    "state.backend.fs.memory-threshold": CHECKPOINTING + "data-inline-threshold",
    "state.backend.fs.write-buffer-size": CHECKPOINTING + "write-buffer-size",
    "state.backend.incremental": CHECKPOINTING + "incremental",
    "state.backend.local-recovery": CHECKPOINTING + "local-backup.enabled",
    "state.checkpoint-storage": CHECKPOINTING + "storage",
    "state.checkpoint.cleaner.parallel-mode": CHECKPOINTING + "cleaner.parallel-mode",
    "state.checkpoints.create-subdir": CHECKPOINTING + "create-subdir",
    "state.checkpoints.dir": CHECKPOINTING + "dir",
    "state.checkpoints.num-retained": CHECKPOINTING + "num-retained",
    "state.savepoints.dir": CHECKPOINTING + "savepoint-dir",
    "state.storage.fs.memory-threshold": CHECKPOINTING + "data-inline-threshold",
    "state.storage.fs.write-buffer-size": CHECKPOINTING + "write-buffer-size",
    "taskmanager.state.local.root-dirs": CHECKPOINTING + "local-backup.dirs",
    CHECKPOINTING + "alignment-timeout": CHECKPOINTING + "aligned-checkpoint-timeout",
    CHECKPOINTING + "checkpoints-after-tasks-finish.enabled": CHECKPOINTING
    + "checkpoints-after-tasks-finish",
    CHECKPOINTING + "recover-without-channel-state.checkpoint-id": (
        RECOVERY + "without-channel-state.checkpoint-id"
    ),
    CHECKPOINTING + "unaligned": CHECKPOINTING + "unaligned.enabled",
    "execution.savepoint-restore-mode": RECOVERY + "claim-mode",
    "execution.savepoint.ignore-unclaimed-state": RECOVERY + "ignore-unclaimed-state",
    "execution.savepoint.path": RECOVERY + "path",
}
"""Keys that Flink has replaced and still reads (``withDeprecatedKeys``), and the ones of today."""

OF_THE_API = {
    "checkpointInterval": CHECKPOINTING + "interval",
    "enableCheckpointing": CHECKPOINTING + "interval",
    "checkpointingMode": CHECKPOINTING + "mode",
    "checkpointTimeout": CHECKPOINTING + "timeout",
    "minPauseBetweenCheckpoints": CHECKPOINTING + "min-pause",
    "tolerableCheckpointFailureNumber": CHECKPOINTING + "tolerable-failed-checkpoints",
    "failOnCheckpointingErrors": CHECKPOINTING + "tolerable-failed-checkpoints",
    "failTaskOnCheckpointError": CHECKPOINTING + "tolerable-failed-checkpoints",
    "externalizedCheckpointCleanup": CHECKPOINTING + "externalized-checkpoint-retention",
    "checkpointRetentionPolicy": CHECKPOINTING + "externalized-checkpoint-retention",
    "enableUnalignedCheckpoints": CHECKPOINTING + "unaligned.enabled",
    "alignmentTimeout": CHECKPOINTING + "aligned-checkpoint-timeout",
    "checkpointDirectory": CHECKPOINTING + "dir",
    "checkpointIdOfIgnoredInFlightData": RECOVERY + "without-channel-state.checkpoint-id",
    "savepointPath": RECOVERY + "path",
}
"""Names of options in Flink's programs (``CheckpointConfig``), which have no key of that name."""

_NO_LOOPS = "for loops in the graph, and a pipeline has none"
_PARTITIONS = "state is divided into a stage's `partitions`, of which a restore may make any other number"
_TASKS = "Spark divides a batch into tasks; state is divided by a stage's `partitions`"

ELSEWHERE = {
    "force-unaligned": f"{_NO_LOOPS}: `unaligned` suffices",
    "forceCheckpointing": _NO_LOOPS,
    CHECKPOINTING + "force": _NO_LOOPS,
    "parallelism": _TASKS,
    "max-parallelism": _PARTITIONS,
    "pipeline.max-parallelism": _PARTITIONS,
    "restart-strategy": "`restart` of the pipeline says how a stream restarts",
    "state.backend.rocksdb": "Spark's settings of it begin with spark.sql.streaming.stateStore.rocksdb",
}
"""Words of Flink, or how its keys begin, that are no option of its checkpointing; and why none is here."""

OURS = {
    "initial_delay": "streams: before the first periodic checkpoint; when not set it is drawn, as in Flink",
    "retention": (
        "the newest of older hours and days beside the newest of all: `{keep_last: 3, hourly: 24, daily: 7}`; "
        "`keep_last` takes the place of `num_retained`"
    ),
    "roll_back_tables": "sets aside rows that tables received after the restore point",
    "keep_rows_of": "sinks, by uid, whose rows after the restore point stay all the same",
    "adopt_history": "goes on although the store is behind what the world has seen, or in another history's places",
    "allow_missing_files": "goes on without the rows of files that are gone, which sources would read again",
    "instant_cuts": "true: streams cut checkpoints where their last stages stand; off: barriers flow, as in Flink",
    "fork": "the snapshot may be another pipeline's: a branch with its own ids and tables",
}
"""Settings Flink has no name for."""

DURATIONS = frozenset(
    {"interval", "interval_during_backlog", "timeout", "min_pause", "aligned_checkpoint_timeout"}
)
"""Settings that are milliseconds in Flink, and seconds here, when they have no unit."""
