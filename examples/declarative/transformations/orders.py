"""Orders from a topic: stored in a table, summed up, and the large ones sent to another topic.

topic orders --> orders (streaming table) --> revenue (materialized view)
                                          \\-> topic large-orders (sink)
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, from_json, struct, sum, to_json

BROKERS = os.environ.get("OTTLA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
LARGE = 100

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Each record of the topic once: the flow's checkpoint stores the offsets."""
    records = (
        spark.readStream.format("ottla")
        .option("bootstrap.servers", BROKERS)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = from_json(col("value").cast("string"), "id BIGINT, product STRING, amount DOUBLE, at TIMESTAMP").alias("order")
    return records.select(order, "partition", "offset").select("order.*", "partition", "offset")


@dp.materialized_view
def revenue() -> DataFrame:
    """Recomputed from the table in each run."""
    return spark.read.table("orders").groupBy("product").agg(count("*").alias("orders"), sum("amount").alias("revenue"))


dp.create_sink("large_orders", "ottla", {"bootstrap.servers": BROKERS, "topic": "large-orders"})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Exactly once, for consumers with isolation.level=read_committed."""
    large = spark.readStream.table("orders").where(col("amount") >= LARGE)
    return large.select(col("product").alias("key"), to_json(struct("id", "product", "amount", "at")).alias("value"))
