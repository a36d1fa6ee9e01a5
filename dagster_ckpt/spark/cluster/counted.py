"""Rows of a write as Spark's tasks count them: what a listing does not show was written all the same.

Executors that write to another disk succeed, and the driver finds an empty folder. Only their own count tells that from
a batch without rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_ckpt.errors import Unavailable
from dagster_ckpt.spark.files import DataFile
from dagster_ckpt.spark.java.sessions import is_local, is_observed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

PATIENCE = 300.0
"""Seconds after a write in which Spark's listener bus has to bring its count: it is late on a busy driver."""
_LOOK_EVERY = 0.002


class CountedRows:
    """The rows of one write: ``frame`` is what is to be written, once."""

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame
        self._seen: Observation | None = None
        if not is_local(frame.sparkSession):
            from pyspark.sql import Observation
            from pyspark.sql import functions as f

            self._seen = Observation()
            self.frame = frame.observe(self._seen, f.count("*").alias("rows"))

    def agrees_with(self, files: Sequence[DataFile], folder: Path) -> bool:
        """Tell whether ``files`` hold the rows that the tasks counted; tasks of this process are not counted."""
        return self._seen is None or self._counted(folder) == sum(file.rows for file in files)

    def compare(self, files: Sequence[DataFile], folder: Path) -> None:
        """Raise Unavailable unless ``files``, found in ``folder`` after the write, hold the rows its tasks counted."""
        if self.agrees_with(files, folder):
            return
        wrote, found = self._counted(folder), sum(file.rows for file in files)
        if found < wrote:
            raise Unavailable(
                f"the executors wrote {wrote:,} rows to {folder}, and the driver finds {found:,} of them there: to an "
                "executor that folder is another disk. Nothing was appended. work_dir and table_dir have to be folders "
                "that every machine mounts under the same path"
            )
        raise Unavailable(
            f"the executors wrote {wrote:,} rows to {folder}, and the driver finds {found:,} there: a task that "
            "was repeated has left files of its first try. Nothing was appended, the batch is written again"
        )

    def _counted(self, folder: Path) -> int:
        assert self._seen is not None, "only what is counted is compared"
        return numbers_of(self._seen, folder)["rows"]


def numbers_of(seen: Observation, folder: Path) -> dict[str, int]:
    """Return the observed numbers of a write that is done, by name. Raises Unavailable where Spark does not say."""
    given_up = time.monotonic() + PATIENCE
    while not is_observed(seen):  # Observation.get would wait for ever where the bus has dropped the event
        if time.monotonic() > given_up:
            raise Unavailable(
                f"Spark has not said how many rows it wrote to {folder}: its listener bus drops events or stands "
                "still. Give it room (spark.scheduler.listenerbus.eventqueue.capacity); the batch is written again"
            )
        time.sleep(_LOOK_EVERY)
    return {name: int(number or 0) for name, number in seen.get.items()}
