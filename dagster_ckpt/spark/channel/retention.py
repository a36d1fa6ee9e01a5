"""Removes what crashes leave in a channel log's folder: by listing, and only what is surely garbage."""

from __future__ import annotations

import shutil

from dagster_ckpt.spark.channel.entries import DataEntry
from dagster_ckpt.spark.channel.log import ChannelLog
from dagster_ckpt.spark.files import batch_of, remove_files


def sweep_staging(log: ChannelLog) -> int:
    """Remove staged output that no entry names and entries below the start; return how many went.

    Only output of batches that are in the log counts: what a later batch has staged may still be appended. So
    it is safe at any time, also while the query runs. Reads the whole log: call it when a stage starts.
    """
    start, through = log.start, log.last_batch()
    stale = [path for path in log.directory.glob("[0-9]" * 20 + ".json") if int(path.stem) < start]
    if through is None or not log.data_folder.is_dir():
        return remove_files(stale)
    data = (entry for _, entry in log.entries(start) if isinstance(entry, DataEntry))
    named = {name.split("/")[1] for entry in data for name in (file.name for file in entry.files)}
    doomed = [
        folder
        for folder in log.data_folder.iterdir()
        if (batch := batch_of(folder.name)) is not None and batch <= through and folder.name not in named
    ]
    for folder in doomed:
        shutil.rmtree(folder, ignore_errors=True)
    return remove_files(stale) + len(doomed)
