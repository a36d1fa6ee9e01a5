"""The helper module that makes the session of the program beside it."""

from pyspark.sql import SparkSession


def session() -> SparkSession:
    """Return the session, made when it is first asked for."""
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    return builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
