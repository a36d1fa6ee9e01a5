"""Reads what is defined in a file after this one."""

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table(comment="Orders that pay.", schema="customer STRING, amount INT, tax INT, note STRING")
def large():
    return spark.readStream.table("orders").where("amount > 2").withColumn("tax", F.col("amount") * 2)
