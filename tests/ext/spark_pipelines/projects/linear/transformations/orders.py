from pathlib import Path

from pyspark import pipelines as dp

FEED = Path.cwd() / "feed" / "orders"


@dp.table
def orders():
    return spark.readStream.schema("customer STRING, amount INT").json(str(FEED))
