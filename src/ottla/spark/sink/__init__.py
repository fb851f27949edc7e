"""The Spark sink: DataFrames into topics."""
