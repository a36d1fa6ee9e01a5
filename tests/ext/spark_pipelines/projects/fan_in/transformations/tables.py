from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


@dp.table
def everything() -> DataFrame:
    return spark.readStream.table("all_orders")


@dp.table(cluster_by=["customer"], table_properties={"quality": "gold"})
def large_only() -> DataFrame:
    return spark.readStream.table("large_orders").select("customer", "amount")


@dp.materialized_view
def totals() -> DataFrame:
    rows = spark.read.table("everything")
    return rows.groupBy("region").agg(F.sum("amount").alias("amount"))


@dp.materialized_view
def share() -> DataFrame:
    whole = spark.read.table("totals").agg(F.sum("amount").alias("whole"))
    return spark.table("totals").crossJoin(whole)
