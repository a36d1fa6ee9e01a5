"""Flink's options and where each is found here: settings are accepted under Flink's keys by this table.

``docs/reference/configuration.md`` is made from it, with what ``scripts/flink_options.py`` tells of each. Source: Flink
2.3, CheckpointingOptions, StateRecoveryOptions, WebOptions.
"""

from __future__ import annotations

CHECKPOINTING = "execution.checkpointing."
RECOVERY = "execution.state-recovery."

HERE = {
    CHECKPOINTING + "interval": "interval",
    CHECKPOINTING + "interval-during-backlog": "interval_during_backlog",
    CHECKPOINTING + "mode": "mode",
    CHECKPOINTING + "timeout": "timeout",
    CHECKPOINTING + "min-pause": "min_pause",
    CHECKPOINTING + "max-concurrent-checkpoints": "max_concurrent_checkpoints",
    CHECKPOINTING + "tolerable-failed-checkpoints": "tolerable_failed_checkpoints",
    CHECKPOINTING + "externalized-checkpoint-retention": "externalized_checkpoint_retention",
    CHECKPOINTING + "num-retained": "num_retained",
    CHECKPOINTING + "storage": "checkpoint_storage",
    CHECKPOINTING + "dir": "checkpoint_dir",
    CHECKPOINTING + "savepoint-dir": "savepoint_dir",
    CHECKPOINTING + "incremental": "incremental",
    CHECKPOINTING + "checkpoints-after-tasks-finish": "checkpoints_after_tasks_finish",
    CHECKPOINTING + "aligned-checkpoint-timeout": "aligned_checkpoint_timeout",
    CHECKPOINTING + "unaligned.enabled": "unaligned",
    CHECKPOINTING + "local-backup.enabled": "local_backup",
    "pipeline.sources.pause-until-first-checkpoint": "pause_sources_until_first_checkpoint",
    "pipeline.operator-chaining.enabled": "operator_chaining",
    RECOVERY + "path": "restore_from",
    RECOVERY + "claim-mode": "claim_mode",
    RECOVERY + "ignore-unclaimed-state": "allow_non_restored_state",
    RECOVERY + "from-local": "local_backup",
    RECOVERY + "without-channel-state.checkpoint-id": "without_channel_state_of",
}
"""Options of Flink's checkpointing and recovery that are settings here, some of the coordinator resource."""

_INLINED = "small files are inlined in the manifest instead"

NOT_HERE = {
    CHECKPOINTING + "create-subdir": "every pipeline has a folder of its own",
    CHECKPOINTING + "data-inline-threshold": "files of up to 20 kb are kept in the stage's manifest, always",
    CHECKPOINTING + "write-buffer-size": "files are uploaded whole",
    CHECKPOINTING + "cleaner.parallel-mode": (
        "a checkpoint's files are deleted in one call, always; an object store takes several threads for it"
    ),
    CHECKPOINTING
    + "unaligned.forced": "for loops in the graph, and a pipeline has none: `unaligned` suffices",
    CHECKPOINTING + "unaligned.interruptible-timers.enabled": "a barrier falls between two micro-batches",
    CHECKPOINTING
    + "unaligned.max-subtasks-per-channel-state-file": "in-flight data is a list of log entries",
    CHECKPOINTING
    + "unaligned.recover-output-on-downstream.enabled": "channels are logs, read from either end",
    CHECKPOINTING + "unaligned.during-recovery.enabled": "a restore ends before the first batch",
    CHECKPOINTING + "file-merging.enabled": _INLINED,
    CHECKPOINTING + "file-merging.across-checkpoint-boundary": _INLINED,
    CHECKPOINTING + "file-merging.max-file-size": _INLINED,
    CHECKPOINTING + "file-merging.max-space-amplification": _INLINED,
    CHECKPOINTING + "file-merging.pool-blocking": _INLINED,
    CHECKPOINTING + "local-backup.dirs": "copies lie below work_dir, where hard links cost no space",
    "web.checkpoints.history": (
        "runs show the latest 10 checkpoints, always; `checkpoint_statistics(history_size=...)` returns more"
    ),
    "state.backend.type": "Spark's stateStore.providerClass; RocksDB by default",
    "state.changelog.enabled": "Spark's rocksdb.changelogCheckpointing, on by default",
}
"""The others of Flink's options, and why none is here."""

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

DURATIONS = frozenset(
    {"interval", "interval_during_backlog", "timeout", "min_pause", "aligned_checkpoint_timeout"}
)
"""Settings that are milliseconds in Flink, and seconds here, when they have no unit."""
