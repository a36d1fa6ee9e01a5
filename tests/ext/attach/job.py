"""A program that knows nothing of checkpoints: orders are cleaned into a table, which another query counts by key.

    python job.py FOLDER

It reads ``FOLDER/in/*.json`` (key, amount), writes the table ``FOLDER/clean``, and overwrites ``FOLDER/totals.json`` in
``foreachBatch``, until it is killed or ``FOLDER/stop`` exists; where ``FOLDER/ends`` does, until its queries end.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from session_of_job import session

FOLDER = Path(sys.argv[1])


def save(frame: DataFrame, batch: int) -> None:
    rows = {row["key"]: row["total"] for row in frame.collect()}
    known = json.loads((FOLDER / "totals.json").read_text()) if (FOLDER / "totals.json").exists() else {}
    (FOLDER / "totals.tmp").write_text(json.dumps({**known, **rows}))
    os.replace(FOLDER / "totals.tmp", FOLDER / "totals.json")


spark = session()
orders = (
    spark.readStream.schema("key string, amount long")
    .option("maxFilesPerTrigger", 1)
    .json(str(FOLDER / "in"))
)
clean = (
    orders.where("amount >= 0")
    .writeStream.format("parquet")
    .queryName("clean")
    .option("checkpointLocation", str(FOLDER / "spark" / "clean"))
    .start(str(FOLDER / "clean"))
)
totals = (
    spark.readStream.schema("key string, amount long")
    .parquet(str(FOLDER / "clean"))
    .groupBy("key")
    .sum("amount")
    .withColumnRenamed("sum(amount)", "total")
    .writeStream.outputMode("update")
    .option("checkpointLocation", str(FOLDER / "spark" / "totals"))
    .foreachBatch(save)
    .start()
)
(FOLDER / "running").touch()
while not (FOLDER / "stop").exists() and (spark.streams.active or not (FOLDER / "ends").exists()):
    spark.streams.awaitAnyTermination(1)
clean.stop()
totals.stop()
