"""Lets Spark find ``format("ottla")`` by itself: it looks for ``DefaultSource`` in top-level modules named ``pyspark_*``."""

from ottla.spark.source.data_source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
