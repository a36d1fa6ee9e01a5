from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

FEED = Path.cwd() / "feed"


for region in ("eu", "us"):

    @dp.table(name=f"orders_{region}")
    def orders() -> DataFrame:
        # Spark calls this at once; later `region` is "us" for both.
        return (
            spark.readStream.schema("customer STRING, amount INT")
            .json(str(FEED / region))
            .withColumn("region", F.lit(region))
        )


@dp.temporary_view
def all_orders() -> DataFrame:
    eu = spark.readStream.table("orders_eu")
    return eu.union(spark.readStream.table("spark_catalog.default.orders_us"))


@dp.temporary_view(name="large_orders")
def large() -> DataFrame:
    return spark.readStream.table("all_orders").where("amount > 2")
