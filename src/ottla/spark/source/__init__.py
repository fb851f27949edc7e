"""The Spark source: topics into DataFrames."""
