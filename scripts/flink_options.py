"""The table of ``docs/reference/configuration.md``."""

from __future__ import annotations

from itertools import groupby

from dagster_ckpt.core.flink_options import CHECKPOINTING, ELSEWHERE, FORMER, HERE, NOT_HERE, RECOVERY

TOLD = {
    CHECKPOINTING + "interval": (
        "none",
        "streams, 10 s where nobody says; an epoch run ends with a checkpoint",
    ),
    CHECKPOINTING + "interval-during-backlog": (
        "none",
        "streams; a source says so (`is_backlog`), or Spark reports it behind its latest offset",
    ),
    CHECKPOINTING + "mode": ("EXACTLY_ONCE", ""),
    CHECKPOINTING + "timeout": ("10 min", ""),
    CHECKPOINTING + "min-pause": ("0", ""),
    CHECKPOINTING + "max-concurrent-checkpoints": ("1", ""),
    CHECKPOINTING + "tolerable-failed-checkpoints": (
        "0",
        "not set: 3 for a stream, none for an epoch, whose only checkpoint it is",
    ),
    CHECKPOINTING + "externalized-checkpoint-retention": (
        "NO_EXTERNALIZED_CHECKPOINTS",
        ("the resource's default is retain_on_cancellation: terminating a run is how Dagster stops one"),
    ),
    CHECKPOINTING + "num-retained": ("1", "the resource's default is 3"),
    CHECKPOINTING + "storage": ("none", "filesystem (the default) or store; jobmanager is read as store"),
    CHECKPOINTING + "dir": ("none", ""),
    CHECKPOINTING + "savepoint-dir": ("none", ""),
    CHECKPOINTING + "create-subdir": ("true", ""),
    CHECKPOINTING + "data-inline-threshold": ("20 kb", ""),
    CHECKPOINTING + "write-buffer-size": ("4096", ""),
    CHECKPOINTING + "incremental": ("false", "the resource's default is true"),
    CHECKPOINTING + "cleaner.parallel-mode": ("true", ""),
    CHECKPOINTING + "checkpoints-after-tasks-finish": (
        "true",
        "streams with bounded sources; off: none after the first has ended, and no final one",
    ),
    CHECKPOINTING + "aligned-checkpoint-timeout": ("0", "streams, with `unaligned`"),
    CHECKPOINTING + "unaligned.enabled": ("false", "streams; an epoch run has nothing in flight"),
    CHECKPOINTING + "unaligned.forced": ("false", ""),
    CHECKPOINTING + "unaligned.interruptible-timers.enabled": ("false", ""),
    CHECKPOINTING + "unaligned.max-subtasks-per-channel-state-file": ("5", ""),
    CHECKPOINTING + "unaligned.recover-output-on-downstream.enabled": ("false", ""),
    CHECKPOINTING + "unaligned.during-recovery.enabled": ("false", ""),
    CHECKPOINTING + "file-merging.enabled": ("false", ""),
    CHECKPOINTING + "file-merging.across-checkpoint-boundary": ("false", ""),
    CHECKPOINTING + "file-merging.max-file-size": ("32 MB", ""),
    CHECKPOINTING + "file-merging.max-space-amplification": ("2.0", ""),
    CHECKPOINTING + "file-merging.pool-blocking": ("false", ""),
    CHECKPOINTING + "local-backup.enabled": ("false", ""),
    CHECKPOINTING + "local-backup.dirs": ("none", ""),
    "pipeline.sources.pause-until-first-checkpoint": ("false", "streams"),
    "pipeline.operator-chaining.enabled": (
        "true",
        "counts where a pipeline begins, a restore keeps the chains of its snapshot",
    ),
    RECOVERY + "path": ("none", "default here: latest, the pipeline's own newest checkpoint"),
    RECOVERY + "claim-mode": ("NO_CLAIM", ""),
    RECOVERY + "ignore-unclaimed-state": ("false", ""),
    RECOVERY + "from-local": ("false", "an intact local copy is preferred wherever there is one"),
    RECOVERY + "without-channel-state.checkpoint-id": ("-1", "of an unaligned checkpoint"),
    "web.checkpoints.history": ("10", ""),
    "state.backend.type": ("hashmap", ""),
    "state.changelog.enabled": ("false", ""),
}
"""Every option of Flink's checkpointing and recovery, in the order of its documentation: default there, remark."""

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


def rendered() -> str:
    """Return the table of the configuration page."""
    lines = ["| Flink | Flink's default | here | remark |", "|---|---|---|---|"]
    for (here, note, _), options in groupby(
        TOLD, key=lambda name: (HERE.get(name), NOT_HERE.get(name, TOLD[name][1]), name in HERE and name)
    ):
        same = list(options)
        names, defaults = (", ".join(f"`{name}`" for name in same), ", ".join(TOLD[name][0] for name in same))
        lines.append(f"| {names} | {defaults} | {f'`{here}`' if here else '-'} | {note} |")
    lines += [f"| - | - | `{name}` | {note} |" for name, note in OURS.items()]
    for why in dict.fromkeys(ELSEWHERE.values()):
        names = ", ".join(f"`{name}`" for name, because in ELSEWHERE.items() if because == why)
        lines.append(f"| {names} | - | - | not supported: {why} |")
    former = ", ".join(f"`{name}`" for name in FORMER)
    return "\n".join(
        [
            *lines,
            "",
            f"Keys that Flink has replaced are read as it reads them, with a line in the log: {former}.",
        ]
    )
