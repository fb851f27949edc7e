"""Spark with Iceberg's runtime: answers queries over the tables of a REST catalog. Arguments: the jar, the catalog's address, queries."""

import json
import sys

from pyspark.sql import SparkSession

jar, uri, *queries = sys.argv[1:]
settings = {
    "spark.jars": jar,
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "rest",
    "spark.sql.catalog.lake.uri": uri,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for query in queries:
    print("ROWS", json.dumps([row.asDict(recursive=True) for row in spark.sql(query).collect()], default=str), flush=True)
spark.stop()
