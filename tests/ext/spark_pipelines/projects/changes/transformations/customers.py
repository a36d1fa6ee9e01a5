from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

FEED = Path.cwd() / "feed" / "changes"


@dp.temporary_view
def change_feed() -> DataFrame:
    columns = "id INT, name STRING, at INT, kind STRING"
    return spark.readStream.schema(columns).json(str(FEED))


dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers",
    source="change_feed",
    keys=["id"],
    sequence_by="at",
    apply_as_deletes="kind = 'delete'",
    except_column_list=["at", "kind"],
)

dp.create_streaming_table("last_seen")
dp.create_auto_cdc_flow(
    target="last_seen",
    source="change_feed",
    keys=["id"],
    sequence_by=F.col("at"),
    column_list=["id", "at"],
    name="seen",
)


@dp.materialized_view
def names() -> DataFrame:
    return spark.read.table("customers").groupBy("name").count()
